"""The whole input layers of known models: token + position (+ type) (+ norm) (+ dropout), in the model's order.

Each layer has a ``Declaration`` of its parts and of its keys in checkpoints. Call a text layer as
``layer(token_ids, *, position_ids=None, offset=0, mask=None, token_type_ids=None)`` -> (B, L, D) (see
``TextInput.forward``) and an image layer as ``layer(images)``. ``from_checkpoint(source)`` loads any of them.
Parameters have the model's own names. The state dict holds weights and nothing else.
"""

from posembed.inputs.base import Declaration as Declaration
from posembed.inputs.text import TextInput as TextInput
from posembed.inputs.text import TokenEmbedding as TokenEmbedding
from posembed.inputs.text_models import BartInput as BartInput
from posembed.inputs.text_models import BertInput as BertInput
from posembed.inputs.text_models import CLIPTextInput as CLIPTextInput
from posembed.inputs.text_models import ConvS2SInput as ConvS2SInput
from posembed.inputs.text_models import GPT1Input as GPT1Input
from posembed.inputs.text_models import GPT2Input as GPT2Input
from posembed.inputs.text_models import OPTInput as OPTInput
from posembed.inputs.text_models import RobertaInput as RobertaInput
from posembed.inputs.text_models import TransformerInput as TransformerInput
from posembed.inputs.text_models import WhisperDecoderInput as WhisperDecoderInput
from posembed.inputs.vit import DeiTInput as DeiTInput
from posembed.inputs.vit import ViTInput as ViTInput
