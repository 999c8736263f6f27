"""What the user states of one table of a file is not taken for another, and a text is no image."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from posembed import resize_checkpoint
from posembed.checkpoints.patterns import index_of
from posembed.errors import CheckpointError
from posembed.tables.layout import Axis

DIM = 8
PATCHES = {"patch_embed.proj.weight": (DIM, 3, 16, 16)}
MAE = PATCHES | {"cls_token": (1, 1, DIM), "register_tokens": (1, 4, DIM)}
MAE |= {"pos_embed": (1, 21, DIM), "decoder_pos_embed": (1, 17, 6)}
VIDEO = PATCHES | {"cls_token": (1, 1, DIM), "pos_embed": (1, 17, DIM), "temporal_pos_embed": (1, 9, DIM)}
OTHERS = {"pos_embed_spatial": (1, 16, DIM), "decoder_pos_embed_spatial": (1, 16, 6)}
MASKED_VIDEO = OTHERS | {"pos_embed_temporal": (1, 8, DIM), "decoder_pos_embed_temporal": (1, 8, 6)}
MASKED_VIDEO |= {"patch_embed.proj.weight": (DIM, 3, 2, 16, 16)}
CLIP = {"token_embedding.weight": (50, DIM), "positional_embedding": (77, DIM), "visual.conv1.weight": (DIM, 3, 16, 16)}
CLIP |= {"visual.class_embedding": (DIM,), "visual.positional_embedding": (17, DIM)}
PAIR = {"text.token_embedding.weight": (50, DIM), "text.pos_emb": (1, 256, DIM), "visual.cls_token": (1, 1, DIM)}
PAIR |= {"visual.pos_embed": (1, 257, DIM), "visual.patch_embed.proj.weight": (DIM, 3, 14, 14)}
GPT = {"tok_emb.weight": (50, DIM), "pos_emb": (1, 16, DIM)}


def resized(shapes: dict[str, tuple[int, ...]], folder: Path, settings: dict[str, Any], **how: Any) -> dict[str, int]:
    """Returns the new rows of each tensor that has others, and the new values of settings."""
    state = {key: torch.randn(shape) for key, shape in shapes.items()}
    torch.save({"model": state, "args": settings}, folder / "old.pt")
    resize_checkpoint(folder / "old.pt", folder / "new.pt", overwrite=True, **how)
    new = torch.load(folder / "new.pt", weights_only=True)
    rows = {key: tensor.shape[-2] for key, tensor in new["model"].items() if tensor.shape != state[key].shape}
    return rows | {name: value for name, value in new["args"].items() if value != settings[name]}


@pytest.mark.parametrize(
    ("shapes", "settings", "how", "expected"),
    [
        (PAIR, {"image_size": 224, "context_length": 256}, {"image_size": 336}, {"visual.pos_embed": 577}),
        (PAIR, {"image_size": 224}, {"image_size": 336, "reserved": 1}, {"visual.pos_embed": 577}),
        (PAIR, {"image_size": 224}, {"length": 512}, {"text.pos_emb": 512}),
        (PAIR, {"context_length": 256}, {"length": 512, "table": "text.pos_emb"}, {"text.pos_emb": 512}),
        (GPT, {"image_size": 64}, {"grid": (6, 6), "table": "pos_emb"}, {"pos_emb": 36}),
        (GPT, {"image_size": 64}, {"grid": (6, 6)}, {"pos_emb": 36}),  # of image codes
        (
            MASKED_VIDEO,
            {"num_frames": 16},
            {"frames": 32},
            {"pos_embed_temporal": 16, "decoder_pos_embed_temporal": 16},
        ),
        (MAE, {"input_size": 64}, {"image_size": 96, "old_grid": (4, 4)}, {"pos_embed": 41, "decoder_pos_embed": 37}),
        (VIDEO, {}, {"frames": 16, "reserved": 1, "table": "temporal_pos_embed"}, {"temporal_pos_embed": 17}),
        (CLIP, {}, {"image_size": 96, "reserved": 1}, {"visual.positional_embedding": 37}),
    ],
)
def test_the_tables_that_change(
    shapes: dict[str, tuple[int, ...]], settings: dict[str, Any], how: Any, expected: dict[str, int], tmp_path: Path
) -> None:
    found = resized(shapes, tmp_path, settings, **how)
    assert {key: size for key, size in found.items() if key not in settings} == expected
    assert found.get("context_length") in (None, how.get("length"))


@pytest.mark.parametrize(
    ("shapes", "how", "named"),
    [
        (CLIP, {"image_size": 96, "reserved": 3}, "visual.positional_embedding"),
        ({"pos_embed": (1, 14, 14, DIM)}, {"grid": (20, 20), "old_grid": (14, 14), "tail": 2}, "pos_embed"),
        (CLIP, {"grid": (6, 6), "tail": 2}, "visual.positional_embedding"),
        (VIDEO, {"frames": 16, "reserved": 1}, "temporal_pos_embed"),
        (VIDEO, {"frames": 16, "old_grid": (4, 4)}, "temporal_pos_embed"),
    ],
)
def test_what_holds_for_no_table_that_changes_is_refused(
    shapes: dict[str, tuple[int, ...]], how: Any, named: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=rf"of the tables that change \({re.escape(named)}\), none.*--table"):
        resized(shapes, tmp_path, {}, **how)
    assert not (tmp_path / "new.pt").exists()


def test_tables_left_because_their_rows_are_not_understood_are_told(tmp_path: Path) -> None:
    torch.save({key: torch.randn(shape) for key, shape in MAE.items()}, tmp_path / "old.pt")
    said = repr(resize_checkpoint(tmp_path / "old.pt", tmp_path / "new.pt", image_size=96))
    assert re.search(r"\npos_embed: may be a table, and stays as it is \(.*not a square", said), said


@pytest.mark.parametrize(("window", "grid"), [(7, 56), (4, 8), (4, 4)])
def test_a_window_is_not_the_grid_of_the_image(window: int, grid: int, tmp_path: Path) -> None:
    """Swin with a table of absolute positions: its windows are the same with and without it."""
    axes = tuple(Axis(name, window, relative=True) for name in ("height", "width"))
    block = "layers.0.blocks.0.attn.relative_position"
    state: dict[str, Tensor] = {f"{block}_bias_table": torch.randn((2 * window - 1) ** 2, 2)}
    state |= {f"{block}_index": index_of(axes), "patch_embed.proj.weight": torch.randn(DIM, 3, 4, 4)}
    made = []
    for absolute in ({}, {"absolute_pos_embed": torch.randn(1, grid * grid, DIM)}):
        torch.save({"model": state | absolute, "config": {"window_size": window}}, tmp_path / "old.pt")
        resize_checkpoint(tmp_path / "old.pt", tmp_path / "new.pt", window=12, overwrite=True)
        made.append(torch.load(tmp_path / "new.pt", weights_only=True))
        assert made[-1]["config"] == {"window_size": 12}
        assert made[-1]["model"].get("absolute_pos_embed", torch.ones(0)).shape[1:] in ((), (grid * grid, DIM))
    for key in state:
        assert torch.equal(made[0]["model"][key], made[1]["model"][key])
    assert made[1]["model"][f"{block}_bias_table"].shape == (23 * 23, 2)


def test_a_line_that_was_taken_for_a_grid_is_told_how_to_be_one(tmp_path: Path) -> None:
    shapes = {"cls_token": (1, 1, DIM), "pos_embed": (1, 17, DIM), "input_proj.weight": (DIM, 4)}
    with pytest.raises(CheckpointError, match=r"pass --image-size or --grid.*in a line, say so with --reserved"):
        resized(shapes, tmp_path, {}, length=32, table="pos_embed")
    assert resized(shapes, tmp_path, {}, length=32, table="pos_embed", reserved=1) == {"pos_embed": 33}


def test_remarks_are_of_what_was_asked_for(tmp_path: Path) -> None:
    """No setting of a text is told when frames change, and no image when a text does."""
    video = {"time_embed": torch.randn(1, 32, DIM), "w": torch.randn(DIM, DIM)}
    texts = {"wpe.weight": torch.randn(514, DIM), "v.pos_embed": torch.randn(1, 198, DIM), "v.cls_token": torch.ones(1)}
    files = [(video, {"max_len": 30, "num_frames": 32}, {"frames": 64})]
    files += [(texts, {}, {"length": 1024, "reserved": 2, "table": "wpe.weight"})]
    for state, settings, how in files:
        torch.save({"model": state, "args": settings}, tmp_path / "old.pt")
        done = resize_checkpoint(tmp_path / "old.pt", tmp_path / "new.pt", overwrite=True, **how)
        assert "stays as it is" not in repr(done), done
