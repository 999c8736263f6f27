"""Compares the answers of small copies of a model at the old and at the new size, with the same weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from posembed.checkpoints.choose import Target
from posembed.checkpoints.position_tables import TableSize
from posembed.checkpoints.proof.copies import Copies, undisturbed
from posembed.checkpoints.proof.inputs import LONGEST_TEXT, SHORT_TEXTS, Misread, NotTried, line_inputs, text_inputs
from posembed.tables.layout import TableLayout, are_sides
from posembed.tables.resize import takes
from posembed.words import last_line

TOLERANCE = 1e-4
SAME = 1e-5  # relative differences below this are rounding
LOUDER = 10  # the factor by which initial weights are multiplied
MERGED = 8  # frames that a model may merge to one
SMOOTH = 3  # waves of random tables
KEEPING = ("extend", "zeros")  # methods that keep the answers of models with limited differences


def compared(made: Copies, target: Target, method: str | None) -> tuple[list[str], str | None]:
    """Compares the outputs of both copies, for limited differences and for texts. Returns sentences on what this shows,
    and the method to resize by. Raises Misread, or NotTried if no outputs can be compared."""
    tables = made.after
    limited = {name: each for name, each in tables.items() if are_sides(each.layout.axes)}
    said = []
    with undisturbed(), torch.no_grad():
        if limited:
            try:
                keeping, sentence = kept_answers(made, tables, limited, method)
            except Misread:
                raise
            except Exception as error:
                raise NotTried(f"{type(made.old).__name__}: {last_line(error)}") from error
            said, method = [sentence, *beyond_context(made.old, target)], method or keeping
        if len(limited) < len(tables) and any(not each.layout.axes for each in tables.values()):
            refuse_other_answer(made, tables)
    return said, method


def refuse_other_answer(made: Copies, tables: Mapping[str, TableSize]) -> None:
    """Raises Misread if the output for a text changes although the text reads the same rows. This happens in DeBERTa,
    because of its distance buckets."""
    pair_up(made.old, made.new, {}, loud=True)
    fill(made.new, resized(made.old, {name: each for name, each in tables.items() if each.layout.axes}, None))
    lengths = [min(each.length, each.table.length) for each in tables.values() if not each.layout.axes]
    shortest = min(lengths)
    for tokens in (min(shortest, LONGEST_TEXT), *(short for short in SHORT_TEXTS if short <= shortest)):
        try:
            inputs = text_inputs(made.old, tokens)
            before, after = (list(floats_in(seeded_outputs(model, inputs))) for model in (made.old, made.new))
        except Exception:  # not a multiple that the model accepts
            continue
        if not all(
            one.shape == other.shape and torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)
            for one, other in zip(before, after, strict=False)
        ):
            raise Misread(f"a text of {tokens} tokens gets another output at the new length with the same rows")
        return


def kept_answers(
    made: Copies, tables: Mapping[str, TableSize], limited: Mapping[str, TableSize], method: str | None
) -> tuple[str, str]:
    """Returns the method that keeps all outputs when the limits of differences grow, and a sentence on what the outputs
    show about the requested resize. Raises Misread if no method does: the rows mean something else. Both copies have
    the same weights, and their tables are random but smooth. If the limits shrink, the check swaps the two sizes."""
    first = next(iter(limited.values()))
    grows = first.length > first.table.length
    limits = [axis.size for axis in (first.table.layout if grows else first.layout).axes]
    texts = [size for each in tables.values() if not each.layout.axes for size in (each.length, each.table.length)]
    longest = min([LONGEST_TEXT, *texts])
    long = [min(factor * max(limits), longest) for factor in (2 * MERGED, 2)]
    short = [min(*limits, longest)]
    backwards = {
        name: TableSize(replace(each.table, layout=each.layout), each.table.layout, each.table.length)
        for name, each in limited.items()
    }
    small, large, grown = (made.old, made.new, limited) if grows else (made.new, made.old, backwards)
    pair_up(small, large, grown)
    inputs, wanted = answered(small, long)
    same = (each for each in KEEPING if keeps(large, resized(small, grown, each), inputs, wanted))
    if not (keeping := next(same, "")):
        other = "a small copy gives other answers at the new size, whether new rows repeat the outermost rows or are 0"
        raise Misread(f"{other}, so its rows are not differences from a limit")
    pair_up(made.old, made.new, limited)
    rows = resized(made.old, tables, method or keeping)
    within, beyond = (keeps(made.new, rows, *answered(made.old, lengths)) for lengths in (short, long))
    return keeping, said_of_limits(keeping, within=within, beyond=beyond, shrinks=not grows)


def said_of_limits(keeping: str, *, within: bool, beyond: bool, shrinks: bool) -> str:
    remedy = f"--method {keeping} (method={keeping!r}) keeps them"
    if not within:
        return f"The answers change, also for short inputs; {remedy}."
    if shrinks:
        return (
            "A small copy of the model gives the same answers at the old and at the new size, for an input within the "
            "new limits. Longer inputs may get other answers."
        )
    if not beyond:
        return f"The answers change for inputs with differences beyond the old limits; {remedy}."
    return "A small copy of the model gives the same answers at the old and at the new size, for the same input."


def beyond_context(model: nn.Module, target: Target) -> Iterator[str]:
    config: Any = model.config
    limited, within = target.limited, config.to_dict().get("context_size")
    if limited is None or limited.length <= limited.table.length or type(within) is not int:
        return
    if within <= max(axis.size for axis in limited.table.layout.axes):
        yield (
            f"The model reads no difference beyond context_size={within} (config.json), so it reads none of the new "
            "rows until context_size grows."
        )


def keeps(model: nn.Module, tables: Mapping[str, Tensor], inputs: Mapping[str, Any], wanted: Tensor) -> bool:
    """Returns whether a copy with these tables gives the wanted output."""
    fill(model, tables)
    return same(seeded(model, inputs), wanted)


def same(given: Tensor, wanted: Tensor) -> bool:
    return given.shape == wanted.shape and bool((given - wanted).norm() < SAME * wanted.norm())


def answered(model: nn.Module, lengths: Sequence[int]) -> tuple[dict[str, Any], Tensor]:
    """Returns the first input of one of these lengths that a model can read, and the model's output."""
    failure: Exception | None = None
    for inputs in (each for length in lengths for each in line_inputs(model, length)):
        try:
            return inputs, seeded(model, inputs)
        except Exception as error:
            failure = failure or error
    raise failure or NotTried("it takes no input that is known")


