"""``posembed push``: uploads a checkpoint to the Hugging Face Hub in one commit, with a model card."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posembed.arguments import checks_arguments
from posembed.checkpoints.resize import MODEL_CARD, NOT_TRAINED
from posembed.errors import ArgumentError, CheckpointError
from posembed.files import reason
from posembed.modelfiles.copies import recorded
from posembed.modelfiles.folders import RECORD, is_weights, loaded_instead, refuse_link_outside, walk
from posembed.modelfiles.json_files import encodable
from posembed.modelfiles.raw_files import reading

OF_TRAINING = re.compile(r"(^|/)(optimizer|scheduler|scaler|rng_state\w*)\.(pt|pth|bin)$")  # of transformers' Trainer
TAGS = ("posembed", "position-embeddings")
METADATA = re.compile(r"\s*---\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
FIELD = r"^[\"']?{}[\"']?[ \t]*:.*(?:(?:\n[ \t]*(?:#.*)?)*\n(?:[ \t]+\S|-).*)*"
"""Matches a field of a card's metadata, with the lines of its list, and the empty lines and comments between them."""
TOKEN = "make one that may write at https://huggingface.co/settings/tokens, and run hf auth login or set HF_TOKEN"


@dataclass(frozen=True)
class Push:
    """An upload, done or planned. files: the size in bytes of each file, by its path in the repository. card: the text
    of the model card; "" if the repository's own stays. url: the address of the commit; None if nothing was uploaded.
    deleted: files of the repository with other weights, which users would have loaded instead. stay: the repository's
    other files with weights, which may hold the old table.
    """

    name: str
    private: bool
    files: Mapping[str, int]
    card: str
    url: str | None = None
    deleted: tuple[str, ...] = ()
    stay: tuple[str, ...] = ()

    def __repr__(self) -> str:
        lines = [f"{size:>15,}  {path}" for path, size in self.files.items()]
        lines += [f"{'deleted':>15}  {path}, with other weights" for path in self.deleted]
        lines += [f"{'stays':>15}  {path}, which may hold the old table" for path in self.stay]
        needless = [path for path in self.files if OF_TRAINING.search(path)]
        lines += [f"{', '.join(needless)}: needed only to continue training, and may be moved away"] * bool(needless)
        total = f"{sum(self.files.values()):,} bytes to {self.name} ({'private' if self.private else 'public'})"
        return "\n".join([*lines, total, "nothing was uploaded (--dry-run)" if self.url is None else self.url])


@checks_arguments
def push_checkpoint(out: str | Path, name: str, *, public: bool = False, dry_run: bool = False) -> Push:
    """Uploads a folder, or one file of weights, to the Hugging Face Hub in one commit.

    The repository is created if it does not exist: private, unless ``public``. A model card in the folder is uploaded
    with the base model and tags added. If neither the folder nor the repository has a card, one is generated for the
    upload. The folder is not changed. Hidden files are left out. The same commit deletes weights in the repository that
    a loader might take instead of the new ones: a single file, shards, or pytorch_model.bin.

    Args:
        out: the folder or file.
        name: the repository, owner/model.
        public: whether everybody may see the repository. An existing repository must have the same visibility.
        dry_run: whether to only list the files and their sizes. This needs neither a token nor a network.

    Raises:
        ArgumentError: a name that the Hub would not take.
        CheckpointError: nothing to upload, a link that leads out of the folder, no token, a token without the right to
            write, or no network.

    Examples:
        >>> from transformers import BertConfig
        >>> from posembed import push_checkpoint
        >>> BertConfig().save_pretrained("my-model")
        >>> list(push_checkpoint("my-model", "me/my-model", dry_run=True).files)
        ['README.md', 'config.json']
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    refuse_name(name)
    root = Path(out)
    paths = {root.name: root} if root.is_file() else to_upload(root)
    if not paths:
        raise CheckpointError(f"{out}: expected a folder with files, or a file of weights")
    card = card_of(root, name)
    sizes = {path: file.stat().st_size for path, file in paths.items()} | {MODEL_CARD: len(card.encode())}
    planned = Push(name, not public, dict(sorted(sizes.items())), card)
    if dry_run:
        return planned
    there = files_there(name, public=public)
    deleted = loaded_instead(there, paths) if root.is_dir() else ()
    stay = tuple(sorted(path for path in {*there} - {*paths, *deleted} if is_weights(path)))
    if MODEL_CARD in there and MODEL_CARD not in paths:
        card = ""
        del sizes[MODEL_CARD]
    changes: list[Any] = [CommitOperationAdd(path, file) for path, file in paths.items() if path != MODEL_CARD]
    changes += [CommitOperationAdd(MODEL_CARD, card.encode())] if card else []
    changes += [CommitOperationDelete(path) for path in deleted]
    with upload_errors(name):
        HfApi().create_repo(name, private=not public, exist_ok=True)
        commit = HfApi().create_commit(name, changes, commit_message="Upload by posembed")
    return replace(planned, files=dict(sorted(sizes.items())), card=card, url=commit.commit_url,
                   deleted=deleted, stay=stay)  # fmt: skip


def refuse_name(name: str) -> None:
    """Raises ArgumentError for a name that the Hub would not take."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ArgumentError(f"expected the name of a repository, such as owner/model; got {name!r}") from error
    if name.count("/") != 1:
        raise ArgumentError(f"expected the name of a repository with its owner, such as owner/{name}; got {name!r}")


