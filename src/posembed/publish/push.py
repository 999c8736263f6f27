"""``posembed push``: uploads a checkpoint to the Hugging Face Hub in one commit, with a model card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posembed.arguments import checks_arguments
from posembed.errors import ArgumentError, CheckpointError
from posembed.files import reason
from posembed.modelfiles.copies import recorded

CARD = "README.md"
TAGS = ("posembed", "position-embeddings")
TOKEN = "make one that may write at https://huggingface.co/settings/tokens, and run hf auth login or set HF_TOKEN"


@dataclass(frozen=True)
class Push:
    """An upload, done or planned. files: the size in bytes of each file, by its path in the repository. card: the text
    of the model card. url: the address of the commit; None if nothing was uploaded."""

    name: str
    private: bool
    files: Mapping[str, int]
    card: str
    url: str | None = None

    def __repr__(self) -> str:
        lines = [f"{size:>15,}  {path}" for path, size in self.files.items()]
        total = f"{sum(self.files.values()):,} bytes to {self.name} ({'private' if self.private else 'public'})"
        return "\n".join([*lines, total, "nothing was uploaded (--dry-run)" if self.url is None else self.url])


@checks_arguments
def push_checkpoint(out: str | Path, name: str, *, public: bool = False, dry_run: bool = False) -> Push:
    """Uploads a folder, or one file of weights, to the Hugging Face Hub in one commit.

    The repository is created if it does not exist: private, unless ``public``. If the folder has no model card, one is
    written for the upload; into an existing card, only the base model and tags are added. The folder itself is not
    changed. Hidden files are left out.

    Args:
        out: the folder or file.
        name: the repository, owner/model.
        public: whether everybody may see it. A public repository that exists already is only written to with it.
        dry_run: whether to only list the files and their sizes. It needs neither a token nor a network.

    Raises:
        ArgumentError: a name that the Hub would not take.
        CheckpointError: nothing to upload, no token, a token without the right to write, or no network.

    Examples:
        >>> from transformers import BertConfig
        >>> from posembed import push_checkpoint
        >>> BertConfig().save_pretrained("my-model")
        >>> list(push_checkpoint("my-model", "me/my-model", dry_run=True).files)
        ['README.md', 'config.json']
    """
    from huggingface_hub import CommitOperationAdd, HfApi, get_token
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ArgumentError(f"expected the name of a repository, such as owner/model; got {name!r}") from error
    if name.count("/") != 1:
        raise ArgumentError(f"expected the name of a repository with its owner, such as owner/{name}; got {name!r}")
    root = Path(out)
    paths = {root.name: root} if root.is_file() else files_below(root)
    if not paths:
        raise CheckpointError(f"{out}: expected a folder with files, or a file of weights")
    card = card_of(root, name)
    sizes = {path: file.stat().st_size for path, file in paths.items()} | {CARD: len(card.encode())}
    planned = Push(name, not public, dict(sorted(sizes.items())), card)
    if dry_run:
        return planned
    if get_token() is None:
        raise CheckpointError(f"no token for the Hugging Face Hub is here: {TOKEN}")
    api = HfApi()
    with hub_errors(name):
        api.create_repo(name, private=not public, exist_ok=True)
        if not public and not api.repo_info(name).private:
            raise CheckpointError(f"{name} exists and is public; pass --public (public=True), or give another name")
        adds = [CommitOperationAdd(path, file) for path, file in paths.items() if path != CARD]
        adds.append(CommitOperationAdd(CARD, card.encode()))
        commit = api.create_commit(name, adds, commit_message="Upload by posembed")
    return Push(name, not public, planned.files, card, commit.commit_url)


def files_below(root: Path) -> dict[str, Path]:
    found = {path.relative_to(root): path for path in sorted(root.rglob("*")) if path.is_file()}
    return {
        path.as_posix(): file for path, file in found.items() if not any(part.startswith(".") for part in path.parts)
    }


def card_of(root: Path, name: str) -> str:
    """Returns the model card: the folder's own, or a new one, with the base model and tags in its metadata."""
    from huggingface_hub import ModelCard

    resizes, tunings = ([] if root.is_file() else recorded(root, entries) for entries in ("resizes", "tunings"))
    own = None if root.is_file() else root / CARD
    try:
        text = own.read_text() if own is not None and own.is_file() else body(name, resizes, bool(tunings))
        card = ModelCard(text if text.startswith("---") else f"---\ntags: []\n---\n{text}")
    except Exception as error:  # bytes that are no text, or whatever its YAML raises
        raise CheckpointError(f"{own}: its metadata cannot be read ({reason(error)}); correct or remove it") from error
    data: Any = card.data
    source = resizes[0].get("source") if resizes else None
    if isinstance(source, str) and source.count("/") == 1:
        data.base_model, data.base_model_relation = source, "finetune"
    tags = data.tags if isinstance(data.tags, list) else []
    data.tags = [*tags, *(tag for tag in TAGS if tag not in tags)]
    return str(card)


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
        lines += ["New rows are computed, not trained: evaluate the model at the new length before you rely on it.", ""]
    return "\n".join([*lines, "Written by posembed; `posembed.json` has the details." if resizes else ""])


@contextmanager
def hub_errors(name: str) -> Iterator[None]:
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except CheckpointError:
        raise
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise CheckpointError(f"{name}: the Hub refuses this token ({status}): {TOKEN}") from error
        raise CheckpointError(f"{name}: the Hub answers {status} ({reason(error)}); nothing was uploaded") from error
    except Exception as error:  # no network: each HTTP client of huggingface_hub raises its own errors
        raise CheckpointError(f"{name}: the Hub cannot be reached ({reason(error)}); try again later") from error
