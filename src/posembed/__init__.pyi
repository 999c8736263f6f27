from .errors import ArgumentError as ArgumentError
from .errors import CheckpointError as CheckpointError
from .errors import DataError as DataError
from .errors import PosEmbedError as PosEmbedError
from .errors import PositionError as PositionError
from .errors import RunFolderError as RunFolderError
from .layers.base import PositionEncoding as PositionEncoding

__version__: str
