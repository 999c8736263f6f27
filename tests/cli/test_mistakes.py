"""A mistake is one line that says what is wrong and what to do, before anything is trained or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from together import together

MODEL = "--layers 1 --width 8 --heads 2 --steps 3 --batch 2"
LENGTHS = f"compare lengths --data {{text}} --train-length 16 --test-lengths 16,32 --test-tokens 200 {MODEL}"
PROBLEM = f"compare tasks {{}} --train-size 3 --test-sizes 2,5 --test-problems 4 {MODEL}"
COLUMNS = "--data {data} --text-column mail --label-column kind --tokenizer bytes"
MISTAKES = {
    "advise": "give --length",
    "advise --length 512 --longest far": "longest: expected a whole number of at least 1, or none; got far",
    "advise --grid 14x": "grid: expected a number or HEIGHTxWIDTH, such as 24x32; got '14x'",
    "advise --length 8 --table 0": "table: expected a whole number of at least 1; got 0",
    "advise --length 8 --runs nowhere": "nowhere is not a run folder",
    "inspect {out}": "expected a folder, a weights file or a hub name",
    **{f"encodings --{size} 0": f"{size}: expected a whole number of at least 1; got 0"
       for size in ("width", "heads", "length", "layers", "grid")},
    **{f"encodings --width {width} --heads {heads}": f"width {width} is not divisible by {heads} heads"
       for width, heads in ((770, 12), (10, 3), (768, 5))},
    "compare cost --width 30 --heads 4 --out {out}": "width 30 is not divisible by 4 heads; try a width of 28\n",
    **{f"{LENGTHS} {given} --out {{out}}": message for given, message in {
        "--encodings learned,roap": "unknown encoding 'roap' (did you mean rope?); choose from learned, rolling",
        "--heads 3": "width 8 is not divisible by 3 heads",
        "--test-lengths 16,5000": "and test lengths up to 5,000 after a training length of 16 need 5,001",
        "--test-lengths many": "test_lengths: expected a list, each a whole number of at least 2; got 'many'",
        "--rope-factors 1,1": "rope_factors belongs to rope-longrope; none is compared, so leave it out",
        "--data nowhere.txt": "no file or folder nowhere.txt",
        "--track excel": "unknown tracker 'excel'; choose from tensorboard, wandb",
        "--preset enormous": "'enormous'; choose from quick, small, gpt2, documents, documents-quarter",
        "--precision fp4": 'precision must be "no" (float32), "bf16" or "fp16"',
    }.items()},
    **{f"{PROBLEM.format(problem)} {given} --out {{out}}": message for problem, given, message in (
        ("sorting", "--encodings abacus", "abacus ids do not apply to sorting"),
        ("copy", "--encodings coupled", "they apply to reverse and addition"),
        ("parity", "--encodings ropes", "unknown encoding 'ropes' for parity"),
        ("parity", "--encodings alibi --track tensorboard --on ray", "leave out --on, or leave out --track"),
    )},
    **{f"compare tasks {given} --out {{out}}": message for given, message in {
        "text --data {data}": "which column of mails.csv holds the text? Name it with --text-column",
        f"text {COLUMNS} --pooling max": "pooling must be one of cls, mean; got 'max'",
        f"text {COLUMNS} --pairs segments": "--pairs segments needs two text columns",
        "tags --data {data}": "column; expected 2: a word, ..., its label",
        "spans --preset huge": "unknown preset 'huge'; choose from default, documents, documents-quarter",
        "images --test-sizes 9": "images of 9 x 9 pixels cannot be cut into patches of 2 x 2",
        "images --data cats": "unknown images 'cats'",
    }.items()},
}  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "mails.csv"
    file.write_text("mail,kind\n" + "".join(f"letter {i},{'ham' if i % 3 else 'spam'}\n" for i in range(40)))
    return file


@together("command", MISTAKES)
def test_a_mistake_is_one_line(command: str, posembed, text: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, said, err = posembed(command.format(text=text, data=data, out=out), columns=200)
    assert (code, said) == (1, "")
    assert err.startswith("posembed: error: ")
    assert err.count("\n") == 1
    assert MISTAKES[command] in err
    assert not out.exists()
