"""A checkpoint by its name on the Hugging Face Hub."""

from __future__ import annotations

import glob
import re
from pathlib import Path

from posembed.checkpoints.modules import module_folders
from posembed.checkpoints.weight_names import PICKLES, WEIGHTS, is_export
from posembed.errors import CheckpointError

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
SECONDS_TO_ANSWER = 10


def looks_like_a_hub_name(name: str) -> bool:
    return HUB_NAME.fullmatch(name) is not None and not name.endswith((".safetensors", *PICKLES))


def not_needed(files: list[str], modules: list[Path]) -> list[str]:
    """The weights that a resized copy would go without: for other programs, of other models, and second copies.

    A pickle is a second copy where a loader takes the weights of the same folder from safetensors. An
    ``adapter_model.safetensors`` and the safetensors of other folders do not make it one.

    Args:
        files: the names of all. modules: folders of further parts of the model.
    """
    paths = [Path(file) for file in files]

    def is_needed(path: Path) -> bool:
        if path.suffix not in (".safetensors", *PICKLES) and not is_export(path.name):
            return True
        beside = {other.name for other in paths if other.parent == path.parent}
        chosen = next((name for name in WEIGHTS if name in beside), "")
        in_model = path.parent == Path() or not set(modules).isdisjoint(path.parents)
        return in_model and not is_export(path.name) and not (path.suffix in PICKLES and ".safetensors" in chosen)

    return [file for file, path in zip(files, paths, strict=True) if not is_needed(path)]


def download(name: str) -> Path:
    """The folder in huggingface_hub's cache, fetched first where it is not there.

    Raises:
        CheckpointError: no such model, no access to it, or no network and nothing fetched before.
    """
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        files = [sibling.rfilename for sibling in HfApi().model_info(name, timeout=SECONDS_TO_ANSWER).siblings or []]
        known = "modules.json" in files
        modules = module_folders(Path(hf_hub_download(name, "modules.json")).parent) if known else []
        ignored = [glob.escape(file) for file in not_needed(files, modules)]
        return Path(snapshot_download(name, ignore_patterns=ignored))
    except CheckpointError:
        raise
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
