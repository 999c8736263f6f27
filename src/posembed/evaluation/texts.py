"""Texts for evaluation. Reads files and folders as documents, and takes texts of equal length in tokens from them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posembed.errors import CheckpointError, DataError
from posembed.files import files_below
from posembed.measure.jobs import written
from posembed.modelfiles.copies import RECORD
from posembed.words import amount, listed

# " = Title = " begins a WikiText article; " = = Section = = " does not.
WIKITEXT_TITLE = re.compile(r"^ ?= [^=\n]+ = *$", flags=re.MULTILINE)
MOST_UNKNOWN = 0.5
BLANK_LINES = re.compile(r"\n[ \t\r]*\n\s*")


@dataclass(frozen=True, eq=False)
class Sample:
    """Texts of equal length. ids: int64 token ids (N, W) without special tokens.

    before, after: the special tokens that the tokenizer puts around a text. mask: the mask token, if there is one.
    """

    ids: Tensor
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    mask: int | None = None

    @property
    def specials(self) -> int:
        return len(self.before) + len(self.after)

    @cached_property
    def sha256(self) -> str:
        head = f"{tuple(self.ids.shape)} {self.before} {self.after} {self.mask} "
        return hashlib.sha256(head.encode() + self.ids.numpy().tobytes()).hexdigest()


def read_documents(text: str | Path | Sequence[str | Path]) -> list[str]:
    """Reads the documents of one or several paths, in order.

    A file with WikiText titles is split at the titles, any other file at blank lines. In a folder, each file without
    such titles, at any depth, is one document; run folders, results, pages and checkpoints of posembed are left out.
    Raises DataError for text that is unreadable, not UTF-8 or empty.
    """
    documents: list[str] = []
    for path in [Path(text)] if isinstance(text, str | Path) else map(Path, text):
        try:
            is_folder = path.is_dir()
            files = not_ours(sorted(files_below(path))) if is_folder else [path]
            for file in files:
                documents += split_document(file.read_text(encoding="utf-8"), at_blank_lines=not is_folder)
        except UnicodeDecodeError as error:
            raise DataError(f"{file}: not UTF-8 text (byte {error.start}); convert it, or leave it out") from error
        except (OSError, ValueError) as error:
            where, why = getattr(error, "filename", None) or path, getattr(error, "strerror", None) or error
            raise DataError(f"{where}: expected a text file or a folder of them; {why}") from error
    if not documents:
        named = [text] if isinstance(text, str | Path) else text
        raise DataError(f"no text in {listed(map(str, named))}: expected UTF-8 text files, or a folder of them")
    return documents


def not_ours(files: Sequence[Path]) -> list[Path]:
    """Leaves out the run folders, results, pages and checkpoints that posembed wrote."""
    checkpoints, stored = {file.parent for file in files if file.name == RECORD}, written(files)
    return [file for file in files if file not in stored and not checkpoints.intersection(file.parents)]


def split_document(text: str, *, at_blank_lines: bool) -> list[str]:
    titles = [match.start() for match in WIKITEXT_TITLE.finditer(text)]
    parts = [text[start:stop] for start, stop in pairwise([0, *titles, len(text)])]
    if not titles and at_blank_lines:
        parts = BLANK_LINES.split(text)
    return [part.strip() for part in parts if part.strip()]


def draw_sample(
    tokenizer: Any, documents: Iterable[str], *, length: int, most: int, fewest: int, one_each: bool
) -> Sample:
    """Returns the first ``most`` texts of ``length`` tokens in the documents. The length includes special tokens.

    one_each: whether to take only the beginning of each document, instead of all its non-overlapping windows. Raises
    DataError if there are fewer than ``fewest`` texts, or if most tokens are unknown to the tokenizer.
    """
    before, after = special_tokens(tokenizer)
    width = length - len(before) - len(after)
    rows: list[list[int]] = []
    longest = seen = 0
    for document in documents:
        ids = encode(tokenizer, document)
        seen, longest = seen + 1, max(longest, len(ids))
        windows = [ids[start : start + width] for start in range(0, len(ids) - width + 1, width)]
        rows += windows[:1] if one_each else windows
        if len(rows) >= most:
            break
    if len(rows) < fewest:
        found = f"found {len(rows)}, and the longest of {seen} documents has {longest:,}"
        remedy = "give smaller lengths or more text (documents are files of a folder, or separated by blank lines)"
        raise DataError(f"expected at least {amount(fewest, 'text')} of {length:,} tokens; {found}; {remedy}")
    sampled = torch.tensor(rows[:most])
    refuse_unknown(tokenizer, sampled)
    return Sample(sampled, before, after, tokenizer.mask_token_id)


def refuse_unknown(tokenizer: Any, ids: Tensor) -> None:
    unknown = tokenizer.unk_token_id
    if unknown is not None and (ids == unknown).float().mean() > MOST_UNKNOWN:
        raise DataError("the tokenizer does not know most of this text; give text in its language")


def encode(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]


def special_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    text = "a text"
    bare, whole = encode(tokenizer, text), list(tokenizer(text)["input_ids"])
    for start in range(len(whole) - len(bare) + 1):
        if bare and whole[start : start + len(bare)] == bare:
            return tuple(whole[:start]), tuple(whole[start + len(bare) :])
    expected = f"evaluation expects {bare} with special tokens only before and after"
    raise CheckpointError(f"the tokenizer encodes {text!r} as {whole}; {expected}")
