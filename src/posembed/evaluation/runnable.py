"""A checkpoint that can be run: its kind, the length it takes, its model and its tokenizer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from posembed.checkpoints.find import find_tables
from posembed.checkpoints.settings import SENTENCE_SETTINGS, fed_length
from posembed.checkpoints.sources.base import quiet, read_whole
from posembed.checkpoints.sources.configs import config_object
from posembed.checkpoints.sources.model_types import open_model
from posembed.errors import CheckpointError
from posembed.evaluation.settings import Kind
from posembed.evaluation.ways import POOL
from posembed.modelfiles.checkpoint import Checkpoint
from posembed.modelfiles.copies import recorded
from posembed.modelfiles.folders import (
    OF_SENTENCES,
    SENTENCE_ENCODER,
    VOCABULARIES,
    has_vocabulary,
    read_modules,
    sentence_class,
)
from posembed.modelfiles.json_files import read_json
from posembed.words import last_line, least

TOKENIZER = "tokenizer_config.json"  # all of a tokenizer of bytes or characters, such as CANINE's
MODULES = ("Transformer", "Pooling", "Normalize")
FEW = 8
"""The number of tokens that show whether a model sees the tokens that it predicts."""


@dataclass(frozen=True, eq=False)
class Runnable:
    """A checkpoint that can be run, described by its settings and headers. Its weights are not loaded.

    name: the source that the user gave, or the end of its path. path: the whole path; "" if the name is the source.
    rows: the number of positions in its table; None if no table limits the length.
    fed: the maximum number of tokens that sentence-transformers feeds to a sentence encoder, if its settings limit it.
    old_length: the number of tokens that the model took originally, before its first resize; None if unknown.
    window: the size of its attention windows in tokens, if it has any. The model pads texts to a multiple of this size.
    pooling: a key of ``POOL``, for a sentence encoder.
    """

    name: str
    checkpoint: Checkpoint
    kind: Kind
    rows: int | None
    fed: int | None
    old_length: int | None
    window: int | None
    pooling: str | None = None
    path: str = ""

    @property
    def length(self) -> int | None:
        """The maximum number of tokens that the checkpoint takes; None means no limit."""
        return least(self.rows, self.fed)

    def notes_on(self, lengths: Sequence[int]) -> Iterator[str]:
        """Yields remarks about this checkpoint at these lengths, one line each."""
        if self.length is not None and self.length < max(lengths):
            limits = {"positions": self.rows, "max_seq_length or tokenizer limit": self.fed}
            known = ", ".join(f"{what}: {limit:,}" for what, limit in limits.items() if limit is not None)
            yield f"{self.name} takes at most {self.length:,} tokens ({known})."
        if self.kind == "sentences" and self.compares_by != "cosine":
            yield f"{self.name} is made for comparing by {self.compares_by}; here, its vectors are compared by cosine."
        odd = ", ".join(f"{length}" for length in lengths if self.window is not None and length % self.window)
        if odd:
            yield f"{self.name} attends in windows of {self.window:,} tokens, so at {odd} it also processes padding."

    def called(self, names: Mapping[str, str], source: str) -> Runnable:
        """Returns the checkpoint with the name of ``source`` in ``names``, which ``short_names`` returns."""
        return replace(self, name=names[source], path=source * (names[source] != source))

    @property
    def folder(self) -> Path:
        assert self.checkpoint.folder is not None
        return self.checkpoint.folder

    @cached_property
    def sha256(self) -> str:
        """A hash of the weights, the config and the pooling: everything that the outputs depend on except the text."""
        digest = hashlib.sha256(f"{self.kind} {self.pooling}".encode())
        for path in (self.folder / self.checkpoint.config_name, *(file.path for file in self.checkpoint.weights)):
            with path.open("rb") as file:
                while block := file.read(1 << 24):
                    digest.update(block)
        return digest.hexdigest()

    def prompt(self, *names: str) -> str:
        """Returns the first of these prompts in the settings of a sentence encoder, or else the default prompt."""
        path = self.checkpoint.root / OF_SENTENCES
        settings = read_json(path) if path.exists() else {}
        prompts = settings.get("prompts")
        known = prompts if isinstance(prompts, dict) else {}
        found = [known[name] for name in (*names, settings.get("default_prompt_name")) if name in known]
        return found[0] if found and isinstance(found[0], str) else ""

    @property
    def loading(self) -> dict[str, Any]:
        """The arguments for loading with transformers: the config, if transformers could not read it."""
        return {"config": config_object(self.checkpoint.config or {})} if self.checkpoint.model_type else {}

    def refuse_apart(self, prompt: str) -> None:
        """Refuses a prompt that sentence-transformers would leave out of the mean of a text's vectors."""
        for kind, folder in read_modules(self.checkpoint.root) if prompt else ():
            path = self.checkpoint.root / folder / "config.json"
            if kind == "Pooling" and path.exists() and read_json(path).get("include_prompt") is False:
                apart = f"leaves the prompt {prompt!r} out of its vectors (include_prompt in {folder}/config.json)"
                raise CheckpointError(f"{self.name}: {apart}, which is not supported; give an empty prompt")

    @property
    def compares_by(self) -> str:
        """How the vectors of a sentence encoder are meant to be compared, such as "cosine" or "dot"."""
        path = self.checkpoint.root / OF_SENTENCES
        return str((read_json(path) if path.exists() else {}).get("similarity_fn_name") or "cosine")

    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        if not has_vocabulary(self.folder) and not (self.folder / TOKENIZER).exists():
            expected = f"expected a tokenizer next to the weights ({', '.join((*VOCABULARIES, TOKENIZER))})"
            raise CheckpointError(f"{self.name}: {expected}; save the model's own tokenizer into that folder")
        try:
            with quiet():
                tokenizer = AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False, **self.loading)
        except Exception as error:  # each tokenizer class raises its own errors
            why = f"transformers cannot load its tokenizer ({last_line(error)})"
            raise CheckpointError(f"{self.name}: {why}") from error
        if self.lowers_case:
            from tokenizers import normalizers

            inner = tokenizer.backend_tokenizer
            first = [normalizers.Lowercase(), *([inner.normalizer] if inner.normalizer else [])]
            inner.normalizer = normalizers.Sequence(first)
        return tokenizer

    @property
    def lowers_case(self) -> bool:
        """Whether sentence-transformers turns texts into lower case before the tokenizer reads them."""
        of_sentences = map(self.checkpoint.settings, SENTENCE_SETTINGS)
        return self.kind == "sentences" and any(settings.get("do_lower_case") is True for settings in of_sentences)

    def model(self, device: str | torch.device) -> nn.Module:
        import transformers

        config = self.checkpoint.config
        assert config is not None
        architecture, headless = (config.get("architectures") or [""])[0], self.kind in ("sentences", "images")
        own = architecture.endswith(("WithProjection", "EncoderModel")) and hasattr(transformers, architecture)
        auto = headless and not own  # own: CLIP's projections, and T5's encoder alone
        kind = transformers.AutoModel if auto else getattr(transformers, architecture)
        try:
            model, loading = read_whole(kind, self.folder, **self.loading)
        except Exception as error:
            raise CheckpointError(f"{self.name}: transformers cannot load it ({last_line(error)})") from error
        # The vectors of encoders are made of the states before the pooler, so the pooler may be missing.
        missing = [key for key in loading["missing_keys"] if not (headless and "pooler" in key)]
        if missing:
            lacks = f"its files lack {', '.join(sorted(missing)[:3])}, which would be random"
            raise CheckpointError(f"{self.name}: {lacks}; evaluate a checkpoint with all of the model's weights")
        model = model.eval().to(device)
        if self.kind == "causal" and sees_ahead(model):
            raise CheckpointError(
                f"{self.name}: it sees the tokens that it predicts (a BERT trained as a decoder has is_decoder in "
                "config.json); give a causal model, or one with the head of a masked language model"
            )
        return model


