"""Turns a user's needs and measured studies into one recommendation, with its costs, caveats and measurements.

The rule: among the encodings that meet the needs, those that do not differ significantly from the best one count as
equal. Of these, the most used is recommended; if none is in general use, the one with the fewest parameters. A
checkpoint keeps its own positions, resized or scaled if necessary. A user's own runs replace the published ones if
they measured an encoding that meets the needs. A task does not count if ``none`` is not significantly worse there than
the best encoding: it does not depend on order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posembed.lab.advice.caveats import caveats
from posembed.lab.advice.choose import Evidence, Option
from posembed.lab.advice.evidence import Study, published_studies, study_of_folder
from posembed.lab.advice.given import needs_of
from posembed.lab.advice.longer import FAR_APART, OWN, cheapest, findings
from posembed.lab.advice.needs import Needs
from posembed.measure.summary import plain
from posembed.settings import converted
from posembed.words import SENTENCES


@dataclass(frozen=True, repr=False)
class Advice:
    """One recommendation with its reasons. recommendation: the name of the first of ``options``."""

    needs: Needs
    recommendation: str
    title: str
    reasons: tuple[str, ...]
    options: tuple[Option, ...]
    """Every encoding for this kind of model, or what can be done with a checkpoint; the recommended option first."""
    measure: str
    """What the study measured: "perplexity", "entity F1 in labelling words" or "accuracy in recognizing
    digits". Empty if the options are those of a checkpoint."""
    measured_at: tuple[int, int]
    """The lengths (tokens), or image sizes (pixels), at which the options' ``trained`` and ``needed`` were measured."""
    caveats: tuple[str, ...]
    sources: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON; None stands for infinity."""
        return dict(plain(dataclasses.asdict(self)))

    def sections(self) -> dict[str, list[str]]:
        """Returns the lines of text by heading, without the recommendation itself and the options."""
        found = {"Why": self.reasons, "Watch for": self.caveats, "Measured in": self.sources}
        return {heading: list(lines) for heading, lines in found.items() if lines}

    def __repr__(self) -> str:
        options = [f"{each.name}: {each.cannot or 'meets the needs'}" for each in self.options]
        sections = self.sections() | {"Options": options}
        parts = ["\n  ".join([heading, *lines]) for heading, lines in sections.items()]
        return "\n\n".join([f"{self.recommendation}: {self.title}", *parts])


def advise(*, runs: str | Path | None = None, **chosen: Any) -> Advice:
    """Recommends one encoding, as ``posembed advise`` does.

    Args:
        runs: a run folder of ``posembed compare lengths``, used as evidence in place of the published measurements.
        chosen: the options of ``posembed advise``: ``length`` in tokens, or ``grid`` as (height, width) in patches;
            ``longest`` (the longest text at test time, "none" for no limit), ``longest_grid``, ``width``, ``heads``,
            ``vocabulary``, ``far`` (whether the model must retrieve tokens from far back), ``encoder``,
            ``max_parameters``, ``checkpoint`` (a folder, a file or a hub name), ``table`` (the length of a learned
            table, in place of a checkpoint).

    Raises:
        ArgumentError: a value that cannot be used; the needs contradict each other, or no encoding meets them; or the
            folder has no finished run.
        CheckpointError: the checkpoint cannot be read.
        RunFolderError: the folder is not a run folder of ``posembed compare lengths``, or is damaged.

    Examples:
        >>> from posembed import advise
        >>> advise(length=512, longest=4096, far=True).recommendation
        'rolling/none+logn'
    """
    own = [] if runs is None else [study_of_folder(converted("runs", runs, Path))]
    return recommend(needs_of(**chosen), [*own, *published_studies()])


def recommend(needs: Needs, studies: Sequence[Study]) -> Advice:
    """Recommends one option that meets the needs. studies: the evidence, most trusted first."""
    evidence = Evidence(needs, studies)
    options, study = evidence.options(), evidence.study
    own = {each.name: each for each in options if each.name in OWN and each.cannot is None}
    kind = needs.checkpoint.kind if needs.checkpoint is not None else ""
    if own:
        chunked = needs.is_cut and "chunk" in own
        best = "chunk" if chunked else "keep" if "keep" in own else cheapest(kind, far=needs.far_in_texts)
        chosen = own.get(best) or next(iter(own.values()))
        reasons = [reason(chosen.name, needs)]
        # An encoding that the checkpoint was not trained with is no option for it.
        options = [each for each in options if each.name in OWN]
    else:
        chosen, reasons = evidence.best(options)
    measured = findings(kind, far=needs.far_in_texts) if own and chosen.name != "keep" else ()
    used = [] if own else [study, *evidence.others, *evidence.idle, *filter(None, [evidence.passkey])]
    return Advice(
        needs=needs,
        recommendation=chosen.name,
        title=chosen.title,
        reasons=(*reasons, *evidence.departure(chosen.name)),
        options=tuple(sorted(options, key=lambda each: (each.name != chosen.name, *evidence.order(each)))),
        measure="" if own else study.measure.name.partition(" ")[2],
        measured_at=(study.train_length, evidence.length),
        caveats=tuple(caveats(chosen, evidence)),
        sources=tuple(dict.fromkeys((*map(str, measured), *(f"{each.title} ({each.source})" for each in used)))),
    )


def reason(name: str, needs: Needs) -> str:
    """Returns why an option is recommended for a checkpoint. name: the option."""
    kind = needs.checkpoint.kind if needs.checkpoint is not None else ""
    if name == "chunk" and kind == SENTENCES:
        return (
            "for models of this kind, no longer table was measured to be significantly better than chunks, which cost "
            "nothing; their vectors are averaged, or the best of them counts"
        )
    if name == "chunk":
        return (
            "for models of this kind, no longer table was measured to be better than sliding windows of the old length "
            "(which overlap by half), after the same fine-tuning"
        )
    if name == "tune" and needs.far_in_texts:
        return (
            f"{FAR_APART}; where the answer needed both, a longer table was measured to be better, after the same "
            "fine-tuning (in a small BERT)"
        )
    if name == "tune":
        return "for models of this kind, fine-tuning at a longer length was measured to be better than chunks"
    if name == "keep":
        # A finding, such as rows that were rarely trained, would contradict it.
        held = needs.checkpoint
        if held is not None and held.length is None:
            return f"no table that ends was found in it, and you need no more than the {needs.reach} of its training"
        doubtful = held is not None and (held.untrained(needs.longest) or held.findings)
        trained = "" if doubtful else ", and all its weights were trained with them"
        return f"the checkpoint has positions for {needs.reach}{trained}"
    return f"the checkpoint was trained with its table: resize it to {needs.reach} and keep all other weights"
