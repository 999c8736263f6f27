"""The sizes of a checkpoint's tables, and the limits on length and image size that its files state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from posembed.checkpoints.choose import NOT_TEXT
from posembed.checkpoints.find import find_tables
from posembed.checkpoints.plan import BOTH
from posembed.checkpoints.position_tables import PIXELS, Size, pair, section
from posembed.checkpoints.proof.inputs import Sizes
from posembed.checkpoints.settings import (
    NO_LIMIT,
    OF_IMAGES,
    generation_limits,
    length_settings,
    processor_sections,
    sides_of,
)
from posembed.modelfiles.checkpoint import Checkpoint
from posembed.words import least


@dataclass(frozen=True)
class Limit:
    """A number of tokens, or an image size, that a file states. where: the file and the names that lead to it."""

    where: str
    value: int | Size

    def __repr__(self) -> str:
        value = self.value if isinstance(self.value, int) else "x".join(map(str, self.value))
        return f"  {value:>10}  {self.where}"


def sizes_of(checkpoint: Checkpoint) -> Sizes:
    texts, others, images = [], [], []
    for table in find_tables(checkpoint.config, checkpoint.tensors).understood:
        path = () if table.field is None else table.field.path
        if table.layout.axes:
            if table.field is not None and PIXELS.search(path[-1]):
                images.append(pair(table.field.value))
        elif any(map(NOT_TEXT.search, path)):
            others.append(table.length)
        else:
            texts.append((BOTH.intersection(table.key.split(".")) or BOTH, table.length))
    read, written = (least(*(length for of, length in texts if side in of)) for side in ("encoder", "decoder"))
    return Sizes(read if read is not None else written, written, tuple(others), next(iter(images), None))


def limits_of(checkpoint: Checkpoint, sizes: Sizes) -> Iterator[Limit]:
    """Yields the length of a checkpoint's table, and the limits on length and image size that its files state. Limits
    on padding and on generated text count only if they are above the table's length."""
    if (length := sizes.read) is not None:
        yield Limit("positions in the table", length)
        for setting in length_settings(checkpoint, length, length):
            padded = "padding" in setting.path
            if type(setting.before) is int and setting.before < NO_LIMIT and (not padded or setting.before > length):
                yield Limit(f"{setting.file}: {'.'.join(setting.path)}", setting.before)
    for name, longest in generation_limits(checkpoint):
        if sizes.written is not None and type(longest) is int and longest > sizes.written:
            yield Limit(f"{name}: max_length", longest)
    if sizes.image is not None:
        yield Limit(f"{checkpoint.config_name}: image size", sizes.image)
        trained = section(checkpoint.config or {}, ("pretrained_cfg",)).get("input_size")
        if isinstance(trained, list) and len(trained) == 3:
            yield Limit(f"{checkpoint.config_name}: pretrained_cfg.input_size", (trained[1], trained[2]))
        for name, above, part in processor_sections(checkpoint, *OF_IMAGES):
            crops = sides_of(part.get("crop_size")) and part.get("do_center_crop") is not False
            field = "crop_size" if crops else "size"
            sides = sides_of(part.get(field))
            if "height" in sides and "width" in sides:
                yield Limit(f"{name}: {'.'.join((*above, field))}", (sides["height"], sides["width"]))


def compare_with_table(limits: tuple[Limit, ...], sizes: Sizes, works: list[str], problems: list[str]) -> None:
    """Says which limits are above the table's length, and which truncate texts early. The latter may be intended:
    all-MiniLM-L6-v2 reads 256 of 512 positions."""
    for limit in limits:
        written = limit.where.endswith("config.json: max_length")
        length = sizes.written if written else sizes.read
        if length is None or not isinstance(limit.value, int):
            continue
        if limit.value > length:
            problems.append(f"{limit.where} lets {limit.value} tokens through, and the table takes {length}")
        elif limit.value < length and not written:
            early = f"what reads {limit.where} truncates texts at {limit.value} tokens"
            works.append(f"{early}; the table takes {length}")