def sees_ahead(model: Any) -> bool:
    """Whether the last of a few tokens changes what a language model predicts before it."""
    device = next(model.parameters()).device
    ids = torch.arange(FEW) + torch.tensor([[0], [1]]) * (torch.arange(FEW) == FEW - 1)
    with torch.inference_mode():
        try:
            ids = ids % model.get_input_embeddings().num_embeddings
            one, two = model(
                input_ids=ids.to(device), attention_mask=torch.ones_like(ids, device=device)
            ).logits.float()
        except Exception:  # it takes no such text; the evaluation will say so
            return False
    gap = (one[: FEW - 1] - two[: FEW - 1]).abs().max()
    return bool(gap > 1e-4 * (one - two).abs().max())


def short_names(sources: Sequence[str], hub: Collection[str] = ()) -> dict[str, str]:
    """Returns a name for each path: its shortest end that no other path has. hub: sources that stay unchanged."""
    parts = {source: Path(source).parts for source in sources}

    def short(source: str) -> str:
        for count in range(1, len(parts[source]) + 1):
            if [other for other in sources if parts[other][-count:] == parts[source][-count:]] == [source]:
                return str(Path(*parts[source][-count:]))
        return source

    return {source: source if source in hub else short(source) for source in sources}


HEAD_NEEDED = "evaluate the checkpoint that has the model's head"


