"""Text -> token ids, split by document into what a model trains on and what it never sees."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from posembed.errors import DataError

if TYPE_CHECKING:
    import tokenizers

HELD_OUT_SHARE = 0.1
DOCUMENTS_TO_SPLIT_BY = 20
"""With fewer documents than this, the end of each is held out instead of whole documents."""

# Of the standard library: its tests, and modules that are tables of data rather than code.
NOT_SOURCE = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data"}
NOT_SOURCE |= {"entities.py", "mimetypes.py", "stringprep.py"}


@dataclass(frozen=True)
class Document:
    name: str
    text: bytes


@dataclass(frozen=True)
class Corpus:
    """Token ids, one dimension, on the CPU (uint8 or int32): documents in a row, a separator after each."""

    train: Tensor
    held_out: Tensor
    vocabulary: int
    bytes_per_token: float
    """Of the held-out text: turns a loss per token into bits per byte."""
    description: str
    sha256: str
    """Over the name and bytes of every document, in the order read, and the tokenizer."""


def load_corpus(data: str = "stdlib", *, tokenizer: str = "bytes") -> Corpus:
    """Read text and split it, a tenth held out, the same tenth every time.

    Args:
        data: "stdlib" (the source of Python's standard library), a text file or several joined by commas, a
            folder (every text file below it), or "hf:NAME[:CONFIG]" (a Hugging Face dataset).
        tokenizer: "bytes", the path of a tokenizer.json, or a tokenizer's name on the Hugging Face hub.

    Raises:
        DataError: nothing there, nothing that is text, or a tokenizer that cannot be loaded.
    """
    train, held_out, description = _read(data)
    encode, vocabulary, fingerprint = _tokenizer(tokenizer)
    digest = hashlib.sha256(fingerprint)
    for document in (*train, *held_out):
        digest.update(document.name.encode() + b"\0" + document.text + b"\0")
    held_out_ids = encode(held_out)
    held_out_bytes = sum(len(document.text) + 1 for document in held_out)
    return Corpus(
        train=encode(train),
        held_out=held_out_ids,
        vocabulary=vocabulary,
        bytes_per_token=held_out_bytes / max(len(held_out_ids), 1),
        description=description,
        sha256=digest.hexdigest(),
    )


def split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """(train, held out): whole documents in an order drawn from their names, or, of a few, the end of each."""
    if len(documents) < DOCUMENTS_TO_SPLIT_BY:
        cuts = [_line_before(d.text, round(len(d.text) * (1 - HELD_OUT_SHARE))) for d in documents]
        train = [Document(d.name, d.text[:cut]) for d, cut in zip(documents, cuts, strict=True)]
        held_out = [Document(f"{d.name} (end)", d.text[cut:]) for d, cut in zip(documents, cuts, strict=True)]
        return train, held_out
    shuffled = sorted(documents, key=lambda d: hashlib.sha256(d.name.encode()).digest())
    wanted = HELD_OUT_SHARE * sum(len(d.text) for d in documents)
    held_out = []
    while sum(len(d.text) for d in held_out) < wanted:
        held_out.append(shuffled.pop())
    return shuffled, held_out


def _line_before(text: bytes, index: int) -> int:
    return text.rfind(b"\n", 0, index) + 1 or index


def _read(data: str) -> tuple[list[Document], list[Document], str]:
    if data.startswith("hf:"):
        return _read_hugging_face(data.removeprefix("hf:"))
    if data == "stdlib":
        root = Path(sysconfig.get_paths()["stdlib"])
        files = [p for p in root.rglob("*.py") if not NOT_SOURCE.intersection(p.relative_to(root).parts)]
        return *split(_documents(root, files)), f"source of Python's standard library ({len(files)} files)"
    documents = []
    for path in (Path(part).expanduser() for part in data.split(",")):
        if path.is_dir():
            found = _documents(path, (p for p in path.rglob("*") if p.is_file()))
            if not found:
                raise DataError(f"the folder {path} holds no text: expected files of UTF-8 text in or below it")
            documents += found
        else:
            documents.append(Document(path.name, _read_text(path)))
    names = ", ".join(Path(part).name for part in data.split(","))
    return *split(documents), f"{names} ({len(documents)} file{'s' * (len(documents) != 1)})"


def _documents(root: Path, files: Iterable[Path]) -> list[Document]:
    """Those of the files that hold text, in the order of their names; the rest is passed over."""
    texts = ((path.relative_to(root).as_posix(), path.read_bytes()) for path in sorted(files))
    return [Document(name, text) for name, text in texts if text.strip() and not _not_text(text)]


def _read_text(path: Path) -> bytes:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise DataError(
            f'no file or folder {path}; the data may be "stdlib", text files, a folder, or hf:NAME[:CONFIG]'
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if not text.strip():
        raise DataError(f"{path} is empty: expected UTF-8 text")
    if reason := _not_text(text):
        raise DataError(f"{path} is not text ({reason}); expected UTF-8. Convert it, or leave it out")
    return text


def _not_text(text: bytes) -> str | None:
    if (zero := text.find(b"\0")) >= 0:
        return f"a zero byte at offset {zero:,}"
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8 at offset {error.start:,}"
    return None


def _read_hugging_face(name: str) -> tuple[list[Document], list[Document], str]:
    """The dataset's own split where it has one, else ours by rows."""
    parts = load_hugging_face(name)
    train = _rows(parts["train"], name)
    for held_out in ("validation", "test"):
        if held_out in parts:
            return train, _rows(parts[held_out], name), f"{name} (its own train and {held_out} splits)"
    return *split(train), f"{name} ({len(train)} rows)"


def load_hugging_face(name: str) -> Any:
    """The splits of NAME[:CONFIG], one named train among them, as the datasets library gives them."""
    try:
        import datasets
    except ImportError:
        raise DataError(
            "hf: data needs the datasets library; install it with pip install 'posembed[datasets]'"
        ) from None
    path, _, config = name.partition(":")
    try:
        parts = datasets.load_dataset(path, config or None)
    except Exception as error:  # the library raises whatever its network stack and its readers raise
        raise DataError(f"the dataset {name} cannot be loaded: {error}") from error
    if "train" not in parts:
        raise DataError(f"the dataset {name} has no split named train, only {', '.join(parts)}")
    return parts


def _rows(rows: Any, name: str) -> list[Document]:
    columns = [column for column, feature in rows.features.items() if getattr(feature, "dtype", "") == "string"]
    if "text" in columns:
        columns = ["text"]
    if len(columns) != 1:
        raise DataError(f"the dataset {name} needs a column named text, or just one of strings; it has {columns}")
    return [Document(str(i), text.encode()) for i, text in enumerate(rows[columns[0]]) if text and text.strip()]


def _tokenizer(name: str) -> tuple[Callable[[list[Document]], Tensor], int, bytes]:
    """(documents -> ids, vocabulary size, what tells this tokenizer from another)."""
    if name == "bytes":
        return _encode_bytes, 256, b"bytes"
    tokenizer = read_tokenizer(name)

    def encode(documents: list[Document]) -> Tensor:
        encodings = tokenizer.encode_batch([document.text.decode() for document in documents])
        return torch.from_numpy(np.concatenate([np.asarray(e.ids, dtype=np.int32) for e in encodings]))

    return encode, tokenizer.get_vocab_size(), tokenizer.to_str().encode()


def read_tokenizer(name: str) -> tokenizers.Tokenizer:
    """From the path of a tokenizer.json, or by its name on the Hugging Face hub."""
    import tokenizers

    try:
        if Path(name).exists():
            return tokenizers.Tokenizer.from_file(name)
        return tokenizers.Tokenizer.from_pretrained(name)
    except Exception as error:  # the library raises bare Exception
        raise DataError(
            f'the tokenizer {name} cannot be loaded: {error}; expected "bytes", the path of a tokenizer.json, '
            "or a name on the Hugging Face hub"
        ) from error


def _encode_bytes(documents: list[Document]) -> Tensor:
    """A zero byte, which text never holds, ends each document."""
    return torch.frombuffer(bytearray(b"".join(d.text + b"\0" for d in documents)), dtype=torch.uint8)
