"""The objectives of language models, against float64 and the losses that an evaluation counts."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posembed
from evaluated_models import VOCABULARY, WORDS, by_text, save_causal, save_masked
from posembed.errors import CheckpointError
from posembed.evaluation.ways import padded
from posembed.tuning.draws import pieces, window_of
from posembed.tuning.language import NOT_PREDICTED, Language, Masked
from posembed.tuning.plan import plan_tuning, tune_checkpoint
from posembed.tuning.result import Tuned
from together import pairwise
from tolerance import assert_close

SETTINGS: dict[str, Any] = {"length": 50, "steps": 2, "batch": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language")
    save_causal(folder / "causal", positions=24)
    save_masked(folder / "masked", positions=24)
    (folder / "texts").mkdir()
    for number in range(24):  # of different lengths, so that documents have different numbers of windows
        words = random.Random(number).choices(WORDS, k=61 + 30 * (number % 4))
        (folder / "texts" / f"{number:02}").write_text(" ".join(words))
    return folder


def objective_of(folder: Path, kind: str) -> Language:
    plan = plan_tuning(folder / kind, folder / "out", folder / "texts", SETTINGS, device="cpu")
    assert isinstance(plan.objective, Language)
    return plan.objective


def model_of(folder: Path, kind: str) -> Any:
    """The model with a table for 50 tokens, in float64."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    made = {"causal": AutoModelForCausalLM, "masked": AutoModelForMaskedLM}[kind].from_pretrained(folder / kind)
    posembed.resize_model_(made, length=50)
    return made.eval().double()


@pytest.mark.parametrize(("kind", "length"), pairwise(["causal", "masked"], [50, 24]))
def test_the_loss_of_items_one_token_at_a_time(folder: Path, kind: str, length: int) -> None:
    objective, model = objective_of(folder, kind), model_of(folder, kind)
    front, back = ([], []) if kind == "causal" else ([2], [3])
    items, of_items = [0, 5, 40], []
    for item in items:
        window = objective.windows[window_of(item, len(objective.windows), 7)].ids
        read, predicted = objective.read_and_predicted(window, item, 7)
        losses = []
        for part in pieces(len(window), length - len(front) - len(back)):
            fed = [*front, *read[part].tolist(), *back]
            likely = model(input_ids=torch.tensor([fed])).logits[0].log_softmax(-1)
            for place, answer in enumerate(predicted[part].tolist()):
                if answer != NOT_PREDICTED and (kind == "masked" or place):
                    losses.append(-likely[len(front) + place - (kind == "causal"), answer])
        of_items.append(sum(losses, torch.zeros((), dtype=torch.float64)) / len(losses))
    expected = torch.stack(of_items).mean()
    found = objective.loss(model, items, length=length, seed=7)
    assert_close(found.item(), expected.item(), dtype=torch.float32)
    parameters = list(model.parameters())
    ours, theirs = torch.autograd.grad(found, parameters), torch.autograd.grad(expected, parameters)
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other, depth=4, scale=theirs, dtype=torch.float32)  # of the loss
    of_each = [objective.loss(model, [item], length=length, seed=7).item() for item in items]
    assert_close(found.item(), math.fsum(of_each) / 3, dtype=torch.float32)  # so a batch can be read in parts


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_a_fine_tuning_at_the_old_length_reads_the_same_tokens(folder: Path, kind: str) -> None:
    objective, model, read = objective_of(folder, kind), model_of(folder, kind), list[Tensor]()

    def keep(module: nn.Module, arguments: Any, named: dict[str, Tensor]) -> None:
        ids, mask = named["input_ids"], named["attention_mask"].bool()
        assert int(mask.sum(dim=1).max()) <= length
        assert bool((mask.int().diff(dim=1) <= 0).all())  # the padding is at the end
        read.append(ids[mask & (ids != VOCABULARY["[CLS]"]) & (ids != VOCABULARY["[SEP]"])])

    model.register_forward_pre_hook(keep, with_kwargs=True)
    for length in (50, 24):
        objective.loss(model, [1, 2], length=length, seed=0)
    assert torch.equal(*read)
    assert len(read[0]) == 2 * objective.setup.texts.width


def test_masks_depend_on_the_seed_and_the_item_alone(folder: Path) -> None:
    objective = objective_of(folder, "masked")
    ids = torch.randint(5, len(VOCABULARY), (20_000,))
    read, predicted = objective.read_and_predicted(ids, 3, 1)
    torch.manual_seed(5)
    again = objective.read_and_predicted(ids, 3, 1)
    assert torch.equal(read, again[0])
    assert torch.equal(predicted, again[1])
    for item, seed in ((4, 1), (3, 2)):
        assert not torch.equal(predicted, objective.read_and_predicted(ids, item, seed)[1])
    chosen = predicted != NOT_PREDICTED
    assert torch.equal(predicted[chosen], ids[chosen])
    assert torch.equal(read[~chosen], ids[~chosen])
    assert not set(range(4)) & set(read.tolist())  # no padding, which some models count positions by
    share, masked, same = (
        float(each.double().mean()) for each in (chosen, read[chosen] == 4, read[chosen] == ids[chosen])
    )
    # 5 standard deviations of shares of 20,000 and 3,000 tokens. A random token equals the old one in 1 of 90 cases.
    assert share == pytest.approx(0.15, abs=0.013)
    assert masked == pytest.approx(0.8, abs=0.037)
    assert same == pytest.approx(0.1 + 0.1 / 90, abs=0.028)