def open_runnable(source: str | Path, *, remedy: str = HEAD_NEEDED, model_type: str | None = None) -> Runnable:
    """Opens a checkpoint that can be run. Raises CheckpointError, which ends in ``remedy`` for an unknown model."""
    checkpoint = open_model(source, model_type)
    config = checkpoint.config
    if checkpoint.folder is None or config is None or "model_type" not in config:
        expected = (
            "a folder of transformers or sentence-transformers, with a tokenizer, and config.json with model_type"
        )
        raise CheckpointError(f"{source}: expected {expected} (or pass --model-type); weights alone cannot be run")
    if (sentences := sentence_class(checkpoint.root)) not in ("", SENTENCE_ENCODER):
        raise CheckpointError(f"{source}: expected a language model or a sentence encoder, got a {sentences}; {remedy}")
    kind: Kind = "sentences" if sentences else language_model(source, config, remedy)
    fed, pooling = fed_length(checkpoint), pooling_of(checkpoint) if sentences else None
    found = find_tables(config, checkpoint.tensors)
    rows = least(*(table.length for table in found.understood if not table.layout.axes))
    claimed = getattr(found.config, "max_position_embeddings", None) if rows is None else rows
    old = least(length_before(checkpoint), claimed, fed)
    return Runnable(str(source), checkpoint, kind, rows, fed, old, window_of(config), pooling)


def window_of(config: dict[str, Any]) -> int | None:
    """Returns the largest attention window among the layers of a model such as Longformer."""
    windows = config.get("attention_window")
    windows = windows if isinstance(windows, list) else [windows]
    return max((size for size in windows if type(size) is int and size > 0), default=None)


def language_model(source: str | Path, config: dict[str, Any], remedy: str) -> Kind:
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    architecture = (config.get("architectures") or [None])[0]
    if not config.get("is_encoder_decoder"):
        if architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() and config.get("causal") is True:
            return "causal"  # XLM and FlauBERT
        if architecture in MODEL_FOR_MASKED_LM_MAPPING_NAMES.values():
            return "masked"
        if architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
            return "causal"
    expected = "a causal or masked language model, or a sentence encoder (a folder with modules.json)"
    raise CheckpointError(f"{source}: expected {expected}, but config.json names {architecture}; {remedy}")


def length_before(checkpoint: Checkpoint) -> int | None:
    """Returns the usable length before the first resize, according to the checkpoint's record."""
    (first, *_) = recorded(checkpoint.root, "resizes") or [{}]
    before = first.get("from")
    return before if type(before) is int else None


def pooling_of(checkpoint: Checkpoint) -> str:
    pooling: Any = "mean"
    for kind, folder in read_modules(checkpoint.root):
        if kind not in MODULES:
            raise CheckpointError(
                f"{checkpoint.root} has the module {kind}; only {', '.join(MODULES)} can be run here. posembed resize "
                "takes the checkpoint, and sentence-transformers runs the result"
            )
        settings = checkpoint.root / folder / "config.json"
        if kind == "Pooling" and settings.exists():
            config = read_json(settings)
            # The config has one name, or in older versions one flag per mode, such as pooling_mode_mean_tokens.
            flags = [name for name, on in config.items() if name.startswith("pooling_mode_") and on is True]
            modes = [re.sub("^pooling_mode_|_tokens?$", "", flag) for flag in flags]
            pooling = config.get("pooling_mode") or (modes[0] if len(modes) == 1 else modes)
    if pooling not in tuple(POOL):
        raise CheckpointError(f"{checkpoint.root}: pools by {pooling}; expected one of {', '.join(POOL)}")
    return pooling
