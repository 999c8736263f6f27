"""Cases that run together fail and skip as tests do."""

from __future__ import annotations

from pathlib import Path

import pytest

import together as module
from together import together


def test_every_failure_is_reported() -> None:
    @together("row", [1, 2, 3])
    @together(("column", "sign"), [(1, 1), (2, -1)])
    def check(row: int, column: int, sign: int) -> None:
        assert row < 3 or sign > 0

    with pytest.raises(pytest.fail.Exception, match="1 of 3 cases failed") as caught:
        check()
    assert "['row'] = (3,)" in str(caught.value)
    assert "['column', 'sign'] = (2, -1)" in str(caught.value)
    assert "AssertionError" in str(caught.value)


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_unusual_runs_with_whole(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.asked, "whole", whole)
    seen = []
    together("n", range(4), usual=lambda n: n % 2 == 1)(lambda n: seen.append(n))()
    assert seen == ([0, 1, 2, 3] if whole else [1, 3])
    assert module.by_turns("abcde", 4) == (list("abcde") if whole else ["b", "e"])
    with pytest.raises(AssertionError) if not whole else pytest.raises(pytest.skip.Exception):
        together("n", [1], usual=lambda n: False)(lambda n: pytest.skip("for a reason"))()


def test_each_case_has_a_folder_and_undoes_its_patches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @together("name", ["a", "b"])
    def check(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "file").touch()
        assert module.numbers is not None
        monkeypatch.setattr(module, "numbers", None)

    check(tmp_path=tmp_path, monkeypatch=monkeypatch)
    assert len(list(tmp_path.iterdir())) == 2
