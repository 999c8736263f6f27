"""Names the versions of other libraries: in a warning, if one is newer than the tested range, and in errors."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement


@cache
def warn_if_untested(package: str) -> None:
    """Warns once per process if the installed version of a package is above the range in posembed's metadata."""
    try:
        installed, own, needed = version(package), version("posembed"), requires("posembed") or []
    except PackageNotFoundError:  # a source tree without metadata, or an import that fails by itself
        return
    ranges = [needs.specifier for needs in map(Requirement, needed) if needs.name == package]
    limits = sorted({str(limit) for each in ranges for limit in each if limit.operator in ("<", "<=")})
    if any(not Requirement(package + limit).specifier.contains(installed, prereleases=True) for limit in limits):
        warnings.warn(
            f"{package} {installed} is newer than the versions that posembed {own} was tested with "
            f"({package}{', '.join(limits)}), and names that posembed reads from it may have changed. Install a tested "
            f'version: pip install "{package}{limits[0]}"',
            stacklevel=3,
        )


@contextmanager
def names_versions(package: str) -> Iterator[None]:
    """Adds the versions of a library and of posembed to the error of a name that the library does not have."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        versions = f"{package} {version(package)}, posembed {version('posembed')}"
        if versions in str(error):
            raise
        raise type(error)(f"{error} ({versions})") from error
