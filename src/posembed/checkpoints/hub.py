"""A checkpoint by its name on the Hugging Face Hub."""

from __future__ import annotations

import glob
import re
from pathlib import Path

from posembed.checkpoints.weight_names import PICKLES, WEIGHTS, is_export
from posembed.errors import CheckpointError

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
SECONDS_TO_ANSWER = 10


def looks_like_a_hub_name(name: str) -> bool:
    return HUB_NAME.fullmatch(name) is not None and not name.endswith((".safetensors", *PICKLES))


def not_needed(files: list[str]) -> list[str]:
    """The files of a model that a resized copy would go without: weights for other programs, and second copies.

    A pickle is a second copy where a loader takes the weights of the same folder from safetensors. An
    ``adapter_model.safetensors`` and the safetensors of other folders do not make it one.
    """
    in_folders: dict[str, set[str]] = {}
    for file in files:
        folder, _, name = file.rpartition("/")
        in_folders.setdefault(folder, set()).add(name)
    from_safetensors = {
        folder
        for folder, names in in_folders.items()
        if ".safetensors" in next((name for name in WEIGHTS if name in names), "")
    }
    return [
        file
        for file in files
        if is_export(file.rpartition("/")[2])
        or file.startswith(("openvino/", "coreml/"))
        or (file.endswith(PICKLES) and file.rpartition("/")[0] in from_safetensors)
    ]


def download(name: str) -> Path:
    """The folder in huggingface_hub's cache, fetched first where it is not there.

    Raises:
        CheckpointError: no such model, no access to it, or no network and nothing fetched before.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        files = [
            sibling.rfilename for sibling in HfApi().model_info(name, timeout=SECONDS_TO_ANSWER).siblings or []
        ]
        return Path(snapshot_download(name, ignore_patterns=[glob.escape(file) for file in not_needed(files)]))
    except GatedRepoError as error:
        raise CheckpointError(
            f"{name}: this model's terms must be accepted on the Hub first, and a token set"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise CheckpointError(f"{name}: not a file or folder here, nor a model that the Hub shows you") from error
    except Exception as error:  # no network, in the words of whichever HTTP client huggingface_hub uses
        try:
            return Path(snapshot_download(name, local_files_only=True))
        except Exception:
            raise CheckpointError(
                f"{name}: not a file or folder here, and the Hugging Face Hub cannot be reached "
                f"({str(error)[:80]}); give the folder of a model that is on this machine"
            ) from error
