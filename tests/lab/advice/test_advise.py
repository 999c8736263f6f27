"""Every combination of needs gets one recommendation, with a reason, that can do what is needed."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posembed.errors import ArgumentError
from posembed.lab.advice.advise import BY_NAME, CHOICES, CONDITIONS, Advice, advise, recommend
from posembed.lab.advice.evidence import Measured, Study, published_studies
from posembed.lab.advice.needs import Existing, Needs, needs_of
from posembed.statistics import Estimate

TRAINED = (1, 64, 512, 8192, 32_768)
GRIDS = ((1, 1), (14, 14), (7, 28))


def all_needs() -> list[Needs]:
    """Every kind of need: lengths, limits, far or not, wide tables, checkpoints of every kind, grids."""
    found = []
    for trained, times, far, vocabulary in itertools.product(
        TRAINED, (1, 2, 40, None), (False, True), (0, 300, 50_257)
    ):
        longest = None if times is None else trained * times
        held = [None, Existing(None), *(Existing(length) for length in (trained, 2 * trained, max(trained // 2, 1)))]
        found += [
            Needs(length=trained, longest=longest, vocabulary=vocabulary, far=far, checkpoint=checkpoint)
            for checkpoint in held
        ]
    for grid, wider, far in itertools.product(GRIDS, (0, 10), (False, True)):
        largest = (grid[0] + wider, grid[1] + wider)
        of_checkpoint = [None, Existing(None), Existing(math.prod(grid), grid), Existing(math.prod(largest), largest)]
        found += [
            Needs(
                length=math.prod(grid),
                longest=math.prod(largest),
                grid=grid,
                longest_grid=largest,
                vocabulary=0,
                far=far,
                checkpoint=checkpoint,
            )
            for checkpoint in of_checkpoint
        ]
    return found


def can(name: str, needs: Needs) -> bool:
    """What each choice can do, said a second time and otherwise."""
    far, held = needs.far, needs.checkpoint
    longer = needs.longest is None or needs.longest > needs.length
    if name == "keep":
        if held is None:
            return False
        if held.length is None:
            return not longer
        if needs.grid is not None:
            there, wanted = held.grid, needs.longest_grid or needs.grid
            return there is not None and there[0] >= wanted[0] and there[1] >= wanted[1]
        return needs.longest is not None and needs.longest <= held.length
    if name == "resize":
        return held is not None and held.length is not None and needs.longest is not None
    if needs.grid is not None:
        return name == "learned-grid, re-gridded" or (name == "learned-grid" and not longer)
    return {
        "learned": not longer,
        "rope": not longer,
        "sinusoidal": not longer,
        "rope-scaled": longer,
        "rolling": not far,
        "rope+window": not far,
        "alibi": not far,
    }.get(name, False)


@pytest.mark.parametrize("studies", [[], published_studies()], ids=["bare", "committed"])
def test_one_recommendation_with_a_reason_that_can_do_it(studies: list[Study]) -> None:
    for needs in all_needs():
        advice = recommend(needs, studies)
        assert can(advice.recommendation, needs), (needs, advice)
        assert advice.title
        assert advice.reasons
        assert all(advice.reasons)
        assert advice.caveats
        (recommended,) = (option for option in advice.options if option.name == advice.recommendation)
        assert recommended.cannot is None


def test_what_is_said_of_every_option_is_true() -> None:
    for needs in all_needs():
        for option in recommend(needs, []).options:
            assert (option.cannot is None) == can(option.name, needs), (needs, option)
            assert option.parameters >= 0
            assert option.share == needs.share(option.parameters)


def recommended(length: int, longest: int | None, **more: Any) -> str:
    return recommend(Needs(length=length, longest=longest, **more), []).recommendation


def test_the_rules() -> None:
    assert recommended(512, 512) == "learned"
    assert recommended(512, 512, far=True) == "learned"
    assert recommended(16_384, 16_384) == "rope"  # too long for a table
    assert recommended(4096, 4096, vocabulary=256) == "rope"  # a table larger than the tokens'
    assert recommended(512, 4096) == recommended(512, None) == "rolling"
    assert recommended(512, 4096, far=True) == recommended(512, None, far=True) == "rope-scaled"
    assert recommended(512, 512, checkpoint=Existing(512)) == "keep"
    assert recommended(512, 2048, checkpoint=Existing(512)) == "resize"
    assert recommended(512, None, checkpoint=Existing(512)) == "rolling"
    assert recommended(512, 2048, checkpoint=Existing(None)) == "rope-scaled"
    grid = {"grid": (14, 14), "vocabulary": 0}
    assert recommended(196, 196, **grid) == "learned-grid"
    assert recommended(196, 576, longest_grid=(24, 24), **grid) == "learned-grid, re-gridded"
    assert recommended(196, 576, longest_grid=(24, 24), checkpoint=Existing(196, (14, 14)), **grid) == "resize"


def test_parameters_of_each_choice() -> None:
    advice = recommend(Needs(length=512, longest=2048, width=768, checkpoint=Existing(512)), [])
    parameters = {option.name: option.parameters for option in advice.options}
    assert parameters["resize"] == 2048 * 768
    assert parameters["rolling"] == Needs(length=512, longest=None).window * 768
    assert parameters["keep"] == parameters["rope"] == parameters["alibi"] == 0


def test_what_goes_past_the_evidence_is_said() -> None:
    def caveats(**needs: Any) -> str:
        return " | ".join(recommend(Needs(length=512, **needs), []).caveats)

    assert "a factor of 64 is more than 32" in caveats(longest=512 * 64, far=True)
    assert "more than the 32" not in caveats(longest=512 * 32, far=True)
    assert "every factor has a limit" in caveats(longest=None, far=True)
    assert "16 times the table's length is more than the 8" in caveats(longest=8192, checkpoint=Existing(512))
    assert "training from scratch" in caveats(longest=None, checkpoint=Existing(512))
    assert "only if the checkpoint has RoPE" in caveats(longest=2048, checkpoint=Existing(None))
    assert "rows 7 to 9" in caveats(longest=512, checkpoint=Existing(512, findings=("rows 7 to 9 were never trained",)))


def study(own: bool, **perplexities: tuple[float, float]) -> Study:
    """Of encodings trained at 512: mean and half interval, the same at every length."""
    rows = tuple(
        Measured(name, None, 3, {n: Estimate(mean, mean - half, mean + half) for n in (512, 4096)})
        for name, (mean, half) in perplexities.items()
    )
    return Study("a study", "runs/mine", 512, rows, own=own)


def test_runs_of_ones_own_overrule_where_they_tell_apart() -> None:
    needs = Needs(length=512, longest=4096)
    better = recommend(needs, [study(True, rolling=(5.0, 0.1), alibi=(4.0, 0.1))])
    assert better.recommendation == "alibi"
    assert "in your own runs alibi has a perplexity of 4.00 (3.90 to 4.10) at 4,096 tokens" in better.reasons[0]
    unclear = recommend(needs, [study(True, rolling=(5.0, 0.6), alibi=(4.0, 0.6))])
    assert unclear.recommendation == "rolling"
    assert "intervals overlap" in unclear.caveats[0]


def test_runs_cannot_make_an_encoding_do_what_it_cannot() -> None:
    needs = Needs(length=512, longest=4096, far=True)
    advice = recommend(needs, [study(True, rolling=(4.0, 0.01), alibi=(3.0, 0.01))])
    assert advice.recommendation == "rope-scaled"


def test_the_figures_of_others_only_warn() -> None:
    advice = recommend(Needs(length=512, longest=4096), [study(False, rolling=(5.0, 0.1), alibi=(4.0, 0.1))])
    assert advice.recommendation == "rolling"
    assert "do not overlap" in advice.caveats[0]


def test_advice_reads_as_text_and_as_plain_values() -> None:
    advice = recommend(Needs(length=512, longest=4096, far=True))
    text = repr(advice)
    assert text.startswith(f"rope-scaled: {advice.title}")
    assert all(line in text for line in (*advice.reasons, *advice.caveats))
    values = json.loads(json.dumps(advice.to_dict()))
    assert values["needs"]["longest"] == 4096
    assert values["options"][0] == vars(advice.options[0])


def test_what_is_not_given_follows_from_the_rest() -> None:
    assert needs_of(length=512) == Needs(length=512, longest=512)
    assert needs_of(length=512, longest="none") == Needs(length=512, longest=None)
    assert needs_of(grid=(14, 14), longest_grid=(24, 24)) == Needs(
        length=196, longest=576, grid=(14, 14), longest_grid=(24, 24), vocabulary=0
    )
    with pytest.raises(ArgumentError, match="give --length"):
        needs_of()
    assert advise(length=512, longest=4096, far=True).recommendation == "rope-scaled"


def test_figures_are_named_with_their_source() -> None:
    advice = recommend(Needs(length=512, longest=512), published_studies())
    assert {figures.source for figures in advice.figures} == {"docs/measured.md"}
    assert any(line.startswith("learned: ") and "no position" in line for line in advice.figures[0].lines)
    own = study(True, rolling=(5.0, 0.1))
    assert [f.source for f in recommend(Needs(length=512, longest=512), [own, *published_studies()]).figures] == [
        "runs/mine"
    ]


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        ({"length": 512, "longest": 256}, "the longest length, 256, is below the training length of 512"),
        ({"length": 0, "longest": 1}, "the training length must be at least 1"),
        (
            {"length": 8, "longest": 8, "width": 100},
            "width 100 is not divisible by 12 heads; try a width of 96",
        ),
        ({"length": 8, "longest": 8, "vocabulary": -1}, "vocabulary cannot be negative"),
        ({"length": 193, "longest": 193, "grid": (14, 14)}, "a grid of 14 x 14 has 196 patches"),
        ({"length": 0, "longest": 0, "grid": (0, 3)}, "must be at least 1"),
        (
            {"length": 196, "longest": 280, "grid": (14, 14), "longest_grid": (10, 28)},
            "the longest grid, 10 x 28, is smaller in one direction",
        ),
        ({"length": 196, "longest": None, "grid": (14, 14)}, "without limit"),
        ({"length": 196, "longest": 196, "longest_grid": (14, 14)}, "needs the training grid"),
        ({"length": 196, "longest": 196, "grid": (14, 14), "checkpoint": Existing(196)}, "a sequence of 196"),
        ({"length": 196, "longest": 196, "checkpoint": Existing(196, (14, 14))}, "are a grid of 14 x 14"),
    ],
)
def test_needs_that_contradict_each_other(needs: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        Needs(**needs)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.integers(1, 100_000),
    st.one_of(st.none(), st.floats(1, 1000)),
    st.booleans(),
    st.integers(0, 300_000),
    st.one_of(st.none(), st.just(0), st.integers(1, 100_000)),
)
def test_any_numbers(trained: int, times: float | None, far: bool, vocabulary: int, table: int | None) -> None:
    held = None if table is None else Existing(table or None)
    longest = None if times is None else int(trained * times)
    needs = Needs(length=trained, longest=longest, far=far, vocabulary=vocabulary, checkpoint=held)
    advice: Advice = recommend(needs, published_studies())
    assert can(advice.recommendation, needs)
    assert BY_NAME[advice.recommendation].cannot(needs) is None


@pytest.mark.parametrize("noise", [(3.9, 1.0, 7.0), (3.0, 2.0, 9.0), (3.95, None, None), (4.5, 4.0, 5.0)])
def test_a_noisy_third_hides_no_clear_rival(noise: tuple[float, float | None, float | None]) -> None:
    def measured(**means: tuple[float, float | None, float | None]) -> Study:
        rows = (Measured(name, None, 3, {512: Estimate(*mean)}) for name, mean in means.items())
        return Study("own", "x", 512, tuple(rows), own=True)

    needs = Needs(length=512, longest=512)
    clear = {"learned": (5.0, 4.9, 5.1), "rope": (4.0, 3.9, 4.1)}
    assert recommend(needs, [measured(**clear)]).recommendation == "rope"
    assert recommend(needs, [measured(**clear, sinusoidal=noise)]).recommendation == "rope"


def test_a_length_that_was_not_measured_is_not_called_impossible() -> None:
    rows = (Measured("rope", None, 1, {32: Estimate(4.0), 48: None}),)
    found = recommend(Needs(length=16, longest=16), [Study("own", "x", 16, rows, own=True)]).figures
    assert found[0].lines == ("rope: not measured at 16, no position at 48 (runs: 1)",)


def test_every_condition_is_known_and_used() -> None:
    asked = {condition for choice in CHOICES for condition, _ in (*choice.unless, *choice.caveats)}
    assert asked == set(CONDITIONS)
