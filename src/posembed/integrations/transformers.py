"""Any encoding inside a transformers model: ``replace_positions``, ``from_pretrained``, ``TableCallback``.

    model = replace_positions(AutoModelForCausalLM.from_config(config), "rope")
    model.save_pretrained("folder")
    model = posembed.integrations.transformers.from_pretrained("folder")

The model keeps everything except its position table. It uses the attention that posembed registers with transformers
(``attention.py``). No module is patched, except in GPT-Neo, which does not use registered attention.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, PreTrainedModel

from posembed.errors import ArgumentError, CheckpointError, PosEmbedError
from posembed.integrations.attention import NAME
from posembed.integrations.callback import TableCallback as TableCallback
from posembed.integrations.install import find_slot, install, try_out
from posembed.integrations.saved import rebuilt
from posembed.layers.base import PositionEncoding
from posembed.layers.none import NoPosition

FOR_BOTH = ("revision", "token", "cache_dir", "local_files_only", "subfolder", "force_download", "dtype")
"""Arguments that loading the config consumes, but loading the weights also needs."""


def replace_positions(model: PreTrainedModel, encoding: PositionEncoding | str, **sizes: Any) -> PreTrainedModel:
    """Replaces the position table of a transformers model with an encoding, in place. Returns the model.

    Positions count only the tokens in the attention mask, so padding on either side changes nothing. In training, an
    encoding with random positions draws them from torch's default generator. Create the optimizer after this call.

    Args:
        model: a model with one learned position table: BERT, RoBERTa, DistilBERT, ELECTRA, GPT-2, GPT-Neo, OPT, ViT,
            DeiT and others whose attention uses the transformers interface. It gets a copy of its config, in which
            ``max_position_embeddings`` (or a similar field) is the encoding's length, if the encoding has one.
        encoding: a PositionEncoding, or its name in ``posembed.nn.ENCODINGS``. Encodings for sequences also work on
            images, whose patches then form a line.
        sizes: fields of ``posembed.nn.Sizes``, such as ``window=256``, for an encoding given by its name. max_len
            defaults to the length of the old table.

    Raises:
        ArgumentError: the model cannot be changed, or the encoding is unknown or does not fit. The model is then
            unchanged.
    """
    with ExitStack() as undo:
        try:
            if find_slot(model) is None:
                slot, base = install(model, NoPosition(), {}, undo, causal=False)
                causal = try_out(base, slot)
            else:
                causal = None
            try_out(*reversed(install(model, encoding, sizes, undo, causal=causal)))
        except PosEmbedError:
            raise
        except Exception as error:
            raise ArgumentError(
                f"{type(model).__name__} does not run with a replaced position table, and is unchanged "
                f"({type(error).__name__}: {error})"
            ) from error
        undo.pop_all()
    return model


def from_pretrained(
    folder: str | Path,
    model_class: type[PreTrainedModel] | None = None,
    *,
    encoding: PositionEncoding | None = None,
    **kwargs: Any,
) -> PreTrainedModel:
    """Loads a model that was saved after ``replace_positions``, with its encoding.

    Args:
        folder: a folder written by ``save_pretrained``, or a repository on the hub.
        model_class: a transformers class. None means the class that was saved.
        encoding: an encoding built like the saved one, required if it is not from posembed. Its values come from the
            files.
        kwargs: as for ``PreTrainedModel.from_pretrained``.

    Raises:
        ArgumentError: the folder was not saved after ``replace_positions``, or the encoding must be passed.
        CheckpointError: the files do not hold all values of the encoding.
    """
    config, others = AutoConfig.from_pretrained(folder, return_unused_kwargs=True, **kwargs)
    others |= {name: kwargs[name] for name in FOR_BOTH if name in kwargs}
    saved = getattr(config, NAME, None)
    if not isinstance(saved, dict):
        raise ArgumentError(
            f"{folder}: config.json has no entry {NAME!r}, so it was not saved after replace_positions; load it with "
            "transformers"
        )
    if encoding is None and saved["encoding"] is None:
        raise ArgumentError(f"{folder}: its encoding is not from posembed; pass encoding=, built like the saved one")
    chosen, causal = rebuilt(saved["encoding"]) if encoding is None else encoding, saved["causal"]
    kind = getattr(transformers, config.architectures[0]) if model_class is None else model_class
    delattr(config, NAME)
    config._attn_implementation = None

    class Loading(kind):  # type: ignore[misc, valid-type]
        """The model's class, which installs the encoding before the files are read."""

        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, *args, **kwargs)
            install(self, chosen, {}, ExitStack(), causal=causal)

    Loading.__name__, Loading.__module__ = kind.__name__, kind.__module__
    model, report = Loading.from_pretrained(folder, config=config, output_loading_info=True, **others)
    model.__class__ = kind
    path, slot = find_slot(model) or ("", None)
    unread = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}
    unread = {key for key in unread if key.startswith(path)}
    if slot is None or unread:
        raise CheckpointError(f"{folder}: the files do not hold {', '.join(sorted(unread))} of the encoding")
    return replace_positions(model, slot.encoding)
