"""What to watch for with a recommended encoding."""

from __future__ import annotations

import math

from posembed.lab.advice.choose import Evidence, Option
from posembed.lab.advice.longer import FAR_APART, OWN, findings
from posembed.words import called, listed

RESIZED_TO = 8
"""Longformer (arXiv:2004.05150) tiles a table to 8 times its length."""
FINE_TUNED_TO = 32
"""YaRN's paper (arXiv:2309.00071) fine-tunes to 32 times the training length."""
MATTERS_MORE = "within the training length, data and tuning matter more than this choice"


def caveats(chosen: Option, evidence: Evidence) -> list[str]:
    """Returns sentences without a capital and a full stop."""
    notes = of_table(chosen, evidence)
    if chosen.name in OWN:
        return notes
    return [*notes, *of_encoding(chosen, evidence), *of_study(chosen, evidence), MATTERS_MORE]


def of_table(chosen: Option, evidence: Evidence) -> list[str]:
    """Returns caveats about an existing checkpoint."""
    needs = evidence.needs
    held = needs.checkpoint
    if held is None:
        return []
    notes = [f"the checkpoint's table: {finding}" for finding in held.findings]
    read = held.takes if chosen.name == "chunk" else needs.longest
    if chosen.name in ("keep", "chunk") and held.untrained(read):
        resized = f"a resize added its positions after the first {held.trained:,}"
        remedy = "measure it with posembed evaluate, or fine-tune the original with posembed tune"
        if held.grid is not None:
            resized = f"a resize interpolated its table, which once had {held.trained:,} cells"
            remedy = "fine-tune it at this size"
        notes.append(f"{resized}, and no fine-tuning is recorded since: {remedy}")
    if needs.is_cut or (chosen.name == "chunk" and held.takes != held.length):
        holds = f", although its table has {held.length:,} positions" if held.length is not None else ""
        notes.append(
            f"sentence-transformers feeds it at most {held.fed:,} tokens (max_seq_length) and drops the rest{holds}: "
            "raise the limit to use more, and measure with posembed evaluate"
        )
    if chosen.name == "keep" and not needs.fixed and held.grid is not None:
        notes.append(
            f"images of less than {held.reach} patches would read the rows of other cells: scale them to this size, or "
            "let the model interpolate its table (interpolate_pos_encoding in transformers, dynamic_img_size in timm)"
        )
    if chosen.name == "resize":
        notes.append("new rows are only a start: fine-tune at the new length, and measure before and after")
        on_grid = "interpolate bicubically with antialiasing, as timm does"
        notes.append("posembed evaluate measures it on your own text" if needs.grid is None else on_grid)
        if needs.grid is None and not findings(held.kind, far=needs.far_in_texts):
            tried = "posembed tune fine-tunes both and compares them on your own texts"
            if not held.kind:
                tried = "fine-tune both, as examples/tune_resized.py does, and compare them on your own texts"
            notes.append(
                f"whether this is better than the checkpoint as it is, on texts in chunks of {held.chunk}, was not "
                f"measured for models of this kind: {tried}"
            )
    elif chosen.name in ("chunk", "tune"):
        if chosen.name == "chunk":
            notes.append(
                f"if an answer needs two places that are more than {held.chunk} tokens apart, say so with --far: the "
                "advice is another one then"
            )
        if held.kind:
            compares = (
                "posembed tune compares chunks, the resized model and the same fine-tuning at both lengths on your"
            )
            notes.append(f"this rests on few models and texts, listed below: {compares} own texts")
        else:
            notes.append("this rests on few models and texts, listed below, and on none of this kind")
    times = (needs.longest or 0) / (held.length or math.inf)
    if chosen.name in ("resize", "tune") and needs.grid is None and times > RESIZED_TO:
        notes.append(f"{times:.0f} times the table's length is more than the {RESIZED_TO} of Longformer")
    elif chosen.name not in OWN and held.length is None:
        notes.append(
            "this assumes that the checkpoint has RoPE; sinusoids, ALiBi and relative biases have nothing to scale: "
            "evaluate such a checkpoint at the longer length as it is"
        )
    elif chosen.name not in OWN:
        other = f"the alternative is to feed the checkpoint text in chunks of {held.chunk}"
        other = "the alternative is to scale images to its size" if held.grid is not None else other
        other = FAR_APART if needs.far_in_texts else other
        reach = f"has {held.reach} cells" if held.grid is not None else f"ends at {held.reach}"
        notes.append(f"the checkpoint's table {reach}, so this means training from scratch; {other}")
    return notes


