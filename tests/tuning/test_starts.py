"""The method by which a language model's new rows start: the one with the lower loss, measured here by the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import posembed
from evaluated_models import save_causal, save_encoder, save_masked, write_texts
from posembed.report.tuning import plan_words
from posembed.tuning.draws import window_of
from posembed.tuning.plan import STARTS, TRIED, plan_tuning
from posembed.tuning.run import TunePlan
from together import asked
from tolerance import assert_close

SEEDS = range(6) if asked["whole"] else (1, 2)  # the second starts by another method than the first


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("starts")
    write_texts(folder / "texts", number=24, words=130)
    for seed in SEEDS:
        model: Any = save_causal(folder / f"causal-{seed}", positions=24)
        torch.nn.init.normal_(model.transformer.wpe.weight, generator=torch.Generator().manual_seed(seed))
        model.save_pretrained(folder / f"causal-{seed}")
    save_masked(folder / "masked", positions=24)
    save_encoder(folder / "sentences", positions=24)
    return folder


def plan_of(folder: Path, model: str, out: str = "out", **settings: Any) -> TunePlan:
    given: dict[str, Any] = {"length": 50, "steps": 1, "batch": 1, **settings}
    given |= {"passage": 6, "query": 6} if model == "sentences" else {}
    return plan_tuning(folder / model, folder / out, folder / "texts", given, device="cpu")


def loss_by_the_model(plan: TunePlan, folder: Path, method: str) -> float:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    posembed.resize_model_(model, length=50, method=method)
    windows = [plan.texts.windows[window_of(item, len(plan.texts.windows), 0)].ids for item in range(TRIED)]
    with torch.inference_mode():
        found = [model(input_ids=ids[None], labels=ids[None]).loss.item() for ids in windows]
    return sum(found) / len(found)


def test_the_method_has_the_lower_loss(folder: Path) -> None:
    chosen = set()
    for seed in SEEDS:
        plan = plan_of(folder, f"causal-{seed}")
        losses = {method: loss_by_the_model(plan, folder / f"causal-{seed}", method) for method in STARTS}
        assert_close(plan.starts, losses, dtype=torch.float32)
        assert plan.settings.method == min(losses, key=losses.__getitem__)
        assert {change.how for change in plan.resize.edit.tables} == {plan.settings.method}
        assert f"New rows start by {plan.settings.method}" in " ".join(plan_words(plan))
        chosen.add(plan.settings.method)
    assert chosen == set(STARTS), "these models do not distinguish the methods"


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("causal-1", {"method": "tile"}),
        ("causal-1", {"method": "stretch"}),
        ("causal-1", {"train": "rows"}),
        ("sentences", {}),
    ],
)
def test_a_given_method_is_kept_and_old_rows_that_may_not_change_are_tiled(
    folder: Path, model: str, settings: dict[str, Any]
) -> None:
    plan = plan_of(folder, model, **settings)
    assert plan.settings.method == settings.get("method")
    assert not plan.starts
    assert {change.how for change in plan.resize.edit.tables} == {settings.get("method") or STARTS[0]}


def test_a_masked_model_has_a_choice_too(folder: Path) -> None:
    plan = plan_of(folder, "masked")
    assert plan.settings.method == min(plan.starts, key=plan.starts.__getitem__)


@pytest.mark.parametrize("method", STARTS)
def test_an_unfinished_run_keeps_its_method(folder: Path, method: str) -> None:
    begun = plan_of(folder, "causal-1", f"begun-{method}", method=method)
    begun.store.claim()
    again = plan_of(folder, "causal-1", f"begun-{method}")
    assert again.settings.method == method
    assert not again.starts


def test_what_is_written_has_the_method_and_its_start(folder: Path) -> None:
    plan = plan_of(folder, "causal-1", "written")
    tuned = plan.run()
    record = json.loads((folder / "written" / "posembed.json").read_text())
    assert tuned.settings.method == plan.settings.method
    assert record["tunings"][-1]["settings"]["method"] == plan.settings.method
