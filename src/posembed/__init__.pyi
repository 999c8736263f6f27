from . import positions as positions
from .errors import ArgumentError as ArgumentError
from .errors import CheckpointError as CheckpointError
from .errors import DataError as DataError
from .errors import PosEmbedError as PosEmbedError
from .errors import PositionError as PositionError
from .errors import RunFolderError as RunFolderError
from .layers.base import PositionEncoding as PositionEncoding
from .layers.grid import LearnedGridEmbedding as LearnedGridEmbedding
from .layers.learned import LearnedPositionalEmbedding as LearnedPositionalEmbedding
from .tables.layout import PADDING as PADDING
from .tables.layout import TableLayout as TableLayout

__version__: str
