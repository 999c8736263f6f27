"""The towers (for images or texts) of open_clip models that timm or transformers builds. Each is a model of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from posembed.checkpoints.position_tables import Config, ConfigField, FoundTable, PositionTable, section
from posembed.checkpoints.sources.base import ConfigObject, Source, shapes_of
from posembed.checkpoints.sources.configs import build_on_meta, config_object
from posembed.errors import CheckpointError
from posembed.modelfiles.checkpoint import find_settings
from posembed.modelfiles.json_files import read_json
from posembed.tables.families import FieldPath

VISION, TEXT = ("model_cfg", "vision_cfg"), ("model_cfg", "text_cfg")
TIMM, HUGGING_FACE = "timm_model_name", "hf_model_name"
HEAD = ("head.", "fc_norm.", "attn_pool.")  # which open_clip replaces


@dataclass(frozen=True)
class Tower:
    """A part of a model. name: its name in timm or transformers. prefix: the prefix of its keys. field: the field of
    open_clip_config.json that sizes the tower. config: its config.json; {} if unknown, for the reason in ``why``."""

    name: str
    prefix: str
    field: FieldPath
    config: Config
    why: str = ""

    def outside(self, table: FoundTable) -> FoundTable:
        """Returns a table of the tower with its key and its field in the whole model."""
        fields = set(table.fields) if isinstance(table, PositionTable) else set()
        table = replace(table, key=self.prefix + table.key, parameter="")
        if not fields or any(field.path[-1] not in ("img_size", "max_position_embeddings") for field in fields):
            return table.doubted(self.why or table.doubt or "open_clip_config.json gives no size of it")
        assert isinstance(table, PositionTable)
        sizes = {each: ConfigField(self.field, each.value if table.layout.axes else table.length) for each in fields}
        cells = tuple(replace(each, field=sizes[each.field]) for each in table.cells)
        return replace(table, field=next(iter(sizes.values())), cells=cells)


@dataclass(frozen=True)
class OpenClipConfig(ConfigObject):
    """Stands for the config object of a model of open_clip. config: its open_clip_config.json."""

    config: Config

    def to_dict(self) -> Config:
        return self.config

    @property
    def towers(self) -> Iterator[Tower]:
        if isinstance(name := section(self.config, VISION).get(TIMM), str):
            yield Tower(name, "visual.trunk.", (*VISION, "image_size"), timm_json(name))
        if isinstance(name := section(self.config, TEXT).get(HUGGING_FACE), str):
            config: Config = {}
            why = f"its rows are those of {name}, whose config.json cannot be read"
            with suppress(CheckpointError):
                config = read_json(path) if (path := find_settings(name, "config.json")) else config
            yield Tower(name, "text.transformer.", (*TEXT, "context_length"), config, "" if config else why)


def open_clip_config(config: Config) -> OpenClipConfig | None:
    own = isinstance(config.get("model_cfg"), dict) and "model_type" not in config
    return OpenClipConfig(config) if own else None


def timm_json(name: str, **args: Any) -> Config:
    return {"architecture": name.removeprefix("timm/"), "model_args": args, "pretrained_cfg": {}}


class OpenClip(Source):
    library = "open_clip"
    repeats_lengths = True

    def follows(
        self, config: Config, changed: Config, known: OpenClipConfig, fields: Iterable[ConfigField]
    ) -> dict[ConfigField, Any]:
        """Returns the new name of timm's model: open_clip has timm build the model at the image size in the name."""
        name = section(config, VISION).get(TIMM)
        if name is None or (*VISION, "image_size") not in {field.path for field in fields}:
            return {}
        new = section(changed, VISION)["image_size"]
        old: Any = config_object(timm_json(name)).img_size
        renamed = name.replace(str(old), str(new))
        sized, other = (
            config_object(timm_json(each, **args)) for each, args in ((name, {"img_size": new}), (renamed, {}))
        )
        if renamed == name or other is None or without_head(sized) != without_head(other):
            raise CheckpointError(
                f"open_clip has timm build {name} for images of {old} pixels, and timm has no such model for {new}, so "
                f"open_clip could not load a resized file. Leave the file as it is: open_clip.create_model(..., "
                f"force_image_size={new}) resizes its table after it has loaded it"
            )
        return {ConfigField((*VISION, TIMM), name): renamed}

    def said_of_loading(self, new: Any, tables: Mapping[str, Any]) -> Iterator[str]:
        for tower in new.towers:
            for before, after in (pair for key, pair in tables.items() if key.startswith(tower.prefix)):
                if tower.field[-1] == "context_length":
                    rows = tower.config["max_position_embeddings"] + len(after) - len(before)
                    yield (
                        f"open_clip builds the text tower from the config.json of {tower.name}: before it loads these "
                        f"files, save that config with max_position_embeddings={rows} in a folder, and name the folder "
                        f"as {HUGGING_FACE}"
                    )


OpenClipConfig.source = OpenClip()


def without_head(config: Any) -> dict[str, Any]:
    return {key: shape for key, shape in shapes_of(build_on_meta(config)).items() if not key.startswith(HEAD)}
