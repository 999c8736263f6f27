from __future__ import annotations

from posembed.report.lengths.answer import answer

from made_up_runs import TYPICAL, run, runs
from posembed.lab.questions.lengths import summarise_lengths
from posembed.lab.runs.results import RunResult

DASH = "\N{EN DASH}"
FAILURE = "the loss was nan at step 90 of 700; try a lower learning rate"


def told(results: list[RunResult], reference: str | None = None) -> str:
    return " ".join(answer(summarise_lengths(results, reference=reference)))


def test_several_seeds() -> None:
    assert answer(summarise_lengths(runs(3), reference="alibi")) == [
        "Past the training length of 64 tokens, rolling and alibi hold: with 512 tokens of context, the "
        "perplexity of the same tokens is 0.95 and 0.96 times what it is with 64. It grows to 5.9 times with rope "
        "and 7.8 times with sinusoidal. With learned there is no position past 64: the model stops there.",
        f"The lowest perplexity at 512 is rolling's, 3.55 (95% interval 3.49{DASH}3.60, 3 runs of each): 0.90 "
        f"times alibi's 3.95 (paired interval 0.86{DASH}0.94). Low perplexity at length is not reach: in the "
        "repeat probe, none of them used a passage even 32 tokens back.",
    ]


def test_one_seed_claims_no_interval() -> None:
    text = told(runs(1))
    assert "no interval is known, and small differences may be chance" in text
    assert "95%" not in text
    assert "paired" not in text


def test_without_a_reference_nothing_is_said_to_be_paired() -> None:
    for seeds in (1, 3):
        text = told([run for run in runs(seeds) if run.spec.encoding != "alibi"], reference=None)
        assert "The lowest perplexity at 512 is rolling's, 3.5" in text
        assert ", before " in text
        assert "paired" not in text


def test_a_reference_that_is_best_is_compared_with_the_second() -> None:
    text = told(runs(3), reference="rolling")
    assert f"; alibi's 3.95 is 1.11 times that (paired interval 1.07{DASH}1.16)." in text


def test_what_an_interval_cannot_tell_apart_is_said_so() -> None:
    results = [run("rolling", (4.0, 4.0, 4.0, p), seed=s) for s, p in enumerate((3.9, 4.0, 4.1))]
    results += [run("alibi", (4.0, 4.0, 4.0, p), seed=s) for s, p in enumerate((4.1, 4.0, 3.95))]
    assert "so the two cannot be told apart)." in told(results)


def test_a_reference_that_ends_is_not_compared_at_the_longest() -> None:
    assert f"rolling's, 3.55 (95% interval 3.49{DASH}3.60, 3 runs of each), before alibi's 3.95." in told(
        runs(3), reference="learned"
    )


def test_nothing_holds() -> None:
    text = told(runs(1, ("learned", "sinusoidal", "rope")))
    assert text.startswith(
        "Past the training length of 64 tokens, no encoding holds. With 512 tokens of context, the perplexity of "
        "the same tokens grows to 5.9 times with rope and 7.8 times with sinusoidal, from what it is with 64."
    )


def test_everything_holds_alike_and_none_is_a_name() -> None:
    flat = (4.0, 4.0, 4.0, 4.0)
    text = told([run("rope", flat), run("none", flat)])
    assert "“none” hold: with 512 tokens of context, the perplexity of the same tokens is 1.00 times" in text


def test_the_worst_length_is_named_where_it_is_not_the_longest() -> None:
    assert "grows to 1.50 times with rope (at 128)" in told([run("rope", (4.0, 6.0, 5.0, 4.5))])


def test_failed_runs_are_told_and_left_out() -> None:
    text = told([*runs(1), run("none", failure=FAILURE)])
    assert f"Training with “none” failed (seed 0: {FAILURE})." in text
    text = told([*runs(3), run("rope", failure=FAILURE, seed=3)])
    assert f"A run with rope failed and is left out (seed 3: {FAILURE})." in text


def test_everything_failed() -> None:
    text = told([run(name, failure=FAILURE) for name in TYPICAL])
    assert "no encoding holds" not in text
    assert text.count("failed") == len(TYPICAL)
    assert "lowest" not in text
    assert "reach" not in text


def test_only_a_table_that_ends() -> None:
    text = told(runs(1, ("learned",)))
    assert text.endswith("With learned there is no position past 64: the model stops there.")
    assert "lowest" not in text
    assert "reach" not in text


def test_lengths_that_tell_nothing() -> None:
    assert told([run("rope", (4.2, 4.0), test_lengths=(32, 64))]).startswith(
        "Nothing was tested past the training length of 64 tokens."
    )
    assert "no ratio to it is known" in told([run("rope", (4.2, 4.0), test_lengths=(128, 256))])


def test_reach_past_the_training_length_is_told_apart() -> None:
    flat = (4.0, 4.0, 4.0, 4.0)
    far, near = run("rope", flat, gains=(0.4, 0.3, 0.1, 0.0)), run("alibi", flat, gains=(0.4, 0.0, 0.0, 0.0))
    assert told([far, near, run("rolling")]).endswith(
        "in the repeat probe, rope used a passage 128 tokens back; alibi used a passage 32 tokens back; "
        "rolling did not even 32 tokens back."
    )
    assert told([near, run("rolling")]).endswith("none of them used a passage more than 32 tokens back.")
    assert told([near]).endswith("alibi never used a passage more than 32 tokens back.")
    # Who gets worse is asked only where nobody holds.
    worse = run("sinusoidal", gains=(0.4, 0.4, 0.4, 0.4))
    assert "sinusoidal used" not in told([near, worse])
    assert told([worse]).endswith("sinusoidal used a passage 256 tokens back.")
