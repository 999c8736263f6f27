"""Grids of patches whose size other config fields give, and parts of models that AutoModel does not know."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import posembed
from posembed.checkpoints.rebuild import class_of
from tiny_models import IMAGE, reloaded, saved


def part_of_a_model(family: str, settings: dict[str, Any]) -> nn.Module:
    """A model of a config that AutoModel may not know, with random weights."""
    from transformers import CONFIG_MAPPING, __version__

    if family not in CONFIG_MAPPING:
        pytest.skip(f"transformers {__version__} has no {family}")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = CONFIG_MAPPING[family](**settings)
        model: nn.Module = class_of(config)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "pos" in name:
                parameter.normal_()
    return model


@pytest.mark.parametrize("family", ["idefics2_vision", "kosmos_2_vision_model"])
def test_a_part_that_automodel_does_not_know_is_built_from_the_file_of_its_config(family: str, tmp_path: Path) -> None:
    model = part_of_a_model(family, IMAGE)
    source = saved(model, tmp_path / "source")
    (report,) = posembed.inspect_checkpoint(source).tables
    assert report.table.found_by == "config" and not report.table.doubt
    posembed.resize_checkpoint(source, tmp_path / "out", image_size=48)
    new = reloaded(model, tmp_path / "out")
    assert new(pixel_values=torch.randn(1, 3, 48, 48)).last_hidden_state.isfinite().all()
