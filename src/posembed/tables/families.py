"""The known model families: the layouts of their position tables, and the config fields that give their lengths.

A family that transformers can build needs no entry, since its layout is read from the built model. An entry adds what
the model's modules do not show, and what is needed if the model cannot be built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posembed.tables.layout import IMAGE_AXES, TableLayout

FieldPath = tuple[str, ...]  # the path of a field in a config: ("text_config", "max_position_embeddings")


@dataclass(frozen=True, kw_only=True)
class KnownTable:
    """One table of a family, under its key in the files.

    fields: the config fields that may give its length or, for a grid, the image size. A resize changes the first field.
    default: the value if the config has none of these fields.
    patch: for a grid, the config field with the patch size. kernel: without ``patch``, the key of the convolution
    whose kernel has that size.
    layout: the roles of its rows; for a grid, without its size. None means a grid after a prefix of up to two rows.
    """

    key: str
    fields: tuple[FieldPath, ...]
    default: int | None = None
    patch: FieldPath = ()
    kernel: str = ""
    layout: TableLayout | None = TableLayout.BERT


@dataclass(frozen=True, kw_only=True)
class Family:
    """The layouts and tables of one model type.

    line: the layout of positions in a line. grid: the layout of image patches, without the grid's size. differences:
    the layout of relative positions, without their axes.
    after_padding: whether position 0 follows the row of the config's ``pad_token_id``, as in RoBERTa.
    tables: the tables of a family that transformers does not build.
    on_differences: the method of the family's own code for differences on a grid, if it is not posembed's default.
    """

    line: TableLayout = TableLayout.BERT
    grid: TableLayout = TableLayout.BERT
    differences: TableLayout = TableLayout.BERT
    after_padding: bool = False
    tables: tuple[KnownTable, ...] = ()
    on_differences: str = ""

    def method_for(self, layout: TableLayout) -> str:
        """Returns the method of the family's own code for a table in this layout; "" for posembed's default."""
        on_grid = [axis.name for axis in layout.axes if axis.relative and axis.signed] == list(IMAGE_AXES)
        return self.on_differences if on_grid else ""

    def line_in(self, config: Mapping[str, Any]) -> TableLayout:
        """Returns the layout of positions in a line. Some families count from the config's padding token."""
        padding = config.get("pad_token_id")
        return TableLayout.roberta(padding) if self.after_padding and type(padding) is int else self.line


OPEN_CLIP_TEXT = ("model_cfg", "text_cfg", "context_length")
FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(("bert", "electra", "albert", "distilbert", "gpt2", "openai-gpt", "whisper"), Family()),
    **dict.fromkeys(
        ("roberta", "xlm-roberta", "camembert", "longformer", "layoutlmv3", "mpnet", "fairseq"),
        Family(line=TableLayout.roberta(), after_padding=True),
    ),
    **dict.fromkeys(("bart", "mbart", "opt", "trocr"), Family(line=TableLayout.BART)),
    **dict.fromkeys(("nystromformer", "yoso", "mra"), Family(line=TableLayout(reserved=2))),
    **dict.fromkeys(("clip", "clip_vision_model", "vit"), Family(grid=TableLayout.VIT)),
    "deit": Family(grid=TableLayout.DEIT),
    **dict.fromkeys(("llama4", "llama4_vision_model"), Family(grid=TableLayout(tail=1))),
    # Behind the differences: class token to patch, patch to class token, class token to itself.
    **dict.fromkeys(("beit", "data2vec-vision"), Family(differences=TableLayout(tail=3))),
    "open_clip": Family(
        tables=(
            KnownTable(key="positional_embedding", fields=(OPEN_CLIP_TEXT,), default=77),
            KnownTable(key="text.positional_embedding", fields=(OPEN_CLIP_TEXT,), default=77),
            KnownTable(
                key="visual.positional_embedding",
                fields=(("model_cfg", "vision_cfg", "image_size"),),
                default=224,
                patch=("model_cfg", "vision_cfg", "patch_size"),
                layout=TableLayout.VIT,
            ),
        )
    ),
    "timm": Family(
        differences=TableLayout(tail=3),
        on_differences="timm",
        tables=(
            KnownTable(
                key="pos_embed",
                fields=(("model_args", "img_size"), ("pretrained_cfg", "input_size")),
                kernel="patch_embed.proj.weight",
                layout=None,
            ),
        ),
    ),
}


def family_of(config: Mapping[str, Any]) -> Family:
    """Returns the model family of a config.json, by its ``model_type`` or by the formats of open_clip and timm."""
    if isinstance(config.get("model_cfg"), dict):
        name = "open_clip"
    elif isinstance(config.get("architecture"), str):
        name = "timm"
    else:
        name = str(config.get("model_type"))
    return FAMILIES.get(name, Family())
