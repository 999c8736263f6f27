"""A model by its name on the Hugging Face Hub: fetched into huggingface_hub's cache."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from posembed.errors import CheckpointError
from posembed.modelfiles.folders import PICKLES, WEIGHTS, not_needed, read_modules, read_weight_map

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
SECONDS_TO_ANSWER = 10

Wanted = Callable[[Collection[str]], Iterable[str]]  # chooses, among a model's tensors, those that are read


def looks_like_a_hub_name(name: str) -> bool:
    return HUB_NAME.fullmatch(name) is not None and not name.endswith((".safetensors", *PICKLES))


@contextmanager
def hub_errors(name: str) -> Iterator[None]:
    """Turns the errors of huggingface_hub inside the block into a CheckpointError that says what to do."""
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        yield
    except CheckpointError:
        raise
    except GatedRepoError as error:
        raise CheckpointError(
            f"{name}: this model's terms must be accepted on the Hub first, and a token set"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise CheckpointError(f"{name}: not a file or folder here, nor a model that the Hub shows you") from error
    except Exception as error:  # no network: each HTTP client of huggingface_hub has errors of its own
        raise CheckpointError(
            f"{name}: not a file or folder here, and the Hugging Face Hub cannot be reached "
            f"({str(error)[:80]}); give the folder of a model that is on this machine"
        ) from error


def download_file(name: str, file: str) -> Path | None:
    """Returns the path of one file of a model; None if the model has no such file. Errors as for ``download``."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    with hub_errors(name):
        try:
            return Path(hf_hub_download(name, file))
        except EntryNotFoundError:  # also without a network, if the file is not in the cache
            return None


def download(name: str, *, wanted: Wanted | None = None) -> Path:
    """Returns the folder in huggingface_hub's cache, after fetching what is missing there.

    With ``wanted`` it fetches only config.json and the weights files that hold these tensors. Raises CheckpointError
    if there is no such model, no access to it, or no network and nothing fetched before.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    with hub_errors(name):
        try:
            siblings = HfApi().model_info(name, timeout=SECONDS_TO_ANSWER).siblings or []
            files = [sibling.rfilename for sibling in siblings]
            if wanted is None:
                path = download_file(name, "modules.json") if "modules.json" in files else None
                modules = [folder for _, folder in read_modules(path.parent) if folder.parts] if path else []
                ignored = not_needed(files, modules)
            else:
                chosen = next((file for file in WEIGHTS if file in files), "")
                needed = {"config.json", chosen}
                if chosen.endswith(".index.json") and (index := download_file(name, chosen)) is not None:
                    weight_map = read_weight_map(index)
                    needed |= {weight_map[key] for key in wanted(weight_map)}
                ignored = [file for file in files if file not in needed]
            return Path(snapshot_download(name, ignore_patterns=[glob.escape(file) for file in ignored]))
        except (CheckpointError, RepositoryNotFoundError, HFValidationError):  # the Hub has answered
            raise
        except Exception:
            with suppress(Exception):
                return Path(snapshot_download(name, local_files_only=True))
            raise
