"""Writes docs/conformance.json: resized tables, computed by the libraries whose methods have these names.

    python tools/conformance.py

Each function takes a small table as nested lists, and the new size. PyTorch, timm, transformers and SciPy, which
big_vision calls, compute the values; docs/reference/conformance.md says how to read the file. timm needs torchvision.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

FILE = Path(__file__).parents[1] / "docs" / "conformance.json"
SIZES = {"line": (7, 2), "grid": (4, 4, 2)}
LONG_CLIP = (7 - 3) * 4 + 3
LENGTHS, GRIDS = (11, LONG_CLIP, 5), ((6, 5), (2, 3))


def tables() -> dict[str, Tensor]:
    """Returns a line (N, D) and a grid (H, W, D), of multiples of 1/64, which every format holds exactly."""
    draw = torch.Generator().manual_seed(0)
    return {name: torch.randint(-128, 129, size, generator=draw) / 64 for name, size in SIZES.items()}


def torch_line(rows: Tensor, length: int, *, mode: str, align_corners: bool) -> Tensor:
    if mode == "linear":
        return F.interpolate(rows.T[None], size=length, mode=mode, align_corners=align_corners)[0].T
    picture = rows.T[None, :, :, None]
    return F.interpolate(picture, size=(length, 1), mode=mode, align_corners=align_corners)[0, :, :, 0].T


def torch_repeat(rows: Tensor, length: int) -> Tensor:
    return rows.repeat(-(-length // len(rows)), 1)[:length]


def long_clip(rows: Tensor, length: int, *, keep: int) -> Tensor:
    """The loop of Long-CLIP (arXiv:2403.15378), which makes four rows of each that is not kept."""
    assert length == 4 * (len(rows) - keep) + keep
    new = [*rows[:keep]]
    for one, other in zip(rows[keep:-1], rows[keep + 1 :], strict=True):
        new += [one, 3 * one / 4 + other / 4, 2 * one / 4 + 2 * other / 4, one / 4 + 3 * other / 4]
    new += [rows[-1] + step * (rows[-1] - rows[-2]) / 4 for step in range(4)]
    return torch.stack(new)


def torch_grid(rows: Tensor, grid: tuple[int, int], **how: Any) -> Tensor:
    return F.interpolate(rows.permute(2, 0, 1)[None], size=grid, **how)[0].permute(1, 2, 0)


def dinov2(rows: Tensor, grid: tuple[int, int]) -> Tensor:
    """The call of DINOv2's ``interpolate_pos_encoding``, with its offset of 0.1."""
    scale = tuple((new + 0.1) / old for new, old in zip(grid, rows.shape, strict=False))
    return F.interpolate(rows.permute(2, 0, 1)[None], mode="bicubic", scale_factor=scale)[0].permute(1, 2, 0)


def timm(rows: Tensor, grid: tuple[int, int]) -> Tensor:
    from timm.layers import resample_abs_pos_embed

    table = rows.flatten(0, 1)[None]
    return resample_abs_pos_embed(table, list(grid), list(rows.shape[:2]), num_prefix_tokens=0)[0].unflatten(0, grid)


def vit(rows: Tensor, grid: tuple[int, int]) -> Tensor:
    from transformers import ViTConfig
    from transformers.models.vit.modeling_vit import ViTEmbeddings

    model = ViTEmbeddings(ViTConfig(hidden_size=rows.shape[2], num_attention_heads=1, image_size=4, patch_size=1))
    with torch.no_grad():
        model.position_embeddings[0, 1:] = rows.flatten(0, 1)
        patches = torch.zeros(1, 1 + grid[0] * grid[1], rows.shape[2])
        return model.interpolate_pos_encoding(patches, *grid)[0, 1:].unflatten(0, grid)


def siglip2(rows: Tensor, grid: tuple[int, int]) -> Tensor:
    from transformers.models.siglip2.modeling_siglip2 import Siglip2VisionEmbeddings

    resize = Siglip2VisionEmbeddings.resize_positional_embeddings
    return resize(rows, torch.tensor([grid]), max_length=grid[0] * grid[1])[0].unflatten(0, grid)


