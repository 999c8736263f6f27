"""check_table: the findings that a person reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from minilm import minilm_positions, minilm_tokens
from posembed import LearnedPositionalEmbedding, RotaryEmbedding
from posembed.errors import ArgumentError
from posembed.tables.fill import initial_table, sinusoidal_table
from posembed.tables.health import Finding, check_scale, check_table, describe_rows
from posembed.tables.layout import TableLayout
from posembed.tables.resize import resize_table
from together import together


def only(findings: tuple[Finding, ...]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def trained(n: int = 64) -> Tensor:
    """A sound table: (n, 64), its rows alike where they are near."""
    return initial_table("sinusoidal", n, 64, std=0.02)


def test_all_minilm_l6_v2() -> None:
    token_norm = minilm_tokens().norm(dim=1).mean().item()
    finding, rare = check_table(minilm_positions(), token_norm=token_norm)
    assert finding.what == "outlying"
    assert finding.rows == (0, 127, 510, 511)
    assert str(finding) == (
        "outlying, rows 0, 127, 510-511: 5.45, 1.47, 1.70, 1.92 times the norm of the surrounding rows, cosine to the "
        "more similar neighbour 0.28, 0.55, 0.72, 0.52 where 0.85 is usual. "
        "Marked positions: the first row often marks the start, others mark where training sequences ended. "
        "This is not a fault, but tiling repeats the marks and interpolation blurs them: evaluate a resized table."
    )
    # BERT's texts had 128 tokens in nine tenths of its steps, and the marked row 127 hides where exactly they ended.
    assert (rare.what, describe_rows(rare.rows)) == ("rarely trained", "rows 126-511")
    assert str(rare) == (
        "rarely trained, rows 126-511: from row 126 on, the norms are 1.14 times those of the rows before it. "
        "It looks as if few training texts were long enough to reach these rows, but other causes are possible. "
        "Evaluate the model on texts of this length before you rely on it, or train on more of them."
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_change_no_verdict(dtype: torch.dtype) -> None:
    outlying, rare = check_table(minilm_positions().to(dtype))
    assert outlying.rows == (0, 127, 510, 511)
    assert rare.rows == tuple(range(126, 512))


@pytest.mark.parametrize("shape", [(1, 2), (5, 4), (16, 384), (64, 32), (512, 384), (4096, 64)])
def test_a_sound_table_has_no_findings(shape: tuple[int, int]) -> None:
    assert check_table(sinusoidal_table(*shape)) == ()
    assert check_table(0.02 * sinusoidal_table(*shape), token_norm=0.02 * shape[1] ** 0.5) == ()


@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (16, 384), (400, 8)])
def test_small_random_tables_are_not_judged(shape: tuple[int, int]) -> None:
    assert check_table(torch.randn(shape, generator=torch.Generator().manual_seed(0))) == ()


def test_a_fresh_table_was_never_trained() -> None:
    torch.manual_seed(0)
    finding = only(check_table(initial_table("normal", 512, 384)))
    assert finding.what == "like random"
    assert finding.rows == tuple(range(512))
    assert "Train the table" in finding.remedy


def test_rows_past_the_training_length_were_never_trained() -> None:
    torch.manual_seed(0)
    table = torch.cat([trained(), initial_table("normal", 64, 64)])
    finding = only(check_table(table))
    assert (finding.what, describe_rows(finding.rows)) == ("like random", "rows 64-127")
    assert "truncate the table before them" in finding.remedy


def test_a_table_of_zeros_is_dead() -> None:
    finding = only(check_table(initial_table("zero", 20, 64)))
    assert (finding.what, finding.rows, finding.figure) == ("dead", tuple(range(20)), "all zeros")
    assert "Train the table" in finding.remedy


def test_a_dead_row_is_told_once_and_hides_no_other_finding() -> None:
    table = trained()
    table[10] = 1e-6 * table[10]
    table[30] = 3 * table[30]
    dead, outlying = check_table(table)
    assert (dead.what, dead.rows) == ("dead", (10,))
    assert dead.figure == "norm 2e-07 or less, 0.16 at the median"
    assert (outlying.what, outlying.rows) == ("outlying", (30,))


def test_tiled_rows_are_repeated() -> None:
    finding = only(check_table(resize_table(trained(), length=150, method="tile"), layout=TableLayout()))
    assert (finding.what, describe_rows(finding.rows)) == ("repeated", "rows 64-149")
    assert "row 64 repeats row 0" in finding.figure


def test_one_repeated_row_does_not_hide_the_tail() -> None:
    table = minilm_positions().clone()
    as_is = {finding.what: finding.rows for finding in check_table(table)}
    for row in (20, 200, 400):
        changed = table.clone()
        changed[row] = changed[row - 1]
        found = {finding.what: finding.rows for finding in check_table(changed)}
        assert found["repeated"] == (row,)
        assert found["rarely trained"][0] == as_is["rarely trained"][0]
    torch.manual_seed(0)
    for rows, start in ((64, 48), (100, 75)):  # one row is more than 1% of few rows
        short = sinusoidal_table(rows, 64) + 0.02 * torch.randn(rows, 64)
        short[start:] += 0.25 * torch.randn(rows - start, 64)
        short[10] = short[9]
        assert {finding.what for finding in check_table(short)} == {"repeated", "rarely trained"}, rows


def test_positions_counted_in_bfloat16_are_repeated() -> None:
    positions = torch.arange(300.0).bfloat16()
    finding = only(check_table(sinusoidal_table(301, 64)[positions.long()]))
    assert finding.what == "repeated"
    assert finding.rows[0] == 257


def test_nan_and_infinity_are_found_in_every_row_and_the_rest_is_still_judged() -> None:
    table = torch.cat([torch.zeros(2, 64), trained()])
    table[0, 3] = float("inf")
    table[20, 5] = float("nan")
    table[40] *= 3
    broken, outlying = check_table(table, layout=TableLayout(reserved=2))
    assert (broken.what, broken.rows) == ("not finite", (0, 20))
    assert broken.figure == "NaN or infinity in 2 of 66 rows"
    assert (outlying.what, outlying.rows) == ("outlying", (40,))
    assert only(check_table(torch.full((4, 3), float("nan")))).rows == (0, 1, 2, 3)


def test_rows_that_are_not_positions_are_not_judged() -> None:
    table = torch.cat([torch.zeros(2, 64), 50 * torch.ones(1, 64), trained(), torch.zeros(1, 64)])
    assert check_table(table, layout=TableLayout(reserved=2, prefix=1, tail=1)) == ()
    assert {finding.what for finding in check_table(table)} == {"dead", "outlying"}


def test_rows_are_named_as_the_table_is_indexed() -> None:
    table = trained()
    table[30] *= 3
    padded = torch.cat([torch.zeros(2, 64), table])
    assert only(check_table(padded, layout=TableLayout.roberta())).rows == (32,)


def test_a_vision_table_of_shape_one_n_d() -> None:
    assert check_table(trained(65)[None], layout=TableLayout.VIT.on_grid(8, 8)) == ()


def test_a_scale_that_drowns_the_tokens() -> None:
    table = sinusoidal_table(64, 64)
    finding = only(check_table(table, token_norm=0.02 * 8))
    assert (finding.what, finding.rows) == ("scale", tuple(range(64)))
    assert finding.figure == "norm 5.66, 35.4 times the tokens' 0.16"
    assert check_table(table, token_norm=0.02 * 8 * 64**0.5 * 2) == ()  # tokens scaled up, as the original does


def test_tokens_that_drown_the_rows() -> None:
    table = trained(64)
    finding = only(check_table(table, token_norm=8.0))
    assert finding.figure == "norm 0.16, and the tokens' is 50 times that, 8"
    assert (
        finding.remedy == "Start from rows of the tokens' scale (std=1), or from tokens of the rows' scale (std=0.02)."
    )
    assert check_table(table, token_norm=0.16 * 19) == ()


@pytest.mark.parametrize(
    ("tokens", "rows", "found"),
    [(1, 0.02, 1), (0.02, 0.5, 1), (1, 1, 0), (1, 0.06, 0), (0.06, 0.15, 0), (1, 0, 0), (0, 1, 0)],
)
def test_the_scale_of_tokens_and_rows(tokens: float, rows: float, found: int) -> None:
    x, table = torch.full((2, 3, 8), float(tokens)), torch.full((5, 8), float(rows))
    layer = LearnedPositionalEmbedding(max_len=5, dim=8, init=table)
    embedding = torch.nn.Embedding.from_pretrained(table)
    results = [check_scale(x, held) for held in (table, table[None], layer, embedding)]
    assert [[f.what for f in findings] for findings in results] == 4 * [found * ["scale"]]
    assert not layer(x).isnan().any()  # and the layer itself says nothing: warnings are errors


def test_the_scale_is_that_of_the_positions_alone() -> None:
    layer = LearnedPositionalEmbedding(max_len=5, dim=8, init="zero", layout=TableLayout.OPT)
    with torch.no_grad():
        layer.weight[:2] = 100
        layer.weight[2:] = 1
    assert check_scale(torch.ones(2, 3, 8), layer) == ()
    finding = only(check_scale(0.01 * torch.ones(2, 3, 8), layer))
    assert finding.rows == (2, 3, 4, 5, 6)
    assert only(check_scale(0.01 * torch.ones(2, 3, 8), layer.weight, layout=layer.layout)) == finding


def test_the_table_is_not_changed() -> None:
    table = trained()
    before = table.clone()
    check_table(table)
    assert torch.equal(table, before)


@pytest.mark.parametrize(
    ("rows", "words"), [((4,), "row 4"), ((0, 127, 510, 511), "rows 0, 127, 510-511"), ((1, 2, 3), "rows 1-3")]
)
def test_rows_in_words(rows: tuple[int, ...], words: str) -> None:
    assert describe_rows(rows) == words


HELD = {
    "array": lambda rows: rows.numpy(),
    "layer": lambda rows: LearnedPositionalEmbedding(max_len=64, dim=64, init=rows),
    "layer with reserved rows": lambda rows: LearnedPositionalEmbedding(
        max_len=62, dim=64, init=rows, layout=TableLayout.OPT
    ),
    "embedding": lambda rows: nn.Embedding(64, 64, _weight=rows),
    "module around it": lambda rows: nn.ModuleDict({"wpe": nn.Embedding(64, 64, _weight=rows)}),
}


@pytest.mark.parametrize("holder", HELD)
def test_a_table_is_checked_in_whatever_holds_it(holder: str) -> None:
    rows = trained()
    rows[0] = rows[40] = 0
    layout = TableLayout.OPT if holder == "layer with reserved rows" else TableLayout()
    held = HELD[holder](rows.clone())
    found = check_table(held)
    assert found == check_table(rows, layout=layout)
    assert only(found).rows == ((40,) if layout.front else (0, 40))
    assert check_scale(torch.ones(2, 64), held) == check_scale(torch.ones(2, 64), rows, layout=layout)


ROPE, TOKENS = RotaryEmbedding(8), torch.ones(2, 3, 8)
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: check_scale(TOKENS.long(), TOKENS[0]), r"tokens: expected .* of floats \(\.\.\., D\); got torch.int64"),
    (lambda: check_scale(torch.ones(2, 3), torch.ones(5, 8)), r"tokens must be \(\.\.\., D=8\); got \(2, 3\)"),
    (lambda: check_scale(TOKENS, ROPE), "RotaryEmbedding has no table of learned rows"),
    *((lambda norm=norm: check_table(trained(), token_norm=norm), "token_norm") for norm in (0, -1.0, float("nan"))),
    (lambda: check_table(torch.zeros(3)), r"\(N, D\)"),
    (lambda: check_table(torch.zeros(3, 4), layout=TableLayout(reserved=3)), "no row left"),
    *((lambda holder=holder, check=check: check(holder), "table|rows")
      for holder in (ROPE, "my-model", None, nn.Linear(3, 4), nn.Dropout())
      for check in (check_table, lambda held: check_scale(torch.ones(2, 4), held))),
]  # fmt: skip


@together(("call", "message"), REFUSED)
def test_what_is_no_table_or_no_scale_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()