def of_encoding(chosen: Option, evidence: Evidence) -> list[str]:
    needs, notes = evidence.needs, []
    if chosen.window is not None:
        notes.append(
            f"the model's attention must apply the window (here {chosen.window:,} tokens, for 12 layers) in training "
            "and after; a token uses nothing beyond the windows' reach, however low the perplexity"
        )
    if "/" in chosen.name:
        notes.append(
            f"its layers take turns, and only some have the window: posembed.encoding({chosen.name!r}, dim=..., "
            f"heads=..., layers=..., max_len={needs.length}, window={needs.window}) builds it for posembed.nn.Decoder"
        )
    if chosen.name.startswith("rope-") and needs.grid is None and not needs.fixed:
        notes.append("fine-tune at the longer length: these measurements are without fine-tuning")
        if FINE_TUNED_TO < needs.factor < math.inf:
            notes.append(f"a factor of {needs.factor:.0f} is more than {FINE_TUNED_TO}, the largest in YaRN's paper")
    if chosen.name == "learned" and needs.fixed:
        notes.append(f"position {needs.length:,} (counted from 0) has no row until the table is resized")
    if needs.grid is not None and not needs.fixed:
        notes.append("fine-tune at the larger size; interpolate a table bicubically with antialiasing, as timm does")
    return notes


def of_study(chosen: Option, evidence: Evidence) -> list[str]:
    """Returns what the measurements do not show."""
    needs, study, notes = evidence.needs, evidence.study, []
    notes += [
        f"no encoding of {own.source} meets these needs: published measurements decide" for own in evidence.unused
    ]
    known = {each.name for each in evidence.known}
    own_rows = [name for each in (study, *evidence.unused) if each.own for name in each.rows]
    if unknown := [called(name) for name in own_rows if name not in known]:
        notes.append(f"your runs also measured {listed(unknown)}, which advise cannot choose: see posembed report")
    if needs.factor > study.farthest:
        wanted = "for any length" if needs.factor == math.inf else f"for {needs.factor:.0f} times"
        notes.append(f"it was measured up to {study.farthest:g} times the training length, and you ask {wanted}")
    notes += [str(idle.without_order(evidence.at(idle))) for idle in evidence.idle]
    if study.steps is not None:
        from posembed.lab.questions.lengths import Lengths

        usual, short = Lengths.presets["quick"]["steps"], ""
        if study.steps < usual:
            short = (
                f", fewer than the {usual:,} of --preset quick: they show how fast encodings start, not how good they "
                "become; train longer before you decide"
            )
        notes.append(f"your runs have {study.steps:,} training steps{short}")
    if needs.encoder and not needs.fixed:
        notes.append("this was measured in decoders: no study of encoders goes past its training length")
    if needs.far and chosen.found is None:
        notes.append("whether it retrieves far tokens was not measured in these studies")
    elif chosen.found is not None and needs.far and needs.fixed and evidence.passkey is not None:
        notes.append(
            "within the training length, whether a model learns to retrieve far tokens depends on its training: "
            f"small models, trained briefly with {called(chosen.name)}, find "
            f"{evidence.passkey.measure.written(chosen.found)} of the passkeys"
        )
    elif needs.far and evidence.passkey is not None:
        measured = len(evidence.passkey.rows)
        notes.append(
            f"passkeys were measured for {measured} of {len(evidence.known)} encodings: others may find far tokens too"
        )
    if study.kind == "perplexity" and not needs.far and not needs.fixed:
        notes.append("low perplexity does not show that far tokens are found; if you need them, ask with --far")
    if chosen.needed is not None and len(chosen.needed.values) == 1:
        notes.append("there is one run per encoding: small differences may be chance")
    if needs.far and chosen.found is not None and len(chosen.found.values) == 1:
        notes.append("its passkeys are those of one run: with another seed, it may find fewer")
    if not study.own:
        notes.append("it was measured on small models, trained briefly: compare on your own data with posembed compare")
    return notes