def test_a_tokenizer_without_a_mask_token(folder: Path) -> None:
    setup = objective_of(folder, "masked").setup
    setup.tokenizer.mask_token = None
    with pytest.raises(CheckpointError, match="expected a tokenizer with a mask token; save the model's own tokenizer"):
        Masked(setup)


@pytest.fixture(scope="module")
def tuned(folder: Path) -> dict[str, Tuned]:
    return {
        kind: tune_checkpoint(
            folder / kind, folder / f"my-{kind}", folder / "texts", device="cpu", learning_rate=0.01, **SETTINGS
        )
        for kind in ("causal", "masked")
    }


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_the_rows_are_those_of_an_evaluation(folder: Path, tuned: dict[str, Tuned], kind: str, tmp_path: Path) -> None:
    found, setup = tuned[kind].evaluation, objective_of(folder, kind).setup
    assert (found.texts, found.unit) == (len(setup.texts.held_out), "document")
    assert not {each.text for each in setup.texts.held_out} & {each.text for each in setup.texts.training}
    for number, document in enumerate(setup.texts.held_out):
        (tmp_path / str(number)).write_text(document.text)
    names = [f"my-{kind}", kind, f"my-{kind}-at-24"]
    paths = [str(folder / name) for name in names]
    peer = posembed.evaluate_checkpoints(paths, tmp_path, lengths=[24, 50], device="cpu")
    rows = {row.name: row for row in found.rows}
    assert [row.name for row in found.rows][:3] == names
    assert sum(str(folder) in note for note in found.notes) == 1
    assert all(f"{name} is {path}" in found.notes[0] for name, path in zip(names, paths, strict=True))
    for row in peer.rows:
        for measure in found.measures:
            for length in (24, 50):
                ours, theirs = rows[row.name].estimate(measure, length), row.estimate(measure, length)
                assert (ours is None) == (theirs is None)
                if ours and theirs:
                    assert_close(ours.value, theirs.value, dtype=torch.float32)
                    assert len(ours.values) == len(setup.texts.held_out)
    loss = {"causal": "perplexity", "masked": "pseudo-perplexity"}[kind]
    assert tuned[kind].measure == loss
    sliding = "sliding windows at 24"
    expected = [f"{names[1]}, {sliding}", f"{names[2]}, {sliding}", names[0]]
    assert [row.name for row in tuned[kind].candidates] == expected


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_what_is_written_opens_in_transformers(folder: Path, tuned: dict[str, Tuned], kind: str) -> None:
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    library = {"causal": AutoModelForCausalLM, "masked": AutoModelForMaskedLM}[kind]
    for out, length in ((f"my-{kind}", 50), (f"my-{kind}-at-24", 24)):
        model, loading = library.from_pretrained(folder / out, output_loading_info=True)
        assert not loading["missing_keys"]
        assert model(input_ids=torch.full((1, length), 7)).logits.isfinite().all()
        # The matrix of the tokens stays tied to the head.
        assert torch.equal(model.get_input_embeddings().weight, model.get_output_embeddings().weight)


@pytest.mark.parametrize("kind", ["causal", pytest.param("masked", marks=pytest.mark.whole)])
def test_rows_keep_every_output_within_the_old_length(folder: Path, kind: str) -> None:
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    library = {"causal": AutoModelForCausalLM, "masked": AutoModelForMaskedLM}[kind]
    out = f"rows-{kind}"
    settings = {**SETTINGS, "train": "rows", "rows_learning_rate": 0.1}
    tuned = tune_checkpoint(folder / kind, folder / out, folder / "texts", device="cpu", **settings)
    before, after = (library.from_pretrained(folder / name).eval() for name in (kind, out))
    for width in (1, 7, 24):
        ids = torch.randint(5, len(VOCABULARY), (3, width))
        assert torch.equal(before(input_ids=ids).logits, after(input_ids=ids).logits)
    untrained = library.from_pretrained(folder / kind).eval()
    posembed.resize_model_(untrained, length=50)
    ids = torch.randint(5, len(VOCABULARY), (3, 50))
    assert not torch.equal(untrained(input_ids=ids).logits, after(input_ids=ids).logits)
    rows = {row.name: row for row in tuned.evaluation.rows}
    for measure in tuned.evaluation.measures:
        of_new, of_old = (rows[f"{name}, sliding windows at 24"] for name in (out, kind))
        assert all(by_text(of_new, measure, at) == by_text(of_old, measure, at) for at in (24, 50))


def test_padded_and_pieces() -> None:
    rows, mask = padded([torch.tensor([5, 6, 7]), torch.tensor([8])], 1)
    assert rows.tolist() == [[5, 6, 7], [8, 1, 1]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    for width, most in ((10, 4), (8, 4), (3, 9)):
        places = [place for piece in pieces(width, most) for place in range(piece.start, piece.stop)]
        assert places == list(range(width))
