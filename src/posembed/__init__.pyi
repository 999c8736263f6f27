from . import inputs as inputs
from . import positions as positions
from .checkpoints.evaluate import evaluate_checkpoints as evaluate_checkpoints
from .checkpoints.inspect import inspect_checkpoint as inspect_checkpoint
from .checkpoints.live import resize_model_ as resize_model_
from .checkpoints.resize import resize_checkpoint as resize_checkpoint
from .errors import ArgumentError as ArgumentError
from .errors import CheckpointError as CheckpointError
from .errors import DataError as DataError
from .errors import PosEmbedError as PosEmbedError
from .errors import PositionError as PositionError
from .errors import RunFolderError as RunFolderError
from .layers.alibi import Alibi as Alibi
from .layers.base import PositionEncoding as PositionEncoding
from .layers.grid import LearnedGridEmbedding as LearnedGridEmbedding
from .layers.learned import LearnedPositionalEmbedding as LearnedPositionalEmbedding
from .layers.none import NoPosition as NoPosition
from .layers.rolling import RollingPositionalEmbedding as RollingPositionalEmbedding
from .layers.rotary import RotaryEmbedding as RotaryEmbedding
from .layers.sinusoidal import SinusoidalPositionalEmbedding as SinusoidalPositionalEmbedding
from .tables.health import Finding as Finding
from .tables.health import check_table as check_table
from .tables.layout import PADDING as PADDING
from .tables.layout import TableLayout as TableLayout
from .tables.resize import leading_rows_kept as leading_rows_kept
from .tables.resize import resize_table as resize_table

__version__: str
