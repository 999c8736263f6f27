"""The models of the census: every type of transformers, every kind of model of timm, built small with random weights.

Their learned tables are found without posembed's own search: a table is a parameter that changes its shape with a
field of the config that gives a length, an image size, a number of frames, a window, a number of buckets or a largest
distance; or a parameter with the name of a table. ``NOT_TABLES`` lists what has such a name or such a shape, but no
order of positions, with the reason.
"""

from __future__ import annotations

import copy
import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from census_runs import runs_at_all
from census_settings import AFTERWARDS, CLASSES, NEEDED, set_afterwards
from census_timm import LARGE, SMALLER
from torch import Tensor, nn

from posembed.checkpoints.sources.configs import source_of
from posembed.checkpoints.sources.timm import windows_of

Path_ = tuple[str, ...]
Shape = tuple[int, ...]

SIZES = re.compile(
    r"pos|len|ctx|context|frames|block_size|image|img|input_size|resolution|grid|window|bucket|band|mel|bins|time|"
    r"distance|span|2d|max_|maskmem|num_patches|source|target|axial|extent"
)
NOT_SIZES = re.compile(
    r"vocab|hidden|intermediate|embed(?!dings$|ding_size$|ding_background_size$)|(?<!_)dim|head|layer|kernel|stride|"
    r"expert|channel|ffn|inner|patch_size|width|conv|dropout|std|rate$|d_model|norm|code(?!r)|output|group|mlp|attn|"
    r"batch|latent|num_blocks|feature_size|max_depth|token_id|step|image_token|repeats|single_inputs|feats|(?<!pos)emb_size"
)
TABLE = re.compile(
    r"pos(ition)?s?(al)?_?(emb|enc|bias)|embed_?positions?|positions?_embed|\bwpe\b|\bape\b|(patch|pixel)_pos\b|"
    r"rel_pos|rel_embed|rel_logits|rel_attn_embed|emb_rel_[kv]|(height|width)_rel|relative_(attention|position)|"
    r"attention_biases|distance_embedding|\bpe_k|bias_values|time_embeddings|temporal_\w*(pos|emb)|timestep|"
    r"row_emb|col(umn)?_emb|[xyhw]_position|axial|position_table|tile_embedding"
)
NOT_TABLES: Mapping[str, str] = {
    r"query_pos|query_embed|\bquery$|latents": "one row for each query, and queries have no order",
    r"\.bias$|norm|conv|patch_embedding\.weight|patch_embed\.proj": "part of a layer that treats all positions alike",
    r"pos_bias_[uv]|r_[wrs]_bias|linear_pos|pos_proj|k_proj|q_proj|v_proj|(pos|position)_?\w*(proj|proj\w*_layer\.weight|alpha|gate|scale)\b":
        "applied to all positions alike",
    r"shared_image_embedding|gaussian": "the random frequencies of a Fourier encoding",
    r"rel_ln_clip|gru_rel_pos|positional_embedding\.gate": "one factor for all positions",
    r"no_memory|occlusion|cls_position|class_pos|pos_cls": "one row, not one for each position",
    r"pos_enc_project|positional_encoder\.projector": "a linear layer over coordinates",
    r"distogram|dist_bin|pae_|pde_|plddt|rel_pos\.embed": "a linear layer over features of a protein",
    r"expert_bias|dt_bias|e_score|logit_bias|gate_bias|dense_bias|\.[qv]_bias$": "no positions",
    r"cpb_mlp|continuous_position|pos_mlp": "a small network of the distance: nothing is stored for each position",
    r"pos_(embed|embd|emb)\.(proj|token_projection|pos_enc)\b": "a convolution or a linear layer",
    r"rel_pos\.mlp|meta_mlp": "a small network of the distance: nothing is stored for each position",
    r"xpath": "one row for each tag of a web page",
    r"timestep_proj": "a layer over the frequencies of a step of diffusion",
}  # fmt: skip
LEVELS = ("short and narrow", "narrow", "few layers", "as published")
MOST_NUMBERS = 100_000_000
MOST_TIMM = 150_000_000
SHORT, LONG = 64, 256  # a longer text table is shortened to about SHORT positions
MOST_CELLS = 16  # the cells on a side of a grid
FEW_LAYERS = 2
FLAGS = re.compile(r"pos|relative|absolute|rel_")
CHOICES = ("learned", "relative", "relative_key", "absolute")
ALSO: Mapping[str, Mapping[str, Any]] = {  # settings without which a flag adds a table that nothing reads
    "relative_attention": {"pos_att_type": ["c2p", "p2c"]},
}