def files_there(name: str, *, public: bool) -> tuple[str, ...]:
    """Returns the files of a repository; none if it does not exist. Raises the errors of ``push_checkpoint`` that are
    known before an upload."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import RepositoryNotFoundError

    refuse_name(name)
    if get_token() is None:
        raise CheckpointError(f"no token for the Hugging Face Hub is here: {TOKEN}")
    with upload_errors(name):
        try:
            there = HfApi().model_info(name)
        except RepositoryNotFoundError as error:
            if error.response.status_code != 404:
                raise
            return ()
    if there.private == public:
        is_now, flag = ("private", "leave out") if public else ("public", "pass")
        raise CheckpointError(f"{name} exists and is {is_now}; {flag} --public (public=True), or give another name")
    return tuple(each.rfilename for each in there.siblings or ())


def to_upload(root: Path) -> dict[str, Path]:
    found = {}
    with reading(root):
        for file in walk(root, root, ()) if root.is_dir() else ():
            path = file.relative_to(root)
            if any(part.startswith(".") for part in path.parts):
                continue
            refuse_link_outside(root, file)
            if encodable(str(path)) != str(path):
                raise CheckpointError(f"{file}: the Hub does not take this name; rename the file")
            if file.is_file():
                found[path.as_posix()] = file
    return found


def card_of(root: Path, name: str) -> str:
    """Returns the model card: the folder's own, or a new one, with the base model and tags in its metadata."""
    resizes, tunings = ([] if root.is_file() else recorded(root, entries) for entries in ("resizes", "tunings"))
    own = root / MODEL_CARD
    try:
        with reading(own):
            text = own.read_bytes().decode("utf-8-sig") if own.is_file() else body(name, resizes, bool(tunings))
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{own}: expected UTF-8 text ({reason(error)}); save it as such") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{root / RECORD}: not a record of posembed's ({reason(error)}); remove it") from error
    source = resizes[0].get("source") if resizes else None
    of_hub = isinstance(source, str) and source.count("/") == 1
    ends = "\r\n" if text.count("\r\n") == text.count("\r") == text.count("\n") > 0 else "\n"
    odd = "\r" in text and not METADATA.match(text)
    lines = text.replace("\r\n", "\n").replace("\r", "\n") if odd or ends != "\n" else text
    try:
        card = with_fields(lines, {"base_model": source, "base_model_relation": "finetune"} if of_hub else {})
    except Exception as error:  # whatever its YAML raises
        raise CheckpointError(f"{own}: its metadata cannot be read ({reason(error)}); correct or remove it") from error
    return card.replace("\n", ends)


def with_fields(text: str, fields: Mapping[str, Any]) -> str:
    """Returns a card with other values of some fields in its metadata, and posembed's tags. All other text stays as it
    is: reading YAML and writing it again would lose comments, and turn "language: no" into false."""
    found = METADATA.match(text)
    head, rest = (found[1], text[found.end() :]) if found else ("", text)
    before = fields_in(head)
    tags = before.get("tags", [])
    new = {**fields, "tags": [*tags, *(tag for tag in TAGS if tag not in tags)]}
    for name, value in new.items():
        line = f"{name}: {json.dumps(value, ensure_ascii=False)}"
        head, places = re.subn(FIELD.format(name), lambda _, line=line: line, head, count=1, flags=re.MULTILINE)
        head += "" if places else f"{line}\n"
    if fields_in(head) != {**before, **new}:
        raise ValueError("expected each field on lines of its own")
    return f"---\n{head}---\n{rest}"


def fields_in(head: str) -> dict[str, Any]:
    from huggingface_hub import ModelCard

    return dict(ModelCard(f"---\n{head or '{}'}\n---\n").data.to_dict())


def body(name: str, resizes: list[dict[str, Any]], tuned: bool) -> str:
    lines = [f"# {name.partition('/')[2]}", ""]
    for each in resizes:
        lines.append(
            f"Its position table was resized from {each.get('from')} to {each.get('to')}, from {each['source']}."
        )
        for tensor in each.get("tensors", ()):
            before, after = tensor["shape"]
            if after is not None:
                lines.append(
                    f"- `{tensor['key']}`: {' x '.join(map(str, before))} to {' x '.join(map(str, after))}, "
                    f"{tensor['method']}"
                )
        lines.append("")
    if resizes and not tuned:
        lines += [NOT_TRAINED, ""]
    return "\n".join([*lines, "Written by posembed; `posembed.json` has the details." if resizes else ""])


@contextmanager
def upload_errors(name: str) -> Iterator[None]:
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise CheckpointError(f"{name}: the Hub refuses this token ({status}): {TOKEN}") from error
        raise CheckpointError(f"{name}: the Hub answers {status} ({reason(error)}); nothing was uploaded") from error
    except OSError as error:
        file = "" if error.filename is None else f"{error.filename} cannot be read"
        raise CheckpointError(f"{file or f'{name}: the Hub cannot be reached'} ({reason(error)})") from error
    except Exception as error:  # no network: each HTTP client of huggingface_hub raises its own errors
        raise CheckpointError(f"{name}: the Hub cannot be reached ({reason(error)}); try again later") from error
