"""The known model families: the layouts of their position tables, and the config fields that give their lengths.

A family that transformers can build needs no entry, since its layout is read from the built model. An entry adds what
the model's modules do not show, and what is needed if the model cannot be built. If an entry lists all tables of a
family, ``posembed inspect`` need not import transformers to build the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posembed.tables.layout import IMAGE_AXES, TableLayout

FieldPath = tuple[str, ...]  # the path of a field in a config: ("text_config", "max_position_embeddings")


@dataclass(frozen=True, kw_only=True)
class KnownTable:
    """One table of a family. key: its key in the files, without the prefix that models with a head add.

    fields: the config fields that may give its length or, for a grid, the image size. A resize changes the first field.
    default: the value if the config has none of these fields.
    patch: for a grid, the config field with the patch size. kernel: without ``patch``, the key of the convolution whose
    kernel has the patch size.
    layout: the roles of its rows; for a grid, without its size. None means a grid after a prefix of up to two rows.
    sinusoidal: whether the rows are sines and cosines, which the model's code freezes.
    area: whether the field counts the cells of a square grid. why: why the table is not resized, and the remedy.
    """

    key: str
    fields: tuple[FieldPath, ...]
    default: int | None = None
    patch: FieldPath = ()
    kernel: str = ""
    layout: TableLayout | None = TableLayout.BERT
    sinusoidal: bool = False
    area: bool = False
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Family:
    """The layouts and tables of one model type.

    line: the layout of positions in a line. grid: the layout of image patches, without the grid's size. differences:
    the layout of relative positions, without their axes.
    after_padding: whether position 0 follows the row of the config's ``pad_token_id``, as in RoBERTa. The config then
        gives the number of rows, not of positions.
    tables: all tables of the family, or only the known ones if transformers does not build the model.
    base: the name of the base model in models with a head; their keys start with this name.
    width: the config field with the width of the tables.
    on_differences: the resize method of the family's own code for differences on a grid; "" for posembed's default.
    no_need: why files without a table need no resize.
    """

    line: TableLayout = TableLayout.BERT
    grid: TableLayout = TableLayout.BERT
    differences: TableLayout = TableLayout.BERT
    after_padding: bool = False
    tables: tuple[KnownTable, ...] = ()
    base: str = ""
    width: str = "hidden_size"
    on_differences: str = ""
    no_need: str = ""

    def method_for(self, layout: TableLayout) -> str:
        """Returns the method of the family's own code for a table in this layout; "" for posembed's default."""
        on_grid = [axis.name for axis in layout.axes if axis.relative and axis.signed] == list(IMAGE_AXES)
        return self.on_differences if on_grid else ""

    def line_in(self, config: Mapping[str, Any]) -> TableLayout:
        """Returns the layout of positions in a line. Some families count from the config's padding token."""
        padding = config.get("pad_token_id")
        return TableLayout.roberta(padding) if self.after_padding and type(padding) is int else self.line


COMPUTED = (
    "diffusers computes its rows from pos_embed_max_size and sample_size, so nothing learned changes: set these in "
    "config.json, in proportion, and load the folder with ignore_mismatched_sizes=True, which computes the rows again"
)
PADDED = "text_embedding_padding also has rows for text_len_t5, of which it is unknown how to make new ones"
ONE_SIZE = "diffusers refuses videos of other sizes for models with learned positions (CogVideoX-5b-I2V)"
IN_CONFIG = "diffusers computes the positions, and no file depends on them: change the sizes in config.json"
SOUND = "max_source_positions"  # of Whisper
OPEN_CLIP_TEXT = ("model_cfg", "text_cfg", "context_length")


def lines(base: str, *names: tuple[str, str], **layouts: Any) -> Family:
    """Returns a family of texts or sounds. names: the key of each table, and the config field with its length."""
    layout = layouts.get("line", TableLayout.BERT)
    tables = (
        KnownTable(key=f"{key}.weight", fields=((field,),), layout=layout, sinusoidal=field == SOUND)
        for key, field in names
    )
    return Family(base=base, tables=tuple(tables), **layouts)


