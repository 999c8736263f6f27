"""How far does each encoding carry a language model past its training length?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posembed.lab.found import Axis, Found, Results, model_size
from posembed.lab.question import Loaded, TrainedQuestion
from posembed.lab.runs.spec import with_default_window
from posembed.lab.tasks.text_specs import REPEAT_GAIN, LengthSpec, of_model
from posembed.measure.metrics import Metric


class Lengths(TrainedQuestion):
    name = "lengths"
    Spec = LengthSpec

    def settings(self, preset: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """Tests at 1 to 8 times a given training length that no test length of the preset exceeds."""
        chosen, trained = super().settings(preset, given), given.get("train_length")
        if trained is not None and given.get("test_lengths") is None and trained >= max(chosen["test_lengths"]):
            chosen["test_lengths"] = tuple(times * trained for times in (1, 2, 4, 8))
        return chosen if chosen.get("model") is None else chosen | of_model(Path(chosen["model"]).expanduser(), given)

    def load(self, chosen: dict[str, Any]) -> Loaded:
        if chosen.get("model") is not None:
            from posembed.lab.tasks.inside import load_inside

            return load_inside(chosen)
        return super().load(with_default_window(chosen))

    def axis(self, results: Results, metric: Metric) -> Axis:
        trained, tested = results[0].spec.train_length, results[0].spec.test_lengths
        if metric is REPEAT_GAIN:
            gaps = [gap for each in results if each.measurements for gap in each.measurements.by_x(metric)]
            return Axis("tokens between a passage and its repetition", max(gaps, default=0))
        base = max((length for length in tested if length <= trained), default=None)
        return Axis("tokens of context", max(tested), trained=trained, base=base)

    def facts(self, found: Found) -> dict[str, Any]:
        spec = found.spec
        model, more = f"the same small Transformer ({model_size(spec)})", ""
        if spec.model is not None:
            model = f"the same model, {spec.model} ({model_size(spec)}), {spec.model_start},"
            more = " Where its heads look is not shown, because only the lab's own model returns attention weights."
        return {"model": model, "more": more, "longest": max(spec.test_lengths)}
