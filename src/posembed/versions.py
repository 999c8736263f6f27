"""Compares the versions of other libraries with the tested range, and names them in errors."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from posembed.errors import ArgumentError


@cache
def check_version(package: str) -> None:
    """Compares the installed version of a package with the range in posembed's metadata.

    Raises ArgumentError in each call for a version below the range. Warns once per process for a version above it.
    """
    try:
        installed, own, needed = version(package), version("posembed"), requires("posembed") or []
    except PackageNotFoundError:  # a source tree without metadata, or an import that fails by itself
        return
    ranges = [needs.specifier for needs in map(Requirement, needed) if needs.name == package]
    missed = sorted(
        {str(limit) for each in ranges for limit in each if not limit.contains(installed, prereleases=True)}
    )
    if not missed:
        return
    remedy = f'pip install "{package}{",".join(sorted({str(each) for each in ranges}))}"'
    if any(limit.startswith(">") for limit in missed):
        raise ArgumentError(f"posembed {own} needs {package}{missed[0]}; {package} {installed} is installed: {remedy}")
    warnings.warn(
        f"{package} {installed} is newer than the versions that posembed {own} was tested with "
        f"({package}{', '.join(missed)}), and names that posembed reads from it may have changed. Install a tested "
        f"version: {remedy}",
        stacklevel=3,
    )


@contextmanager
def names_versions(package: str) -> Iterator[None]:
    """Adds the versions of a library and of posembed to errors about names that the library does not have."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        versions = f"{package} {version(package)}, posembed {version('posembed')}"
        if versions in str(error):
            raise
        raise type(error)(f"{error} ({versions})") from error