def of_diffusers(key: str, field: str, **how: Any) -> Family:
    return Family(tables=(KnownTable(key=key, fields=((field,),), **how),), no_need=IN_CONFIG)


def patches(*above: str, key: str, layout: TableLayout) -> KnownTable:
    """Returns the table of an image's patches. above: the path of the config's section that has the sizes."""
    return KnownTable(key=key, fields=((*above, "image_size"),), patch=(*above, "patch_size"), layout=layout)


BERT = ("embeddings.position_embeddings", "max_position_embeddings")
ENCODER, DECODER = ((f"{side}.embed_positions", "max_position_embeddings") for side in ("encoder", "decoder"))
AFTER_PADDING: Mapping[str, Any] = {"line": TableLayout.roberta(), "after_padding": True}
FAMILIES: Mapping[str, Family] = {
    "bert": lines("bert", BERT),
    **{name: lines(name, BERT, width="embedding_size") for name in ("electra", "albert")},
    "distilbert": lines("distilbert", BERT, width="dim"),
    "gpt2": lines("transformer", ("wpe", "n_positions"), width="n_embd"),
    "openai-gpt": lines("transformer", ("positions_embed", "n_positions"), width="n_embd"),
    "whisper": lines(
        "model",
        ("encoder.embed_positions", SOUND),
        ("decoder.embed_positions", "max_target_positions"),
        width="d_model",
    ),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), lines("roberta", BERT, **AFTER_PADDING)),
    **dict.fromkeys(("longformer", "layoutlmv3", "mpnet", "prophetnet", "fairseq"), Family(**AFTER_PADDING)),
    **dict.fromkeys(("bart", "mbart"), lines("model", ENCODER, DECODER, line=TableLayout.BART, width="d_model")),
    "opt": lines("model", DECODER, line=TableLayout.BART),
    "trocr": Family(line=TableLayout.BART),
    **dict.fromkeys(("nystromformer", "yoso", "mra"), Family(line=TableLayout(reserved=2))),
    "clip": Family(
        grid=TableLayout.VIT,
        tables=(
            KnownTable(
                key="text_model.embeddings.position_embedding.weight",
                fields=(("text_config", "max_position_embeddings"),),
            ),
            patches(
                "vision_config", key="vision_model.embeddings.position_embedding.weight", layout=TableLayout.CLIP_VISION
            ),
        ),
    ),
    "clip_vision_model": Family(grid=TableLayout.VIT),
    **{
        name: Family(grid=layout, tables=(patches(key="embeddings.position_embeddings", layout=layout),), base=name)
        for name, layout in (("vit", TableLayout.VIT), ("deit", TableLayout.DEIT))
    },
    **dict.fromkeys(("llama4", "llama4_vision_model"), Family(grid=TableLayout(tail=1))),
    # Behind the differences: class token to patch, patch to class token, class token to itself.
    **dict.fromkeys(("beit", "data2vec-vision"), Family(differences=TableLayout(tail=3))),
    # Transformers of pipelines of diffusers, by the class in their config.json.
    "AuraFlowTransformer2DModel": of_diffusers("pos_embed.pos_embed", "pos_embed_max_size", area=True),
    "SD3Transformer2DModel": of_diffusers("pos_embed.pos_embed", "pos_embed_max_size", why=COMPUTED),
    "HunyuanDiT2DModel": of_diffusers("time_extra_emb.pooler.positional_embedding", "text_len_t5", why=PADDED),
    "CogVideoXTransformer3DModel": of_diffusers("patch_embed.pos_embedding", "sample_height", why=ONE_SIZE),
    "PixArtTransformer2DModel": of_diffusers("pos_embed.pos_embed", "sample_size", why=COMPUTED),
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
    """Returns the model family of a config.json, by its ``model_type`` or by another library's format."""
    if isinstance(config.get("model_cfg"), dict):
        name = "open_clip"
    elif isinstance(config.get("architecture"), str):
        name = "timm"
    else:
        name = str(config.get("model_type", config.get("_class_name")))
    return FAMILIES.get(name, Family())
