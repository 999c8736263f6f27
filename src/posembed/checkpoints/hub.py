"""A checkpoint by its name on the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path

from posembed.errors import CheckpointError

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
# What other frameworks and runtimes read; a resized checkpoint leaves it out.
NOT_NEEDED = ["*.onnx*", "*.h5", "*.msgpack", "*.ot", "*.tflite", "*.gguf", "*.mlmodel", "openvino/*", "coreml/*"]
SECONDS_TO_ANSWER = 10


def looks_like_a_hub_name(name: str) -> bool:
    return HUB_NAME.fullmatch(name) is not None and not name.endswith(
        (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
    )


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
        has_safetensors = any(file.endswith(".safetensors") for file in files)
        ignored = [*NOT_NEEDED, *(["*.bin", "*.pt", "*.pth", "*.ckpt"] if has_safetensors else [])]
        return Path(snapshot_download(name, ignore_patterns=ignored))
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
