"""Whole input layers of known models: token + position (+ type) (+ norm) (+ dropout), in the model's own order.

    BertInput RobertaInput      GPT1Input GPT2Input OPTInput     BartInput WhisperDecoderInput
    CLIPTextInput               ViTInput DeiTInput               TransformerInput ConvS2SInput

Every layer for text is called as ``layer(token_ids, position_ids=None, *, offset=0, mask=None)`` -> (B, L, D):

    token_ids       (B, L), integers.
    position_ids    (L,) or (B, L), integers from 0: where each token stands. None: counted.
    offset          how many tokens came before, a number or (B,): decoding with a cache.
    mask            (B, L), 1 where a token is and 0 where there is padding, left, right or between; or (B, K),
                    K > L, where it covers earlier tokens too, as an attention mask does while decoding.

A position that has no row raises PositionError, arguments that do not fit ArgumentError. ``from_checkpoint`` reads
the layer's own tensors, and no others, from a model's folder or hub name, in the dtype in which they are stored,
and gives the layer in ``eval`` mode; what cannot be read raises CheckpointError.

Parameters of text layers have the names that they have in the model, so that a layer which takes the place of a
model's own is saved with the model as before. The state dict holds weights and nothing else.
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
