"""A library older than the tested versions is refused, and a newer one gives one warning."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from posembed.errors import ArgumentError
from posembed.versions import check_version


@pytest.fixture
def limited(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """posembed 7.0 in the place of the installed one, which needs ``somelib`` in a range; somelib is 2.0.1."""
    needs = f'Requires-Dist: somelib{request.param}; extra == "a"\nRequires-Dist: other<1\n'
    for name, number, more in (("posembed", "7.0", needs), ("somelib", "2.0.1", ""), ("other", "5", "")):
        (tmp_path / f"{name}-{number}.dist-info").mkdir()
        (tmp_path / f"{name}-{number}.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n{more}"
        )
    monkeypatch.syspath_prepend(tmp_path)
    assert version("posembed") == "7.0"
    check_version.cache_clear()
    yield
    check_version.cache_clear()


@pytest.mark.parametrize(
    ("limited", "warns"),
    [("<2", True), ("<=1.9", True), (">=1,<2", True), (">=1,<3", False), (">=2.0.1", False), (">=1,<2.1", False)],
    indirect=["limited"],
)
@pytest.mark.usefixtures("limited")
def test_a_version_above_the_range_warns_once(warns: bool) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        check_version("somelib")
        check_version("somelib")
        check_version("absent")
    assert len(seen) == warns
    assert all("somelib 2.0.1" in str(each.message) and "posembed 7.0" in str(each.message) for each in seen)


@pytest.mark.parametrize("limited", [">=2.1,<3", ">=99", ">2.0.1"], indirect=True)
@pytest.mark.usefixtures("limited")
def test_a_version_below_the_range_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r'posembed 7.0 needs somelib>.*2.0.1 is installed: pip install "some'):
            check_version("somelib")
