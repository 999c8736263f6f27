"""Any encoding inside a transformers model: ``replace_positions``, ``from_pretrained``, ``TableCallback``.

    model = replace_positions(AutoModelForCausalLM.from_config(config), "rope")
    model.save_pretrained("folder")
    model = posembed.integrations.transformers.from_pretrained("folder")

The model keeps everything except its position table. It uses the attention that posembed registers with transformers
(``attention.py``). No module is patched, except in GPT-Neo, which does not use registered attention.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import transformers

from posembed.errors import ArgumentError, CheckpointError, PosEmbedError
from posembed.integrations.attention import NAME
from posembed.integrations.callback import TableCallback as TableCallback
from posembed.integrations.install import find_slot, install
from posembed.integrations.saved import encoding_of
from posembed.integrations.trial import VERSIONS, device_of, require_agreement, try_out
from posembed.layers.base import PositionEncoding
from posembed.layers.none import NoPosition
from posembed.versions import check_version, names_versions

with names_versions("transformers"):
    from transformers import AutoConfig, PreTrainedModel
    from transformers.models.auto.auto_factory import _BaseAutoModelClass

FOR_BOTH = ("revision", "token", "cache_dir", "local_files_only", "subfolder", "force_download")
"""Arguments that loading the config consumes, but loading the weights also needs."""
FOR_WEIGHTS = ("dtype", "torch_dtype")
"""Arguments for the weights alone. A config would store their values, such as "auto", as they are."""


@torch.inference_mode(False)  # or the new parameters could not be trained
def replace_positions(model: PreTrainedModel, encoding: PositionEncoding | str, **sizes: Any) -> PreTrainedModel:
    """Replaces the position table of a transformers model with an encoding, in place. Returns the model.

    Positions count only the tokens in the attention mask, so padding on either side changes nothing. In training, an
    encoding with random positions draws them from torch's default generator. Create the optimizer after this call.

    Args:
        model: a model with one learned position table: BERT, RoBERTa, DistilBERT, ELECTRA, GPT-2, GPT-Neo, OPT, ViT,
            DeiT and others whose attention uses the transformers interface. The model gets a copy of its config, in
            which ``max_position_embeddings``, ``image_size`` or a similar field has the encoding's length or grid.
        encoding: a PositionEncoding, or its name in ``posembed.nn.ENCODINGS``. Encodings for sequences also work on
            images, whose patches then form a line.
        sizes: fields of ``posembed.nn.Sizes``, such as ``window=256``, for an encoding given by its name. max_len
            defaults to the length of the old table.

    Raises:
        ArgumentError: the model cannot be changed, or the encoding is unknown or does not fit. The model is then
            unchanged.

    Examples:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from posembed.integrations.transformers import replace_positions
        >>> config = GPT2Config(n_layer=1, n_head=2, n_embd=32, n_positions=64, vocab_size=100)
        >>> model = replace_positions(GPT2LMHeadModel(config), "rope")
        >>> model.transformer.wpe.encoding
        RotaryEmbedding(16, base=10000.0, pairing='half_split', scaling=None, pairs=None)
    """
    check_version("transformers")
    if isinstance(model, PreTrainedModel) and device_of(model).type == "meta":
        raise ArgumentError(
            f"{type(model).__name__} is on the meta device, where it cannot be tried out with the encoding. Load its "
            "weights or build it on a CPU, call replace_positions, then move it"
        )
    with ExitStack() as undo:
        try:
            if find_slot(model) is None:
                slot, base = install(model, NoPosition(), {}, undo, causal=False)
                causal = try_out(base, slot)
            else:
                causal = None
            slot, base = install(model, encoding, sizes, undo, causal=causal)
            try_out(base, slot)
            require_agreement(base, slot)
        except PosEmbedError:
            raise
        except Exception as error:
            raise ArgumentError(
                f"{type(model).__name__} does not run with a replaced position table, and is unchanged "
                f"({type(error).__name__}: {error}; {VERSIONS})"
            ) from error
        undo.pop_all()
    return model


@names_versions("transformers")
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
        model_class: a transformers class, an auto class, or your own subclass. None means the class that was saved.
        encoding: an encoding built like the saved one, required if it is not from posembed. Its values come from the
            files.
        kwargs: as for ``PreTrainedModel.from_pretrained``.

    Raises:
        ArgumentError: the folder was not saved after ``replace_positions``, the class does not fit it, or the encoding
            must be passed or differs from the saved one.
        CheckpointError: the files do not hold exactly the values of the encoding.

    Examples:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from posembed.integrations.transformers import from_pretrained, replace_positions
        >>> config = GPT2Config(n_layer=1, n_head=2, n_embd=32, n_positions=64, vocab_size=100)
        >>> replace_positions(GPT2LMHeadModel(config), "alibi").save_pretrained("my-model")
        >>> type(from_pretrained("my-model")).__name__
        'GPT2LMHeadModel'
    """
    if kwargs.pop("attn_implementation", NAME) != NAME:
        raise ArgumentError(f"the encoding needs its own attention, {NAME!r}; leave out attn_implementation")
    others = {name: kwargs.pop(name) for name in FOR_WEIGHTS if name in kwargs}
    others |= {name: kwargs[name] for name in FOR_BOTH if name in kwargs}
    config, with_report = kwargs.pop("config", folder), kwargs.pop("output_loading_info", False)
    if isinstance(config, str | Path):
        config, unused = AutoConfig.from_pretrained(config, return_unused_kwargs=True, **kwargs)
        others |= unused
    else:
        config, others = copy.deepcopy(config), others | kwargs
    saved = getattr(config, NAME, None)
    if not isinstance(saved, dict):
        inside = [name for name, part in config.to_dict().items() if isinstance(part, dict) and NAME in part]
        if inside:
            raise ArgumentError(
                f"{folder}: the encoding belongs to a model inside ({inside[0]}), which this function does not load "
                "and transformers loads without it; build the model again, with replace_positions, then call "
                "load_state_dict"
            )
        raise ArgumentError(
            f"{folder}: config.json has no entry {NAME!r}, so it is of no model that was given to replace_positions; "
            "load it with transformers. If a part of it was, build it, call replace_positions on that part, then call "
            "load_state_dict"
        )
    chosen, causal = encoding_of(saved, encoding, folder)
    kind = _class_for(config, model_class, folder)
    delattr(config, NAME)
    config._experts_implementation = None

    class Loading(kind):  # type: ignore[misc, valid-type]
        """The model's class, which installs the encoding before the files are read."""

        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, *args, **kwargs)
            install(self, chosen, {}, ExitStack(), causal=causal, is_saved=True)
            path, _ = find_slot(self) or ("", None)
            owner = self.get_submodule(path.rpartition(".")[0])
            owner._is_hf_initialized = not owner._parameters  # else DistilBERT writes its sines into the slot

    Loading.__name__, Loading.__module__ = kind.__name__, kind.__module__
    model, report = Loading.from_pretrained(folder, config=config, output_loading_info=True, **others)
    model.__class__ = kind
    path, slot = find_slot(model) or ("", None)
    unread = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}
    unread = {key for key in unread if key.startswith(path)}
    if slot is None or unread:
        raise CheckpointError(f"{folder}: the files do not hold {', '.join(sorted(unread))} of the encoding")
    held = f".{path.removeprefix(kind.base_model_prefix + '.')}."
    if extra := sorted(key for key in report["unexpected_keys"] if held in f".{key}"):
        raise CheckpointError(f"{folder}: the files hold {', '.join(extra)}, which {slot.encoding} does not have")
    model = replace_positions(model, slot.encoding)
    return (model, report) if with_report else model


def _class_for(config: Any, given: Any, folder: str | Path) -> type[PreTrainedModel]:
    """Returns the class to load: the given class, the class that an auto class chooses, or the saved class."""
    name = (config.architectures or ["unknown"])[0]
    kind: Any = getattr(transformers, name, None) if given is None else given
    is_class = isinstance(kind, type)
    if is_class and issubclass(kind, _BaseAutoModelClass):
        kind = kind._model_mapping.get(type(config), None)
        kind = kind[0] if isinstance(kind, tuple) else kind
    if not (isinstance(kind, type) and issubclass(kind, PreTrainedModel)):
        raise ArgumentError(
            f"{folder} holds a {name}, and {given or name} is no model class of transformers for it; pass model_class="
        )
    expected: Any = kind.config_class  # type: ignore[attr-defined]
    if expected is not None and not isinstance(config, expected):
        raise ArgumentError(
            f"{folder} holds a {name}, which {kind.__name__} does not load; pass a class of {type(config).__name__}"
        )
    return kind
