"""Attention, encoders and decoders that take any PositionEncoding, given as an object or by name.

    layers                      Attention, CrossAttention, EncoderLayer, DecoderLayer
    stacks                      Encoder, Decoder, gpt2_init_
    encodings by name           ENCODINGS, Sizes, encoding_by_name
    an encoding per layer       PerLayer
    shared by the layers        Positions, Memory, KeyValueCache

Call a layer or stack as ``layer(x, position_ids=None, *, offset=0, mask=None, ...)``: x (B, L, D) -> (B, L, D). A text
gives the same results whether it is padded, unpadded, packed, or read token by token with a cache.
"""

from posembed.nn.attention import Attention as Attention
from posembed.nn.cache import KeyValueCache as KeyValueCache
from posembed.nn.encodings import ENCODINGS as ENCODINGS
from posembed.nn.encodings import Sizes as Sizes
from posembed.nn.encodings import encoding_by_name as encoding_by_name
from posembed.nn.memory import CrossAttention as CrossAttention
from posembed.nn.memory import Memory as Memory
from posembed.nn.per_layer import PerLayer as PerLayer
from posembed.nn.positions import Positions as Positions
from posembed.nn.transformer import Decoder as Decoder
from posembed.nn.transformer import DecoderLayer as DecoderLayer
from posembed.nn.transformer import Encoder as Encoder
from posembed.nn.transformer import EncoderLayer as EncoderLayer
from posembed.nn.transformer import gpt2_init_ as gpt2_init_
