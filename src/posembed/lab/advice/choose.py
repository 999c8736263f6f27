"""Which encodings meet the needs, and which of these the evidence prefers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from posembed.errors import ArgumentError
from posembed.lab.advice.candidates import candidates
from posembed.lab.advice.evidence import Study
from posembed.lab.advice.guides import guides_say
from posembed.lab.advice.longer import FAR_APART, OWN, findings
from posembed.lab.advice.needs import Candidate, Needs
from posembed.statistics import Estimate
from posembed.words import called, listed

if TYPE_CHECKING:
    from posembed.nn.encodings import Use

MOST_USED: dict[Use, tuple[str, ...]] = {
    "decoder": ("rope", "learned", "sinusoidal", "alibi", "rope+window", "rope-yarn", "rope-llama3", "t5"),
    "encoder": ("learned", "sinusoidal", "rope", "t5"),
    "images": ("learned-2d", "sinusoidal-2d"),
}
"""The encodings of the known models of each kind, most used first (docs/who-uses-what.md; a test compares them)."""
FOUND = 90.0
"""Far tokens are retrieved if at least this percentage of passkeys is found."""


@dataclass(frozen=True)
class Option:
    """An encoding that was considered. ``cannot``: the reason why it does not meet the needs; None if it does."""

    name: str
    title: str
    parameters: int
    """Position parameters, new or existing."""
    share: float | None
    """These parameters as a share of the position and token parameters; None without a token table."""
    cannot: str | None
    trained: Estimate | None = None
    """What was measured at the training length, in the units of ``Advice.measure``."""
    needed: Estimate | None = None
    """What was measured at the needed length, or at the longest measured length."""
    found: Estimate | None = None
    """The percentage of passkeys found at the needed length."""
    window: int | None = None


class Evidence:
    """The study that decides which encoding is best, and for decoders the passkey study, at the lengths in the needs.

    The user's own study decides if it measured an encoding that meets the needs. studies: most trusted first.

    Raises ArgumentError for a user's own study of something else, or of no length that the needs ask for.
    """

    def __init__(self, needs: Needs, studies: Sequence[Study]) -> None:
        self.needs, self.known = needs, candidates(needs)
        # No study of encoders goes past the training length. There, the study of decoders decides.
        kinds = ("images",) if needs.use == "images" else ("accuracy", "labels")
        if needs.use == "decoder" or (needs.encoder and not needs.fixed):
            kinds = ("perplexity",)
        self.passkey = next((s for s in studies if s.kind == "passkey"), None) if needs.use == "decoder" else None
        able = [each.name for each in self.known if self.unfit(each) is None]
        for study in studies:
            if study.own and study.kind not in kinds:
                what = "images" if needs.use == "images" else "encoders that read texts of their training length"
                raise ArgumentError(
                    f"{study.source} has perplexities of texts, which say nothing on {what}; leave it out"
                )
        fitting = [study for study in studies if study.kind in kinds]
        deciding, lacks = list[Study](), None
        for study in (study for study in fitting if study.own and study.rows.keys() & able):
            try:
                deciding += [study] if any(study.value(name, self.at(study)) for name in able) else []
            except ArgumentError as error:  # it measured no length that decides
                lacks = error
        if lacks is not None and not deciding:
            raise lacks
        fitting = deciding or [study for study in fitting if not study.own]
        # A task that does not depend on order cannot tell which encoding is good at it, so the others decide.
        self.idle = [study for study in fitting if study.without_order(self.at(study))]
        deciding = [study for study in fitting if study not in self.idle] or fitting
        self.study, *self.others = deciding
        self.unused = [study for study in studies if study.own and study is not self.study]
        self.length = self.at(self.study)

    def at(self, study: Study) -> int:
        """Returns the length of a study that stands for the longest length in the needs."""
        return study.length_for(self.needs.factor)

    def options(self) -> list[Option]:
        """Returns the options of the checkpoint and one option for each encoding."""
        return [*of_checkpoint(self.needs), *(self.option(each) for each in self.known)]

    def option(self, each: Candidate) -> Option:
        study, needed = self.study, self.study.value(each.name, self.length)
        found = None
        if self.passkey is not None:
            found = self.passkey.value(each.name, self.at(self.passkey))
        cannot = self.unfit(each)
        if needed is None and limit(each, self.needs) is None:
            at, measured = study.measure.at.format(self.length), study.rows.get(each.name, {})
            cannot = f"it has no position {at}" if measured else "it was not measured"
            cannot = f"its perplexity {at} is infinite" if measured.get(self.length) is not None else cannot
        trained, share = study.value(each.name, study.train_length), self.needs.share(each.parameters)
        return Option(each.name, each.title, each.parameters, share, cannot, trained, needed, found, each.window)

    def unfit(self, each: Candidate) -> str | None:
        """Returns why an encoding does not meet the needs, or is not known to retrieve far tokens past the training
        length; None if it is. Within that length, whether a model learns to retrieve them depends on its training more
        than on its encoding."""
        cannot = limit(each, self.needs)
        if cannot is not None or self.passkey is None or not self.needs.far or self.needs.fixed:
            return cannot
        found = self.passkey.value(each.name, self.at(self.passkey))
        if found is None:
            return "the passkey study has no result for it"
        learned = self.passkey.value(each.name, self.passkey.train_length)
        if learned is not None and learned.value < FOUND:
            return f"in training it learned to find only {learned.value:.0f}% of the passkeys"
        return f"it finds only {found.value:.0f}% of the passkeys" if found.value < FOUND else None

    def order(self, each: Option) -> tuple[bool, float]:
        """Returns a sort key: options that meet the needs come first, and among these the best measured value."""
        return each.cannot is not None, math.inf if each.needed is None else self.study.measure.cost(each.needed)

    def best(self, options: Sequence[Option]) -> tuple[Option, list[str]]:
        """Returns the recommended option, with reasons: of those that do not differ significantly from the best one,
        the most used, or else the one with the fewest parameters.

        If no encoding retrieves far tokens, those that find the most passkeys are considered. Raises ArgumentError if
        no encoding meets the other needs.
        """
        measured = [(each, each.needed) for each in options if each.cannot is None and each.needed is not None]
        if not measured:
            measured = self.finding_most()
        first, value = min(measured, key=lambda pair: self.order(pair[0]))
        measure = self.study.measure
        equals = [each for each, its in measured if each is first or not measure.differ(its, value)]
        for study in self.others:
            equals = best_in(study, equals, self.at(study)) or equals
        used = MOST_USED[self.needs.use]
        places = {name: place for place, name in enumerate(used)}
        chosen = min(equals, key=lambda each: (places.get(each.name, len(used)), each.parameters, self.order(each)))
        superlative = "highest" if measure.percent else "lowest"
        reasons = []
        which = "meet your needs" if chosen.cannot is None else "meet your other needs"
        if chosen.cannot is not None and chosen.found is not None:
            which = "find the most passkeys"
        among = f"the {superlative} of the encodings that {which}"
        says = self.study.says(chosen.name, chosen.needed or value, self.length)
        known = "" if chosen is first else f" is {measure.written(value)}, with {called(first.name)}"
        reasons.append(f"{says}{', ' if chosen is first else '; '}{among}{known}")
        if others := sorted((each for each in equals if each is not chosen), key=self.order):
            why = "is the most used" if chosen.name in used else "has the fewest parameters"
            names = listed(
                [f"{called(each.name)} with {measure.written(each.needed)}" for each in others if each.needed]
            )
            single = any(len(each.needed.values) == 1 for each in equals if each.needed)
            alike = "single runs do not tell apart" if single else "do not differ significantly"
            reasons.append(f"of the encodings that {alike}, it {why}; there is also {names}")
        if self.needs.far and not self.needs.fixed and chosen.found is not None and self.passkey is not None:
            at = self.passkey.measure.at.format(self.at(self.passkey))
            lead = "it retrieves"
            if chosen.cannot is not None:
                lead = "of the encodings that meet your other needs, none whose passkeys were measured retrieves"
            reasons.append(
                f"{lead} far tokens: trained on {self.passkey.train_length:,} characters, {called(chosen.name)} finds "
                f"{chosen.found.value:.0f}% of the passkeys {at}"
            )
        return chosen, reasons

    def finding_most(self) -> list[tuple[Option, Estimate]]:
        """Returns, of the options that meet all other needs, those that find the most passkeys; all, if no passkeys
        were measured for them."""
        others = [self.option(each) for each in self.known if limit(each, self.needs) is None]
        measured = [(each, each.needed) for each in others if each.needed is not None]
        held = self.needs.checkpoint
        if not measured and held is not None and (self.needs.use != "decoder" or not held.rotates):
            what = "RoPE can only be scaled in decoders here" if held.rotates else "no RoPE to scale"
            raise ArgumentError(
                f"no table with a row for each position was found in the checkpoint, and {what}; evaluate it at the "
                "longer length as it is, or leave it out to see what else there is"
            )
        if not measured:
            reasons = listed(sorted({limit(each, self.needs) or "it was not measured" for each in self.known}), "or")
            raise ArgumentError(f"no encoding meets these needs ({reasons}); change one of them")
        most = max((each.found.value for each, _ in measured if each.found), default=None)
        return [(each, its) for each, its in measured if most is None or (each.found and each.found.value == most)]

    def departure(self, name: str) -> list[str]:
        """Returns a sentence if guides recommend another encoding, with our measurement of that encoding."""
        said, held = guides_say(self.needs), self.needs.checkpoint
        if said is None or name in said[0] or name in OWN or (held is not None and held.length is None):
            return []
        values = {other: self.study.value(other, self.length) for other in said[0]}
        measured = listed([f"{other} {self.study.measure.written(value)}" for other, value in values.items() if value])
        rows = [self.study.rows[other] for other in said[0] if other in self.study.rows]
        known = "has a position there" if rows else "was measured"
        known = "has a finite perplexity there" if any(each.get(self.length) is not None for each in rows) else known
        here = f"; measured here: {measured}" if measured else f"; none of them {known}"
        departs = "this adds a window to what" if name.removesuffix("+window") in said[0] else "this departs from what"
        return [f"{departs} guides recommend: {said[1]}{here}"]


def best_in(study: Study, options: Sequence[Option], length: int) -> list[Option]:
    """Returns the options that do not differ significantly from the best of them in a study."""
    found = [(each, value) for each in options if (value := study.value(each.name, length)) is not None]
    _, best = min(found, key=lambda pair: study.measure.cost(pair[1]), default=(None, None))
    return [each for each, value in found if best is not None and not study.measure.differ(value, best)]


def limit(each: Candidate, needs: Needs) -> str | None:
    """Returns the reason why an encoding cannot meet the needs, whatever was measured; None if it can."""
    held = needs.checkpoint
    rules = {
        each.problem: each.problem is not None,
        "the checkpoint was not trained with it": held is not None
        and held.length is None
        and not (needs.use == "decoder" and held.rotates and each.name.startswith("rope-")),
        f"it has no position past the {needs.length:,} of training": not needs.fixed and each.ends == "training",
        "it needs a row for every position, and your texts have no limit": needs.longest is None
        and each.ends is not None,
        "a window hides tokens, and within the training length it gains nothing": needs.fixed
        and each.window is not None,
    }
    return next((reason for reason, holds in rules.items() if holds), None) or beyond(each.parameters, needs)


def beyond(parameters: int, needs: Needs) -> str | None:
    """Returns why the user cannot afford this many parameters; None if they can."""
    if needs.max_parameters is None or parameters <= needs.max_parameters:
        return None
    return f"its {parameters:,} parameters are more than you can afford"


def of_checkpoint(needs: Needs) -> list[Option]:
    """Returns the options of an existing checkpoint: keep its positions, or resize its table. If the texts are longer
    than the model takes, and this was measured for such models, also: chunk the texts, or fine-tune the model."""
    held = needs.checkpoint
    if held is None:
        return []
    if held.length is None:
        keep = None if needs.fixed else f"it was not trained on positions past {needs.length:,}"
        resize: str | None = "no table with a row for each position was found in it"
    else:
        reach = f"ends at {held.reach}" if held.grid is None else f"has {held.reach} cells"
        keep = None if needs.inside_table else f"its table {reach}"
        resize = "every table has a last row" if needs.longest is None else beyond(needs.table, needs)
    kept, size = (held.length or 0) * needs.width, needs.table if held.length is not None else 0
    whole = "the checkpoint's positions as they are"
    if needs.is_cut:
        raised = "raised" if needs.longest is None else f"raised to {needs.longest:,}"
        whole = f"the checkpoint's positions, with its max_seq_length of {held.fed:,} {raised}"
        resize = resize if held.length is None else "its table holds these positions already"
    found = [
        Option("keep", whole, kept, needs.share(kept), keep),
        Option("resize", f"the checkpoint's table, resized to {needs.reach}", size, needs.share(size), resize),
    ]
    if held.length is None or (keep is None and not needs.is_cut) or not findings(held.kind, far=needs.far_in_texts):
        return found
    chunk = "images are scaled to its size instead" if held.grid is not None else None
    chunk = FAR_APART if needs.far_in_texts else chunk
    tuned = f"the checkpoint, resized to {needs.reach} and fine-tuned on long texts"
    return [
        *found,
        Option("chunk", f"the checkpoint as it is, on texts in chunks of {held.chunk} tokens", kept, None, chunk),
        Option("tune", tuned, size, needs.share(size), resize),
    ]