@dataclass
class Model:
    """One model of the census: how to build it at any size, and the learned tables in it.

    sizes: the path of each size in its config, with its value. tables: each table with the sizes that change its shape,
    and its shape when that size is doubled. excluded: parameters that look like tables, with the reason.
    """

    library: str
    name: str
    kind: Any
    config: Any
    level: str = ""
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    sizes: dict[Path_, Any] = field(default_factory=dict)
    tables: dict[str, dict[Path_, Shape]] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)

    def build(self, config: Any = None, *, device: str = "cpu") -> nn.Module:
        with torch.device(device):
            if self.library == "timm":
                return self.kind(**(config or self.config))
            return self.kind(copy.deepcopy(config or self.config))

    def resized(self, path: Path_, value: Any) -> Any:
        """Returns the config with another value of one size."""
        config = copy.deepcopy(self.config)
        if self.library == "timm":
            return config | {path[-1]: value}
        section = config
        for name in path[:-1]:
            section = getattr(section, name)
        setattr(section, path[-1], value)
        return config


def doubled(value: Any) -> Any:
    return type(value)(2 * each for each in value) if isinstance(value, list | tuple) else 2 * value


def shapes_of(model: nn.Module) -> dict[str, Shape]:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def find_tables(model: Model) -> None:
    """Fills in the tables of a model, by building it on the meta device with each of its sizes doubled."""
    sketch = model.build(device="meta")
    model.shapes = shapes_of(sketch)
    model.fixed = frozenset(name for name, parameter in sketch.named_parameters() if not parameter.requires_grad)
    found: dict[str, dict[Path_, Shape]] = {name: {} for name in model.shapes if TABLE.search(name)}
    for path, value in model.sizes.items():
        try:
            after = shapes_of(model.build(model.resized(path, doubled(value)), device="meta"))
        except Exception:
            continue
        for name, shape in model.shapes.items():
            if after.get(name, shape) != shape:
                found.setdefault(name, {})[path] = after[name]
    for name, changes in found.items():
        reason = next((why for pattern, why in NOT_TABLES.items() if re.search(pattern, name)), "")
        if not reason and not TABLE.search(name):
            reason = "depends on a size, and has no name of a table"
        one_row = model.shapes[name][-1:] == (torch.Size(model.shapes[name]).numel(),)
        if not reason and one_row and not name[-1:].isdigit():  # a list has a parameter for each position
            reason = "one row, not one for each position"
        if reason:
            model.excluded[name] = reason
        else:
            model.tables[name] = changes


# transformers


def sections(config: Any, above: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Yields a config of transformers and the configs inside it, each with its path."""
    from transformers import PretrainedConfig

    yield above, config
    for name, value in list(vars(config).items()):
        if isinstance(value, PretrainedConfig):
            yield from sections(value, (*above, name))


def sizes_in(config: Any) -> dict[Path_, Any]:
    found = {}
    for path, part in sections(config):
        for name, value in vars(part).items():
            whole = type(value) is int and value > 1
            several = isinstance(value, list | tuple) and value and all(type(each) is int for each in value)
            if SIZES.search(name) and not NOT_SIZES.search(name) and (whole or several):
                found[(*path, name)] = value
    return found


def class_of(config: Any, named: str = "") -> Any:
    """Returns the model class of a config: the named one, AutoModel's, or the one in its own module."""
    import transformers
    from transformers import MODEL_MAPPING, PreTrainedModel

    if named:
        return getattr(transformers, named)
    try:
        kind = MODEL_MAPPING.get(type(config), None)
        kind = kind[0] if isinstance(kind, list | tuple) else kind
        module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    except Exception:
        kind = module = None
    if kind is not None or module is None:
        return kind
    own = [
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, PreTrainedModel) and each.config_class is type(config)
        and not each.__name__.endswith("PreTrainedModel")
    ]  # fmt: skip
    whole = (each for end in ("Model", "Generation") for each in own if each.__name__.endswith(end))
    return next(whole, own[0] if own else None)


def shrink(config: Any, level: int) -> None:
    """Shrinks a config in place: 0 and 1 make it narrow, 0 also shortens its tables, 2 only leaves few layers."""
    if level > 2:
        return
    source_of(config).make_small(config, narrow=level < 2)
    for _, part in sections(config):
        for name, value in list(vars(part).items()):
            if name.endswith("separable_out_channel"):  # Phi-4's convolutions
                part.depthwise_separable_out_channel = part.ext_pw_out_channel = part.hidden_size
            elif name == "depths" and isinstance(value, list | tuple):
                setattr(part, name, type(value)(min(each, FEW_LAYERS) for each in value))
            elif "expert" in name and type(value) is int:
                setattr(part, name, min(value, 8))
            elif name == "stage_names" and isinstance(value, list):
                last = getattr(part, "num_hidden_layers", None) or len(getattr(part, "depths", value[1:]))
                part.stage_names = ["stem", *(f"stage{stage + 1}" for stage in range(last))]
                part._out_features, part._out_indices = [part.stage_names[-1]], [last]
            elif name in ("global_attn_indexes", "window_block_indices"):
                setattr(part, name, [index for index in value if index < FEW_LAYERS] or [FEW_LAYERS - 1])
            elif level == 0 and type(value) is int:
                shorten(part, name, value)