def big_vision(rows: Tensor, grid: tuple[int, int]) -> Tensor:
    """The call of big_vision's ``resample_posemb``."""
    import scipy.ndimage

    zoom = tuple(new / old for new, old in zip(grid, rows.shape, strict=False))
    return torch.from_numpy(scipy.ndimage.zoom(rows.numpy(), (*zoom, 1), order=1))


Made = Callable[..., Tensor]


def plain(library: str) -> str:
    """Returns a library with its version."""
    from importlib.metadata import version

    return f"{library} {version(library).partition('+')[0]}"


def cases() -> Iterator[tuple[str, str, str, Any, Made, dict[str, Any]]]:
    """Yields the method's name in posembed, what computes it, the table, the new size, and the function with its
    settings."""
    for align, method in ((False, "linear"), (True, "linear-corners")):
        how: dict[str, Any] = {"mode": "linear", "align_corners": align}
        for length in LENGTHS:
            yield method, f"torch: F.interpolate(mode='linear', align_corners={align})", "line", length, torch_line, how
    for align, method in ((False, "cubic"), (True, "cubic-corners")):
        how = {"mode": "bicubic", "align_corners": align}
        call = f"torch: F.interpolate(mode='bicubic', align_corners={align}), of a picture one pixel wide"
        for length in LENGTHS:
            yield method, call, "line", length, torch_line, how
    for length in LENGTHS:
        yield "tile", "torch: Tensor.repeat, as in Longformer", "line", length, torch_repeat, {}
    yield "stretch, keep=3", "torch: the loop of Long-CLIP", "line", LONG_CLIP, long_clip, {"keep": 3}
    for mode in ("bicubic", "bilinear"):
        for antialias in (False, True):
            how = {"mode": mode, "antialias": antialias, "align_corners": False}
            call = f"torch: F.interpolate(mode='{mode}', antialias={antialias}, align_corners=False)"
            for grid in GRIDS:
                yield f"{mode}{'-antialias' * antialias}", call, "grid", grid, torch_grid, how
    how = {"mode": "bilinear", "align_corners": True}
    for grid in GRIDS:
        yield (
            "bilinear-corners",
            "torch: F.interpolate(mode='bilinear', align_corners=True)",
            "grid",
            grid,
            torch_grid,
            how,
        )
        yield "bilinear-corners", "scipy: ndimage.zoom(order=1), as big_vision", "grid", grid, big_vision, {}
        yield "bicubic-antialias", "timm: layers.resample_abs_pos_embed", "grid", grid, timm, {}
        yield "bicubic", "transformers: ViTEmbeddings.interpolate_pos_encoding", "grid", grid, vit, {}
        yield "bilinear-antialias", "transformers: Siglip2VisionEmbeddings", "grid", grid, siglip2, {}
        yield "dinov2", "torch: F.interpolate(mode='bicubic', scale_factor=(new + 0.1) / old)", "grid", grid, dinov2, {}


def listed(values: Tensor) -> Any:
    """Returns float32 values as nested lists of the shortest decimals that give them again."""
    return [listed(each) for each in values] if values.ndim else float(f"{values.item():.9g}")


def document() -> dict[str, Any]:
    old = tables()
    made = []
    for method, by, table, size, function, how in cases():
        library, _, call = by.partition(": ")
        new = function(old[table], size, **how)
        expected = {"method": method, "made_by": f"{plain(library)}: {call}", "table": table}
        made.append({**expected, "size": size, "expected": listed(new.float())})
    return {"tables": {name: listed(table) for name, table in old.items()}, "cases": made}


def text() -> str:
    """Returns the file's text, a line for each table and case."""
    found = document()
    rows = [f"  {json.dumps(name)}: {json.dumps(table)}" for name, table in found["tables"].items()]
    lines = [f"  {json.dumps(case)}" for case in found["cases"]]
    return '{"tables": {\n' + ",\n".join(rows) + '\n},\n"cases": [\n' + ",\n".join(lines) + "\n]}\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"{FILE}: {len(document()['cases'])} cases")
