"""Leaves out of signatures what only catches wrong calls: arguments of the type ``Never`` (``posembed.calls``)."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Function, Parameters


class WithoutNever(Extension):
    def on_function_instance(self, *, func: Function, **kwargs: Any) -> None:
        func.parameters = Parameters(*(given for given in func.parameters if str(given.annotation) != "Never"))
