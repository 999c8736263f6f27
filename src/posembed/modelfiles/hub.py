"""A model by its name on the Hugging Face Hub: fetched into huggingface_hub's cache."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from posembed.errors import CheckpointError
from posembed.modelfiles.json_files import read_json
from posembed.modelfiles.names import PICKLES, WEIGHTS, is_export, is_plain_name, is_weights

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
                ignored = not_needed(files, module_folders(path.parent) if path else [])
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


def read_weight_map(index: Path) -> dict[str, str]:
    """Returns the names of tensors -> names of shards, as an index gives them."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index}: expected a weight_map from tensor names to file names")
    for name in weight_map.values():
        if not is_plain_name(name) or Path(name).suffix not in (".safetensors", *PICKLES):
            raise CheckpointError(f"{index}: names {name!r} as a shard; expected a weights file in its own folder")
    return weight_map


def module_folders(root: Path) -> list[Path]:
    """Returns the folders that sentence-transformers' modules.json names, relative to ``root``, without itself."""
    if not (root / "modules.json").exists():
        return []
    modules = read_json(root / "modules.json", expected=list)
    paths = [Path(str(module.get("path"))) for module in modules if isinstance(module, dict)]
    return [path for path in paths if path.parts]


def not_needed(files: list[str], modules: list[Path]) -> list[str]:
    """Returns the weights that a resized copy leaves out: for other programs, of other models, second copies.

    A pickle is a second copy if a loader takes the weights of the same folder from safetensors. An
    ``adapter_model.safetensors`` or safetensors in other folders do not make it one. modules: folders of the model.
    """
    paths = [Path(file) for file in files]

    def is_needed(path: Path) -> bool:
        if not is_weights(path.name):
            return True
        beside = {other.name for other in paths if other.parent == path.parent}
        chosen = next((name for name in WEIGHTS if name in beside), "")
        in_model = path.parent == Path() or not set(modules).isdisjoint(path.parents)
        return in_model and not is_export(path.name) and not (path.suffix in PICKLES and ".safetensors" in chosen)

    return [file for file, path in zip(files, paths, strict=True) if not is_needed(path)]