def shorten(part: Any, name: str, value: int) -> None:
    """Shortens a text table (514 -> 66, so that reserved rows stay) and an image that is a plain grid of patches."""
    if (
        re.search(r"position_embeddings|n_positions|_positions$|block_size", name)
        and value >= LONG
        and "num_" not in name
    ):
        setattr(part, name, SHORT + (value % SHORT if value % SHORT < 9 else 0))
    patch = getattr(part, "patch_size", None)
    if re.search(r"^(image_size|img_size)$", name) and type(patch) is int and not hasattr(part, "depths"):
        cells = value // patch
        if cells > MOST_CELLS:
            setattr(part, name, patch * (MOST_CELLS if cells % MOST_CELLS == 0 else 12))


def transformers_models(name: str) -> Iterator[Model]:
    """Yields the model of a type, then one for each setting that adds other tables to it. Raises an exception if the
    type cannot be built without the settings of a published model."""
    from transformers import CONFIG_MAPPING

    published = CONFIG_MAPPING[name](**NEEDED.get(name, {}))
    kind = class_of(published, CLASSES.get(name, ""))
    if kind is None:
        raise LookupError("transformers has no model for this config alone")
    base = smallest(name, kind, published)
    yield base
    seen = [set(base.shapes)]
    for path, part in sections(base.config):
        for option, value in list(vars(part).items()):
            choices: tuple[Any, ...] = ()
            if type(value) is bool and FLAGS.search(option) and "post" not in option:
                choices = (not value,)
            elif option == "num_image_with_embedding" and value is None:  # the frames of GIT for videos
                choices = (6,)
            elif option in ("position_embedding_type", "position_embeddings_type"):
                choices = tuple(choice for choice in CHOICES if choice != value)
            for choice in choices:
                try:
                    other = Model("transformers", f"{name} ({'.'.join((*path, option))}={choice})", kind, base.config)
                    other.config = other.resized((*path, option), choice)
                    for also, setting in ALSO.get(option, {}).items():
                        other.config = other.resized((*path, also), setting)
                    other.level, other.sizes = base.level, sizes_in(other.config)
                    find_tables(other)
                except Exception:
                    continue
                new = {each for each in other.tables if not any(each in names for names in seen)}
                if new:
                    seen.append(set(other.shapes))
                    yield other


def smallest(name: str, kind: Any, published: Any) -> Model:
    """Returns the smallest model of a type that can be built and, if it has tables, run; or else only built."""
    failure: Exception | None = None
    built: list[Model] = []
    for level, words in enumerate(LEVELS):
        config = copy.deepcopy(published)
        try:
            shrink(config, level)
            set_afterwards(config, AFTERWARDS.get(name, {}) if level <= 2 else {})
            config = type(config).from_dict(config.to_dict())  # as it is after saving and loading
            model = Model("transformers", name, kind, config, words)
            model.sizes = sizes_in(config)
            find_tables(model)
        except Exception as error:
            failure = failure or error
            continue
        if not model.tables:
            return model
        if sum(torch.Size(shape).numel() for shape in model.shapes.values()) > MOST_NUMBERS:
            failure = failure or MemoryError("too large to be built")
            continue
        built.append(model)
        with suppress(Exception):
            parts, whole = {changes_of(model, name): name for name in reversed(model.tables)}, model.build().eval()
            if all(runs_at_all(whole, name) for name in parts.values()):
                return model
    if built:
        return built[0]
    assert failure is not None
    raise failure


def changes_of(model: Model, name: str) -> frozenset[Path_]:
    return frozenset(model.tables[name])


def transformers_types() -> list[str]:
    from transformers import CONFIG_MAPPING

    return list(CONFIG_MAPPING)


