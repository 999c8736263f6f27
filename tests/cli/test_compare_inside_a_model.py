"""``posembed compare lengths --model``: a user's own decoder, from its config or continued from its weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import replaced_models as made
from asked import means
from together import together

SMALL = "--train-length 16 --test-lengths 16,32 --steps 3 --batch 2 --test-tokens 100 --encodings learned,rope"


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A GPT-Neo whose tokenizer is one of words: its ids end with the vocabulary."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words = ["a line of text that comes again and again"]
    tokenizer.train_from_iterator(words, trainers.WordLevelTrainer(special_tokens=["?", "<end>"], show_progress=False))
    folder = tmp_path / "checkpoint"
    model = made.tiny("gpt_neo", vocab_size=tokenizer.get_vocab_size(), eos_token_id=1)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def config_of(name: str, folder: Path, **changes: int) -> Path:
    made.tiny(name, **changes).config.save_pretrained(folder)
    return folder


def test_a_checkpoint_goes_on_in_its_own_tokens(posembed, text: Path, checkpoint: Path, tmp_path: Path) -> None:
    command = f"compare lengths --model {checkpoint} --data {text} --out {tmp_path}/run {SMALL}"
    code, out, err = posembed(command)
    assert code == 0
    assert f"model: {checkpoint} (gpt_neo), continued from its weights" in " ".join(err.split())
    assert "rope, seed 0: training loss" in err
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    expected = {"layers": 2, "width": 16, "heads": 2, "learning_rate": 1e-4}
    assert {name: settings[name] for name in expected} == expected
    assert len(settings["model_sha256"]) == 64
    checkpoint.rename(tmp_path / "moved")
    moved = command.replace(str(checkpoint), f"{tmp_path}/moved")
    code, out, err = posembed(f"{moved} --json")
    assert code == 0
    assert "training loss" not in err  # the same model by another path
    rows = {row["name"]: row for row in json.loads(out)["rows"]}
    assert (
        means(json.loads(out), "perplexity of the same tokens")["learned", 32] is not None
    )  # the checkpoint's own table has 32 rows
    assert rows["learned"]["parameters"] - rows["rope"]["parameters"] == 32 * 16
    assert posembed(f"report {tmp_path}/run").code == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "continued from its weights" in page
    assert "Where its heads look is not shown" in page
    assert "What the tables learned" in page
    model = made.tiny("gpt_neo", vocab_size=10, eos_token_id=1)
    with torch.no_grad():
        model.transformer.ln_f.bias += 1
    model.save_pretrained(tmp_path / "moved")
    code, _, err = posembed(moved)
    assert code == 1
    assert "model_sha256: " in err


def test_a_config_alone_starts_from_scratch(posembed, text: Path, tmp_path: Path) -> None:
    folder = config_of("opt", tmp_path / "config", vocab_size=256)
    command = f"compare lengths --model {folder}/config.json --data {text} --out {tmp_path}/run {SMALL}"
    code, out, _ = posembed(f"{command} --dry-run")
    assert code == 0
    assert f"model: {folder}/config.json (opt), from random weights" in " ".join(out.split())
    assert not (tmp_path / "run").exists()
    code, out, _ = posembed(f"{command.replace('/config.json', '')} --learning-rate 0.01 --json")
    assert code == 0
    learned, rope = json.loads(out)["rows"]
    assert means(json.loads(out), "perplexity of the same tokens")["learned", 32] is None
    assert learned["parameters"] - rope["parameters"] == learned["position_parameters"] == 16 * 16


@together(
    ("name", "changes", "options", "message"),
    [
        ("gpt2", {"vocab_size": 256}, "--width 8", "decides layers, width, heads, dropout; leave out --width"),
        ("gpt2", {"vocab_size": 256}, "--dropout 0", "leave out --dropout"),
        ("gpt2", {}, "", "has a vocabulary of 50, and the tokenizer bytes needs 256"),
        ("bert", {"vocab_size": 256}, "", "is an encoder"),
        ("vit", {}, "", "transformers has no language model (AutoModelForCausalLM) for model_type 'vit'"),
        ("llama", {}, "", "has no position table, but replace_positions replaces exactly one"),
        ("nothing", {}, "", "expected a config.json of transformers or a folder that holds one"),
        ("gpt2", {"vocab_size": 256}, "--encodings rope,roap", "unknown encoding 'roap'"),
        ("gpt2", {"vocab_size": 256, "n_head": 16}, "", "head_dim"),
        ("gpt2", {"vocab_size": 256, "n_head": 3}, "", "transformers cannot build its model"),
        ("gpt2", {"vocab_size": 256, "n_embd": -16}, "", "transformers cannot build its model"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(
    posembed, text: Path, tmp_path: Path, name: str, changes: dict[str, int], options: str, message: str
) -> None:
    import transformers as hf

    folder = tmp_path / "config"
    if name == "llama":
        hf.LlamaConfig(**made.TEXT).save_pretrained(folder)
    elif name != "nothing":
        config_of(name, folder, vocab_size=changes.get("vocab_size", made.VOCABULARY))
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))  # a model may refuse its own config
    code, out, err = posembed(f"compare lengths --model {folder} --data {text} --out {tmp_path}/run {SMALL} {options}")
    assert (code, out) == (1, "")
    assert message in err
    assert err.startswith("posembed: error: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_weights_that_are_not_whole_or_have_no_tokenizer(
    posembed, text: Path, checkpoint: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    command = f"compare lengths --model {checkpoint} --data {text} --out {tmp_path}/run {SMALL}"
    tensors = load_file(checkpoint / "model.safetensors")
    lost = {name: tensor for name, tensor in tensors.items() if "ln_f" not in name}
    save_file(lost, checkpoint / "model.safetensors", metadata={"format": "pt"})
    code, _, err = posembed(command)
    assert code == 1
    assert "its weights lack transformer.ln_f.bias, transformer.ln_f.weight, which would be random" in err
    (checkpoint / "tokenizer.json").unlink()
    code, _, err = posembed(command)
    assert code == 1
    assert "has weights but no tokenizer.json" in err
    assert "needs a vocabulary of 256 or more" in err


@pytest.mark.parametrize(
    "other", ["model.safetensors.index.json", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack",
              "model.gguf", "consolidated.safetensors", "pytorch_model_fsdp_0"]
)  # fmt: skip
def test_weights_that_are_not_loaded_are_no_random_start(posembed, text: Path, tmp_path: Path, other: str) -> None:
    folder = config_of("opt", tmp_path / "config", vocab_size=256)
    (folder / other).write_bytes(b"{}")
    command = f"compare lengths --model {folder} --data {text} --out {tmp_path}/run {SMALL} --dry-run"
    code, _, err = posembed(command)
    assert code == 1
    assert f"holds {other}; expected weights as model.safetensors" in err
    assert posembed(command.replace(f"--model {folder}", f"--model {folder}/config.json")).code == 0


def test_without_transformers_it_says_what_to_install(
    posembed, text: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "posembed.integrations.decoder", None)  # as if it could not be imported
    code, _, err = posembed(f"compare lengths --model {checkpoint} --data {text} --out {tmp_path}/run {SMALL}")
    assert code == 1
    assert "--model needs transformers: pip install 'posembed[hf]'" in err


def test_other_questions_have_no_model(posembed, tmp_path: Path) -> None:
    code, _, err = posembed(f"compare rows --model {tmp_path}")
    assert code == 2
    assert "No such option" in err
    code, _, err = posembed(f"compare inits --model {tmp_path}")  # there, the kind of model
    assert code == 1
    assert "causal" in err
    assert "masked" in err
