"""Perplexity and masked-token accuracy, against float64 losses taken one token at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from evaluated_models import VOCABULARY, save_causal, save_masked
from posembed.errors import CheckpointError
from posembed.evaluation import counts
from posembed.evaluation.counts import batches, causal_counts, causal_losses, masked_counts
from posembed.evaluation.texts import Sample
from tolerance import assert_close

CLS, SEP, MASK = 2, 3, 4


def some_ids(texts: int, width: int) -> Tensor:
    return torch.randint(5, len(VOCABULARY), (texts, width))


def test_batches_cover_every_token_once_and_end_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "TOKENS_PER_BATCH", 12)
    for texts, width, chunk in ((5, 20, 6), (4, 18, 6), (1, 3, 6), (2, 13, 13), (3, 7, 1)):
        seen = torch.zeros(texts, width, dtype=torch.long)
        for rows, columns in batches(seen, chunk):
            assert seen[rows, columns].numel() <= max(12, chunk)
            seen[rows, columns] += 1
        assert (seen == 1).all()
        assert columns == slice(max(0, width - chunk), width)


@pytest.mark.parametrize("before", [(), (CLS,)])
def test_causal_losses_are_those_of_each_token_in_its_chunk(tmp_path: Path, before: tuple[int, ...]) -> None:
    model = save_causal(tmp_path).double()
    ids, length = some_ids(3, 22), 9
    with torch.inference_mode():
        losses, predicted = causal_losses(model, Sample(ids, before), length=length)
        chunk = length - len(before)
        for column in range(22):
            start = 22 - chunk * ((22 - column - 1) // chunk + 1)  # chunks are counted from the end
            context = [*before, *ids[0, max(start, 0) : column].tolist()]
            assert predicted[0, column] == bool(context)
            if context:
                logits = model(input_ids=torch.tensor([context])).logits[0, -1]
                expected = -logits.log_softmax(-1)[ids[0, column]]
                assert_close(losses[0, column].double(), expected, dtype=torch.float32)
        counts = causal_counts(model, Sample(ids, before), length=length, last=4)
        last = counts["perplexity of the last tokens"]
    for text in range(3):
        assert_close(
            counts["perplexity"][0][text].item(), losses[text][predicted[text]].sum().item(), dtype=torch.float32
        )
        assert counts["perplexity"][1][text] == predicted[text].sum()
        assert_close(last[0][text].item(), losses[text, -4:].sum().item(), dtype=torch.float32)
        assert last[1][text] == 4


@pytest.mark.parametrize("before", [(), (CLS,)])
@pytest.mark.parametrize(("width", "length"), [(22, 9), (5, 9), (40, 3)])
def test_with_sliding_windows_each_token_counts_in_the_first_window_that_holds_it(
    tmp_path: Path, before: tuple[int, ...], width: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "TOKENS_PER_BATCH", 20)  # so that narrow and wide windows have different batches
    model = save_causal(tmp_path).double()
    ids, chunk = some_ids(3, width), length - len(before)
    step = max(1, chunk // 2)
    front = torch.tensor(before, dtype=torch.long).expand(3, -1)
    with torch.inference_mode():
        losses, predicted = causal_losses(model, Sample(ids, before), length=length, sliding=True)
        for column in range(width):
            start = max(0, min(stop for stop in range(width, 0, -step) if stop > column) - chunk)
            context = torch.cat([front, ids[:, start:column]], dim=1)
            assert (predicted[:, column] == bool(context.shape[1])).all()
            assert column - start >= min(column, chunk - step)
            if context.shape[1]:
                likely = model(input_ids=context).logits[:, -1].log_softmax(-1)
                expected = -likely.gather(1, ids[:, column, None])[:, 0]
                assert_close(losses[:, column].double(), expected, dtype=torch.float32)


def test_a_model_that_knows_the_text_has_no_loss(tmp_path: Path) -> None:
    model = save_causal(tmp_path)
    ids = torch.full((2, 16), 7)
    with torch.no_grad():
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.copy_(100 * model.lm_head.weight[7])
        assert_close(
            causal_counts(model, Sample(ids), length=8, last=4)["perplexity"][0].tolist(),
            [0, 0],
            dtype=torch.float32,
            scale=1,
        )


def test_the_same_tokens_are_masked_at_every_length(tmp_path: Path) -> None:
    model = save_masked(tmp_path).double()
    ids = some_ids(4, 40)
    sample = Sample(ids, (CLS,), (SEP,), MASK)
    masked = torch.rand(ids.shape, generator=torch.Generator().manual_seed(3)) < 0.15
    assert 10 < masked.sum() < 40
    with torch.inference_mode():
        for length, chunk in ((42, 40), (22, 20)):
            losses, hits = [0.0] * 4, [0] * 4
            for text, start in ((t, s) for t in range(4) for s in range(0, 40, chunk)):
                answers, chosen = ids[text, start : start + chunk], masked[text, start : start + chunk]
                fed = [CLS, *(MASK if c else a for a, c in zip(answers.tolist(), chosen, strict=True)), SEP]
                logits = model(input_ids=torch.tensor([fed])).logits[0, 1:-1]
                losses[text] += (-logits.log_softmax(-1)[range(chunk), answers])[chosen].sum().item()
                hits[text] += (logits.argmax(-1) == answers)[chosen].sum().item()
            counts = masked_counts(model, sample, length=length, seed=3)
            (correct, number), (loss, also) = counts["masked-token accuracy"], counts["pseudo-perplexity"]
            assert number.tolist() == also.tolist() == masked.sum(dim=1).tolist()
            assert correct.tolist() == hits
            assert_close(loss.tolist(), losses, dtype=torch.float32)


@pytest.mark.parametrize(("width", "length"), [(40, 22), (43, 10), (20, 22), (7, 22)])
def test_with_sliding_windows_each_masked_token_counts_where_the_ends_are_farther(
    tmp_path: Path, width: int, length: int
) -> None:
    model, chunk, step = save_masked(tmp_path).double(), length - 2, (length - 2) // 2
    ids = some_ids(4, width)
    masked = torch.rand(ids.shape, generator=torch.Generator().manual_seed(3)) < 0.15
    given, all_windows = ids.masked_fill(masked, MASK), [(max(0, s - chunk), s) for s in range(width, 0, -step)]

    def room(column: int, start: int, stop: int) -> int:
        inside = start <= column < stop
        return min(column - start if start else width, stop - 1 - column if stop < width else width) if inside else -1

    with torch.inference_mode():
        counts = masked_counts(model, Sample(ids, (CLS,), (SEP,), MASK), length=length, seed=3, sliding=True)
        losses = torch.zeros(4, dtype=torch.float64)
        for text, column in masked.nonzero().tolist():
            start, stop = max(all_windows, key=lambda window: (room(column, *window), window[1]))
            fed = torch.tensor([[CLS, *given[text, start:stop].tolist(), SEP]])
            likely = model(input_ids=fed).logits[0, 1 + column - start].log_softmax(-1)
            losses[text] -= likely[ids[text, column]]
    loss, number = counts["pseudo-perplexity"]
    assert number.tolist() == masked.sum(dim=1).tolist()
    assert_close(loss.tolist(), losses.tolist(), dtype=torch.float32)


def test_a_tokenizer_without_a_mask_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no mask token"):
        masked_counts(save_masked(tmp_path), Sample(some_ids(1, 20)), length=20, seed=0)