def pair_up(
    old: nn.Module, new: nn.Module, tables: Mapping[str, TableSize], *, waves: float = SMOOTH, loud: bool = False
) -> None:
    """Gives both copies the same weights, and the old copy smooth tables, whose cells are all equal if waves is 0."""
    into = dict(new.named_parameters())
    for name, parameter in old.named_parameters():
        if name in tables:
            layout = tables[name].table.layout
            parameter.copy_(layout.stored(smooth(layout, parameter, waves=waves), like=parameter))
        else:
            shared = tuple(map(slice, map(min, parameter.shape, into[name].shape)))
            # Initial weights are so small that biases of attention would not change an answer.
            into[name][shared] = parameter.mul_(LOUDER if loud and parameter.dim() > 1 else 1)[shared]


def resized(old: nn.Module, tables: Mapping[str, TableSize], method: str | None) -> dict[str, Tensor]:
    """Returns an old copy's tables, resized by the method, or by a table's default if it does not support that."""
    held, found = dict(old.named_parameters()), {}
    for name, change in tables.items():
        if name in held:
            named = method if takes(change.table.layout, change.layout, method) else None
            found[name] = change.resized(held[name], named or change.table.method or None)
    return found


def fill(new: nn.Module, tables: Mapping[str, Tensor], scale: float = 1) -> None:
    into = dict(new.named_parameters())
    for name, rows in tables.items():
        into[name].copy_(scale * rows)


def smooth(layout: TableLayout, like: Tensor, *, waves: float = SMOOTH) -> Tensor:
    """Returns random rows (N, D) that change slowly along each axis, for a table in this layout."""
    rows = layout.rows_in(torch.zeros_like(like))
    front, _, tail = layout.split(rows)
    total = torch.zeros(*layout.shape, rows.shape[1])
    for dim, size in enumerate(layout.shape):
        along = torch.sin(torch.arange(size)[:, None] / max(size, 1) * waves + 6 * torch.rand(rows.shape[1]))
        total += along.reshape(*(size if at == dim else 1 for at in range(len(layout.shape))), -1)
    return torch.cat([torch.randn_like(front), total.flatten(0, -2), torch.randn_like(tail)])


def seeded_outputs(model: nn.Module, inputs: Mapping[str, Any]) -> Any:
    """Runs a model with a fixed seed. Some models shuffle patches, sample durations or have random attention."""
    torch.default_generator.manual_seed(0)
    return model(**inputs)


def seeded(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Runs a model with a fixed seed, and returns its first output."""
    outputs = seeded_outputs(model, inputs)
    return outputs if isinstance(outputs, Tensor) else next(v for v in outputs.values() if isinstance(v, Tensor))


def floats_in(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor) and outputs.is_floating_point():
        yield outputs
    elif isinstance(outputs, Mapping | list | tuple):
        for value in outputs.values() if isinstance(outputs, Mapping) else outputs:
            yield from floats_in(value)
