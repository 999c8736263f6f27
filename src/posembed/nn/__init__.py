"""Attention, encoders and decoders that take any PositionEncoding, by object or by name.

    layers                      Attention, EncoderLayer, DecoderLayer
    stacks                      Encoder, Decoder, gpt2_init_
    encodings by name           ENCODINGS, Sizes, encoding_by_name
    what layers share           Positions, KeyValueCache

Call any of them as ``layer(x, position_ids=None, *, offset=0, mask=None, ...)``: x (B, L, D) -> (B, L, D). Padded,
unpadded and packed texts, and texts read token by token with a cache, give the same results.
"""

from posembed.nn.attention import Attention as Attention
from posembed.nn.cache import KeyValueCache as KeyValueCache
from posembed.nn.encodings import ENCODINGS as ENCODINGS
from posembed.nn.encodings import Sizes as Sizes
from posembed.nn.encodings import encoding_by_name as encoding_by_name
from posembed.nn.positions import Positions as Positions
from posembed.nn.transformer import Decoder as Decoder
from posembed.nn.transformer import DecoderLayer as DecoderLayer
from posembed.nn.transformer import Encoder as Encoder
from posembed.nn.transformer import EncoderLayer as EncoderLayer
from posembed.nn.transformer import gpt2_init_ as gpt2_init_
