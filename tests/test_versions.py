"""A library that is newer than the tested versions gives one warning."""

from __future__ import annotations

import warnings
from importlib.metadata import version
from pathlib import Path

import pytest

from posembed.versions import warn_if_untested


@pytest.mark.parametrize(
    ("limit", "warns"), [("<2", True), ("<=1.9", True), (">=1,<3", False), (">=99", False), (">=1,<2.1", False)]
)
def test_a_version_above_the_range_warns_once(
    limit: str, warns: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = f'Requires-Dist: somelib{limit}; extra == "a"\nRequires-Dist: other<1\n'
    for name, number, more in (("posembed", "7.0", needs), ("somelib", "2.0.1", ""), ("other", "5", "")):
        (tmp_path / f"{name}-{number}.dist-info").mkdir()
        (tmp_path / f"{name}-{number}.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n{more}"
        )
    monkeypatch.syspath_prepend(tmp_path)
    assert version("posembed") == "7.0"
    warn_if_untested.cache_clear()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warn_if_untested("somelib")
        warn_if_untested("somelib")
        warn_if_untested("absent")
    warn_if_untested.cache_clear()
    assert len(seen) == warns
    assert all("somelib 2.0.1" in str(each.message) and "posembed 7.0" in str(each.message) for each in seen)
