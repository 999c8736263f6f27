"""A checkpoint that can be run: what kind of model it is, how long a text it takes, its model and tokenizer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from posembed.checkpoints.find import find_tables
from posembed.checkpoints.rebuild import first_line, quiet
from posembed.checkpoints.settings import SENTENCE_SETTINGS
from posembed.errors import CheckpointError
from posembed.modelfiles.checkpoint import Checkpoint, open_checkpoint
from posembed.modelfiles.earlier import RECORD
from posembed.modelfiles.json_files import read_json
from posembed.modelfiles.names import is_plain_name

Kind = Literal["causal", "masked", "sentences"]
KINDS: dict[Kind, str] = {
    "causal": "a causal language model",
    "masked": "a masked language model",
    "sentences": "a sentence encoder",
}
POOLINGS = ("mean", "cls", "max")
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json")
MODULES = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True, eq=False)
class Runnable:
    """A checkpoint before anything of it is loaded.

    name: as the user named it. rows: how many positions its table holds; None where none limits it.
    fed: how many tokens sentence-transformers feeds a sentence encoder at most, where its settings say that.
    old_length: how many it took before it was resized, or was made for, where that is known.
    window: attention in windows of so many tokens, to a multiple of which the model fills up every text.
    pooling: of a sentence encoder.
    """

    name: str
    checkpoint: Checkpoint
    kind: Kind
    rows: int | None
    fed: int | None
    old_length: int | None
    window: int | None
    pooling: str | None = None

    @property
    def length(self) -> int | None:
        """How many tokens it takes; None where nothing limits that."""
        return least(self.rows, self.fed)

    def notes_on(self, lengths: Sequence[int]) -> Iterator[str]:
        """What a reader must know of this checkpoint at these lengths, a line each."""
        longest = max(lengths)
        if self.fed is not None and self.length == self.fed < longest and self.fed != self.rows:
            more = "" if self.rows is None else f"; its table holds {self.rows:,} positions"
            yield f"{self.name} is fed {self.fed:,} tokens at most, by its max_seq_length or its tokenizer{more}."
        elif self.rows is not None and self.rows < longest:
            yield f"{self.name} holds {self.rows:,} positions: it has no row beyond."
        odd = [length for length in lengths if self.window is not None and length % self.window]
        if odd:
            yield (
                f"{self.name} attends in windows of {self.window:,} tokens; at {', '.join(map(str, odd))}, no "
                "multiple of that, it works on padding too."
            )

    @property
    def folder(self) -> Path:
        assert self.checkpoint.folder is not None
        return self.checkpoint.folder

    @cached_property
    def sha256(self) -> str:
        """Over the weights, the config and the pooling: what its answers hang on, beside its tokens."""
        digest = hashlib.sha256(f"{self.kind} {self.pooling}".encode())
        for path in (self.folder / self.checkpoint.config_name, *(file.path for file in self.checkpoint.weights)):
            with path.open("rb") as file:
                while block := file.read(1 << 24):
                    digest.update(block)
        return digest.hexdigest()

    def tokenizer(self) -> Any:
        """Raises CheckpointError where transformers finds none that it can read."""
        from transformers import AutoTokenizer

        # Without files, transformers makes up an empty tokenizer of the family.
        if not any(path.name in TOKENIZERS or path.suffix == ".model" for path in self.folder.iterdir()):
            raise CheckpointError(
                f"{self.name}: expected a tokenizer beside the weights ({', '.join(TOKENIZERS)}); save the "
                "model's own into that folder"
            )
        try:
            with silent():
                return AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False)
        except Exception as error:  # each tokenizer class has errors of its own
            raise CheckpointError(
                f"{self.name}: transformers cannot load its tokenizer ({first_line(error)})"
            ) from error

    def model(self, device: str | torch.device) -> nn.Module:
        """The model in evaluation mode. Raises CheckpointError where weights are missing or cannot be loaded."""
        import transformers

        config = self.checkpoint.config
        assert config is not None
        sentences = self.kind == "sentences"
        kind = transformers.AutoModel if sentences else getattr(transformers, config["architectures"][0])
        try:
            with silent():
                model, loading = kind.from_pretrained(self.folder, output_loading_info=True, trust_remote_code=False)
        except Exception as error:
            raise CheckpointError(f"{self.name}: transformers cannot load it ({first_line(error)})") from error
        # What a sentence encoder is read from lies before the pooler.
        missing = [key for key in loading["missing_keys"] if not (sentences and "pooler" in key)]
        if missing:
            raise CheckpointError(
                f"{self.name}: its files do not hold {', '.join(sorted(missing)[:3])}, which would be random"
            )
        return model.eval().to(device)


def open_runnable(source: str | Path) -> Runnable:
    """What a checkpoint is, from its settings and headers alone.

    Raises:
        CheckpointError: not a folder of a causal or masked language model or of a sentence encoder.
    """
    checkpoint = open_checkpoint(source)
    config = checkpoint.config
    if checkpoint.folder is None or config is None or "model_type" not in config:
        raise CheckpointError(
            f"{source}: expected a model's folder as transformers or sentence-transformers write it, with "
            "config.json and a tokenizer; weights alone cannot be run"
        )
    pooling = None
    if (checkpoint.root / "modules.json").exists():
        kind: Kind = "sentences"
        pooling = pooling_of(checkpoint)
    else:
        kind = language_model(source, config)
    found = find_tables(config, checkpoint.tensors)
    rows = least(*(table.length for table in found.understood if table.layout.grid is None))
    fed = fed_length(checkpoint) if kind == "sentences" else None
    known = found.built.config if found.built else None
    claimed = getattr(known, "max_position_embeddings", None) if rows is None else rows
    old = least(length_before(checkpoint), claimed, fed)
    return Runnable(str(source), checkpoint, kind, rows, fed, old, window_of(config), pooling)


def least(*numbers: int | None) -> int | None:
    """The smallest of those that are known."""
    return min((number for number in numbers if number is not None), default=None)


def fed_length(checkpoint: Checkpoint) -> int | None:
    """sentence-transformers' max_seq_length, or without one, as version 6 saves models, the tokenizer's limit."""
    said = [(checkpoint.settings(name) or {}).get("max_seq_length") for name in SENTENCE_SETTINGS]
    limits = [fed for fed in said if type(fed) is int and fed > 0]
    tokenizer = (checkpoint.settings("tokenizer_config.json") or {}).get("model_max_length")
    return least(*limits) if limits or type(tokenizer) is not int or tokenizer < 1 else tokenizer


def window_of(config: dict[str, Any]) -> int | None:
    """The largest window of a model that attends in windows, such as Longformer; its layers may differ."""
    windows = config.get("attention_window")
    sizes = [size for size in (windows if isinstance(windows, list) else [windows]) if type(size) is int]
    return max((size for size in sizes if size > 0), default=None)


def language_model(source: str | Path, config: dict[str, Any]) -> Kind:
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    architecture = (config.get("architectures") or [None])[0]
    if not config.get("is_encoder_decoder"):
        if architecture in MODEL_FOR_MASKED_LM_MAPPING_NAMES.values():
            return "masked"
        if architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
            return "causal"
    raise CheckpointError(
        f"{source}: expected {', '.join(KINDS.values())} (a folder with modules.json), and config.json names "
        f"{architecture}; evaluate the checkpoint that has the model's head"
    )


def length_before(checkpoint: Checkpoint) -> int | None:
    """The usable length that the model had before its first resize, as its record says."""
    path = checkpoint.root / RECORD
    resizes = read_json(path).get("resizes") if path.exists() else None
    first = resizes[0] if isinstance(resizes, list) and resizes else None
    before = first.get("from") if isinstance(first, dict) else None
    return before if type(before) is int else None


def pooling_of(checkpoint: Checkpoint) -> str:
    """How a sentence encoder makes one vector of many: "mean", "cls" or "max"."""
    path = checkpoint.root / "modules.json"
    pooling: Any = "mean"
    for module in read_json(path, expected=list):
        described = module if isinstance(module, dict) else {}
        kind, folder = str(described.get("type", "")).rpartition(".")[2], str(described.get("path", ""))
        if folder and not is_plain_name(folder):
            raise CheckpointError(f"{path}: names the folder {folder!r}, outside its own; not followed")
        if kind not in MODULES:
            raise CheckpointError(f"{checkpoint.root}: has the module {kind}; only {', '.join(MODULES)} can be run")
        settings = checkpoint.root / folder / "config.json"
        if kind == "Pooling" and settings.exists():
            config = read_json(settings)
            # One name, or, as older versions write it, a flag each: pooling_mode_mean_tokens, ..._cls_token.
            flags = [name for name, on in config.items() if name.startswith("pooling_mode_") and on is True]
            modes = [re.sub("^pooling_mode_|_tokens?$", "", flag) for flag in flags]
            pooling = config.get("pooling_mode") or (modes[0] if len(modes) == 1 else modes)
    if pooling not in POOLINGS:
        raise CheckpointError(f"{checkpoint.root}: pools by {pooling}; expected one of {', '.join(POOLINGS)}")
    return pooling


@contextmanager
def silent() -> Iterator[None]:
    """Neither warnings nor bars of transformers' own."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with quiet():
            yield
    finally:
        if shown:
            logging.enable_progress_bar()
