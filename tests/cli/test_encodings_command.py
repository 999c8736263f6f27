from __future__ import annotations

import json

from posembed.nn.encodings import ENCODINGS, names_for


def test_every_encoding_with_what_it_learns(posembed) -> None:
    sizes = "--width 64 --heads 4 --length 128 --layers 3"
    code, out, _ = posembed(f"encodings {sizes} --json", columns=140)
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)}
    assert list(rows) == list(ENCODINGS)
    for name, row in rows.items():
        assert row["line"] == ENCODINGS[name].line
        assert row["paper"] == ENCODINGS[name].paper
    learned = {
        "learned": 128 * 64,
        "rolling": 32 * 64,
        "sinusoidal": 0,
        "rope": 0,
        "alibi": 0,
        "t5": 32 * 4,
        "kerple-log": 2 * 4,
        "kerple-power": 2 * 4,
        "fire": 2 * 32 + 32 * 4 + 4 + 2,
        "pope": 4 * 16,
        "rope-yarn": 0,
        "learned-1d": (1 + 14 * 14) * 64,
        "factorized": (1 + 14 + 14) * 64,
        "none": 0,
    }
    assert {name: rows[name]["parameters"] for name in learned} == learned
    assert {name for name, row in rows.items() if "encoder" in row["models"]} == set(names_for("encoder"))


def test_the_table_shows_all_of_it(posembed) -> None:
    code, out, _ = posembed("encodings", columns=140)
    assert code == 0
    for name in ENCODINGS:
        assert f"\n{name} " in out
    assert "786,432" in out  # 1,024 x 768
    assert "arXiv:2310.04418" in out
    assert "width 768, 12 heads, 1,024 tokens, 12 layers" in out


def test_encodings_that_cannot_have_these_sizes_say_so(posembed) -> None:
    for sizes in ("--width 12 --heads 4", "--length 1", "--length 5"):
        rows = json.loads(posembed(f"encodings {sizes} --json").out)
        impossible = {row["name"] for row in rows if row["parameters"] is None}
        assert impossible == {row["name"] for row in rows if "(impossible at these sizes: " in row["line"]}
        assert 0 < len(impossible) < len(rows), sizes
        code, out, _ = posembed(f"encodings {sizes}", columns=140)
        assert code == 0
        assert out.count(" impossible ") == len(impossible)


def test_sizes_without_memory_for_them(posembed) -> None:
    code, out, err = posembed("encodings --grid 2147483648")
    assert (code, out) == (1, "")
    assert err.startswith("posembed: error: there is not enough memory for these sizes: ")
    assert err.count("\n") == 1