def same_classes() -> dict[str, str]:
    """Maps each type that shares its config with an earlier type to that type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    firsts: dict[str, str] = {}
    for name, config in CONFIG_MAPPING_NAMES.items():
        firsts.setdefault(config, name)
    return {name: firsts[config] for name, config in CONFIG_MAPPING_NAMES.items() if firsts[config] != name}


# timm


def import_timm() -> Any:
    """Imports timm. Where torchvision is missing, or its compiled operators do not load, timm is imported without."""
    try:
        import torchvision
    except RuntimeError:  # the operators are missing
        for module in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[module]
        operators = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            operators.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision  # noqa: F401

        OPERATORS.append(operators)
    except ImportError:
        sys.path.append(str(Path(__file__).parents[1] / "tests"))
        importlib.import_module("timm_peer").vision_transformer()
    return importlib.import_module("timm")


OPERATORS: list[Any] = []  # kept, since an operator ends with its library object


def timm_models(name: str) -> Iterator[Model]:
    """Yields the smallest model of timm's file ``name`` for each set of tables that models of this file have."""
    timm = import_timm()
    smallest_of: dict[frozenset[tuple[str, int]], tuple[int, Model]] = {}
    for architecture in timm.list_models(module=name):
        model = Model("timm", architecture, partial(timm.create_model, architecture, pretrained=False), {})
        try:
            sketch = model.build(device="meta")
        except Exception:
            continue
        numbers = sum(parameter.numel() for parameter in sketch.parameters())
        named = table_names(sketch)
        if not named or numbers > MOST_TIMM or numbers >= smallest_of.get(named, (MOST_TIMM,))[0]:
            continue
        smallest_of[named] = numbers, model
    for _, model in smallest_of.values():
        with suppress(Exception):  # some classes take no depth, or have other tables in later layers
            whole, few = model.build(device="meta"), model.build({"depth": FEW_LAYERS}, device="meta")
            if table_shapes(whole) == table_shapes(few):
                model.config, model.level = {"depth": FEW_LAYERS}, LEVELS[2]
        height, width = model.build(device="meta").default_cfg["input_size"][1:]
        if height > LARGE:
            with suppress(Exception):
                model.build(model.config | {"img_size": SMALLER}, device="meta")
                height = width = model.config["img_size"] = SMALLER
        model.sizes = {("img_size",): height if height == width else (height, width)}
        for window in (7, 8, 12, 14, 16):  # the windows of published models, if any
            with suppress(Exception):
                if table_shapes(model.build(model.config | {"window_size": window}, device="meta")) == table_shapes(
                    model.build(device="meta")
                ):
                    model.sizes["window_size",] = window
        if windows := windows_of(model.build(device="meta")):
            model.sizes["window_sizes",] = windows
        with suppress(Exception):  # windows are no larger than their maps
            larger = {"img_size": doubled(model.sizes["img_size",])}
            if "window_size" in str(model.sizes) and table_shapes(
                model.build(model.config | larger, device="meta")
            ) == table_shapes(model.build(device="meta")):
                model.config, model.sizes["img_size",] = model.config | larger, larger["img_size"]
        find_tables(model)
        yield model


def table_shapes(model: nn.Module) -> set[tuple[str, Shape]]:
    return {(re.sub(r"\d+", "N", name), shape) for name, shape in shapes_of(model).items() if TABLE.search(name)}


def table_names(model: nn.Module) -> frozenset[tuple[str, int]]:
    return frozenset((name, len(shape)) for name, shape in table_shapes(model))


def timm_modules() -> list[str]:
    import_timm()
    from timm.models import list_modules

    return sorted(list_modules())


def randomize(model: Model, built: nn.Module) -> None:
    """Fills the learned tables with random numbers, since many are zero when built. Grids of patches get smooth
    values, as trained ones have. Tables of sines and cosines are fixed, also where transformers would train them."""
    with torch.no_grad():
        parameters = dict(built.named_parameters())
        model.fixed |= {name for name in model.tables if is_sinusoidal(parameters[name])}
        for name, changes in model.tables.items():
            if name not in model.fixed:
                fill_smoothly(parameters[name], next(iter(changes.values()), None))


def is_sinusoidal(table: Tensor) -> bool:
    norms = table.double().flatten(0, -2).norm(dim=-1)
    norms = norms[norms > 0]
    return len(norms) > 0 and bool(((norms / (table.shape[-1] / 2) ** 0.5 - 1).abs() < 1e-3).all())


def fill_smoothly(table: Tensor, doubled_shape: Shape | None) -> None:
    table.normal_(std=0.5)
    if doubled_shape is None or table.dim() < 2 or len(doubled_shape) != table.dim():
        return
    rows, gained, width = table.shape[-2], doubled_shape[-2] - table.shape[-2], table.shape[-1]
    # Twice the image size has four times the cells, or (4 s - 1)^2 instead of (2 s - 1)^2 differences.
    cells, differences = (max(gained, 0) / 3) ** 0.5, (4 + (16 + 48 * max(gained, 0)) ** 0.5) / 12 - 1
    side = int(next((each for each in (cells, differences) if each % 1 == 0), 0))
    extra = rows - side * side
    first = extra if cells == side else 0  # the row of a class token comes first, those of differences last
    if extra < 0 or side < 4 or doubled_shape[:-2] != tuple(table.shape[:-2]):
        return
    steps = torch.linspace(0, 3.14, side)
    waves = torch.stack([torch.cos(steps * k) for k in (0, 1, 2)])
    smooth = torch.einsum("khd,kx,hy->xyd", torch.randn(3, 3, width), waves, waves) / 3
    table[..., first : first + side * side, :] = 0.5 * smooth.flatten(0, 1)
