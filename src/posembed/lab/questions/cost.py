"""What does each encoding cost in parameters, time and memory?"""

from __future__ import annotations

from posembed.lab.cost.results import CostSettings
from posembed.lab.question import Question


class Cost(Question):
    """Measured on this machine, without training. Its result is one CostResult, in cost.json."""

    name = page = "cost"
    asks = "What does each encoding cost in parameters, time, memory, and growth with length?"
    Settings = CostSettings
