"""The towers of open_clip's models that timm or transformers builds, each a model of its own inside the files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from posembed.checkpoints.position_tables import Config, ConfigField, FoundTable, PositionTable, section
from posembed.checkpoints.sources import ConfigObject, Source, build_on_meta, config_object, shapes_of
from posembed.errors import CheckpointError
from posembed.modelfiles.checkpoint import find_settings
from posembed.modelfiles.json_files import read_json
from posembed.tables.families import FieldPath

if TYPE_CHECKING:
    from posembed.checkpoints.choose import Target

VISION, TEXT = ("model_cfg", "vision_cfg"), ("model_cfg", "text_cfg")
TIMM, HUGGING_FACE = "timm_model_name", "hf_model_name"
HEAD = ("head.", "fc_norm.", "attn_pool.")  # which open_clip replaces


@dataclass(frozen=True)
class Tower:
    """A part of a model. prefix: of its keys. config: the config.json of its own library, or why it is not known.
    field: what sizes it in open_clip_config.json."""

    prefix: str
    config: Config | str
    field: FieldPath

    def outside(self, table: FoundTable) -> FoundTable:
        """Returns a table of the tower with its key and its field in the whole model."""
        table = replace(table, key=self.prefix + table.key, parameter="")
        fields = set(filter(None, (table.field, *(table.fields if isinstance(table, PositionTable) else ()))))
        if table.doubt or any(field.path[-1] not in ("img_size", "max_position_embeddings") for field in fields):
            return table.doubted(table.doubt or "open_clip_config.json gives no size of it")
        size = table.length if isinstance(table, PositionTable) and not table.layout.axes else None
        renamed = {field: ConfigField(self.field, size or field.value) for field in fields}
        if isinstance(table, PositionTable):
            table = replace(table, cells=tuple(replace(each, field=renamed[each.field]) for each in table.cells))
        return replace(table, field=renamed.get(table.field) if table.field else None)


@dataclass(frozen=True)
class OpenClipConfig(ConfigObject):
    """Stands for the config object of a model of open_clip. config: its open_clip_config.json."""

    config: Config

    @property
    def source(self) -> OpenClip:
        return OpenClip()

    def to_dict(self) -> Config:
        return self.config

    @property
    def towers(self) -> Iterator[Tower]:
        if isinstance(name := section(self.config, VISION).get(TIMM), str):
            yield Tower("visual.trunk.", timm_json(name), (*VISION, "image_size"))
        if isinstance(name := section(self.config, TEXT).get(HUGGING_FACE), str):
            yield Tower("text.transformer.", hugging_face_json(name), (*TEXT, "context_length"))


def timm_json(name: str, **args: Any) -> Config:
    return {"architecture": name.removeprefix("timm/"), "model_args": args, "pretrained_cfg": {}}


def hugging_face_json(name: str) -> Config | str:
    try:
        path = find_settings(name, "config.json")
        return read_json(path) if path is not None else f"{name} has no config.json"
    except CheckpointError as error:
        return f"its rows are those of {name}, whose config.json cannot be read: {error}"


class OpenClip(Source):
    library = "open_clip"
    repeats_lengths = True

    def follows(
        self, config: Config, changed: Config, known: OpenClipConfig, fields: Iterable[ConfigField]
    ) -> dict[ConfigField, Any]:
        """Returns the name of timm's model of the new size: open_clip has timm build it at the size of its name."""
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

    def said_without_model(self, config: Config, target: Target) -> Iterator[str]:
        name = section(config, TEXT).get(HUGGING_FACE)
        if name is not None and target.field is not None and target.field.path == (*TEXT, "context_length"):
            tower: Any = hugging_face_json(name)
            rows = tower["max_position_embeddings"] + target.length[1] - target.length[0]
            yield (
                f"open_clip builds the text tower from the config.json of {name}: before it loads these files, save "
                f"that config with max_position_embeddings={rows} in a folder, and name the folder as {HUGGING_FACE}"
            )


def without_head(config: Any) -> dict[str, Any]:
    return {key: shape for key, shape in shapes_of(build_on_meta(config)).items() if not key.startswith(HEAD)}
