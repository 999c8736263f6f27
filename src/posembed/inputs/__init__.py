"""The whole input layers of known models: token + position (+ type) (+ norm) (+ dropout), in the model's order.

    BertInput RobertaInput      GPT1Input GPT2Input OPTInput     BartInput WhisperDecoderInput
    CLIPTextInput               ViTInput DeiTInput               TransformerInput ConvS2SInput

Every text layer is called as ``layer(token_ids, position_ids=None, *, offset=0, mask=None)`` -> (B, L, D):

    token_ids       (B, L), integers.
    position_ids    (L,) or (B, L), integers from 0: the position of each token. None means counted.
    offset          the number of earlier tokens when decoding with a cache, a number or (B,).
    mask            (B, L), 1 for a token and 0 for padding, left, right or between; or (B, K), K > L, if it also
                    covers earlier tokens, as an attention mask does while decoding.

A position without a row raises PositionError, arguments that do not fit raise ArgumentError. ``from_checkpoint``
reads only the layer's own tensors from a model's folder or hub name, in their stored dtype, and returns the layer
in ``eval`` mode; it raises CheckpointError for files that it cannot read.

Parameters of text layers have the model's own names, so that a layer put into a model is saved with it as before.
The state dict holds weights and nothing else.
"""

from posembed.inputs.bart import BartInput as BartInput
from posembed.inputs.bart import OPTInput as OPTInput
from posembed.inputs.bert import BertInput as BertInput
from posembed.inputs.clip_text import CLIPTextInput as CLIPTextInput
from posembed.inputs.convs2s import ConvS2SInput as ConvS2SInput
from posembed.inputs.gpt1 import GPT1Input as GPT1Input
from posembed.inputs.gpt2 import GPT2Input as GPT2Input
from posembed.inputs.roberta import RobertaInput as RobertaInput
from posembed.inputs.transformer import TransformerInput as TransformerInput
from posembed.inputs.vit import DeiTInput as DeiTInput
from posembed.inputs.vit import ViTInput as ViTInput
from posembed.inputs.whisper import WhisperDecoderInput as WhisperDecoderInput
