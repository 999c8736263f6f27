"""evaluate and tune in two gloo processes: the numbers, the files and the words of one process.

The first test forks into both processes; the second, the same commands by ``accelerate launch``.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch

import posembed
from evaluated_models import save_encoder, write_texts
from fresh_process import run_python
from posembed import cli
from posembed.measure.processes import LAUNCHED, Processes
from posembed.modelfiles.checkpoint import open_checkpoint
from posembed.modelfiles.safetensors import values_of
from tolerance import assert_close
from two_processes import WORLD_SIZE, be_both, fork_both

TUNE = (
    *("tune", "model", "out", "--text", "texts", "--length", "64", "--steps", "2", "--device", "cpu"),
    *("--passage", "8", "--query", "8", "--batch", "4"),
)
EVALUATE = (
    *("evaluate", "model", "longer", "--text", "texts", "--lengths", "32,64", "--device", "cpu"),
    *("--results", "kept", "--json"),
)
REFUSED = {
    ("resize", "model", "other", "--length", "128"): "divided between processes; start it without accelerate launch",
    ("compare", "cost", "--preset", "quick", "--out", "runs"): "posembed cost is not divided between processes",
    ("tune", "model", "third", *TUNE[3:-1], "3"): "expected a multiple of the number of processes, 2; got 3",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_encoder(Path("model"), positions=32)
    posembed.resize_checkpoint("model", "longer", length=64)
    write_texts(Path("texts"), number=20, words=70)
    return tmp_path


def files(folder: Path) -> list[str]:
    """The names in a folder. A result of tune is called by the hash of the weights, of which the last bits differ."""
    found = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != ".lock")
    return sorted(re.sub(r"(out\.tune/evaluations/.*)[0-9a-f]{64}", r"\1", name) for name in found)


def alone(folder: Path, where: Path) -> Path:
    """Returns a folder in which one process has run both commands."""
    place = shutil.copytree(folder, where)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(place)
        for words in (EVALUATE, TUNE):
            patched.setattr(sys, "argv", ["posembed", *words])
            with open(f"{words[0]}.txt", "w") as out, redirect_stdout(out), pytest.raises(SystemExit, match="0"):
                cli.main()
    return place


def check_both(ours: Path, theirs: Path) -> None:
    """``ours``: of several processes, which wrote the same files and printed once; ``theirs``: of one."""
    assert files(ours) == files(theirs)
    # A document set is read by one process, so that its numbers are the same to the bit.
    assert (ours / "evaluate.txt").read_bytes() == (theirs / "evaluate.txt").read_bytes()
    for name in ("out", "out-at-32"):
        # The mean of the gradients of two half batches is rounded otherwise than the gradient of the whole.
        after, expected = (open_checkpoint(place / name).tensors for place in (ours, theirs))
        scale = [values_of(value) for value in expected.values()]
        for key in expected:
            assert_close(values_of(after[key]), values_of(expected[key]), depth=8, scale=scale)
    assert (ours / "tune.txt").read_text().count("written: out\n") == 1


def main(rank: int) -> None:
    os.chdir(Path(sys.argv[1]).parent)
    os.environ |= dict(zip(LAUNCHED, (str(rank), str(WORLD_SIZE), "localhost", "1"), strict=True))
    for words in (EVALUATE, TUNE, *REFUSED):
        with open(f"../out-{rank}", "w") as out, open(f"../err-{rank}", "w") as err:
            sys.argv[1:] = words
            try:
                with redirect_stdout(out), redirect_stderr(err):
                    cli.main()
            except SystemExit as ended:
                code = ended.code
        printed, said = (Path(f"../{name}-{rank}").read_text() for name in ("out", "err"))
        if (message := REFUSED.get(words)) is not None:
            assert code == 1
            assert (message in said) == (rank == 0), said
            assert not printed
        else:
            assert code == 0, said
            assert bool(printed) == (rank == 0)
            if rank == 0:
                Path(f"{words[0]}.txt").write_text(printed)
            else:
                assert not said


@pytest.mark.not_perturbed(reason="compares with other processes, whose results are not perturbed")
@pytest.mark.usefixtures("one_thread")  # a fork has no other threads
def test_two_processes_end_as_one(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    theirs = alone(folder, tmp_path_factory.mktemp("alone") / "here")
    fork_both(main, __file__, folder / "store")
    (folder / "store").unlink(missing_ok=True)
    check_both(folder, theirs)


@pytest.mark.not_perturbed(reason="compares with other processes, whose results are not perturbed")
@pytest.mark.whole
def test_accelerate_launch(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    theirs = alone(folder, tmp_path_factory.mktemp("alone") / "here")
    for words in (EVALUATE, TUNE):
        launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0"]
        done = run_python(*launch, "-m", "posembed", *words)
        assert done.returncode == 0, done.stderr
        Path(f"{words[0]}.txt").write_text(done.stdout)
    check_both(folder, theirs)


def test_a_share_is_all_that_no_other_process_has() -> None:
    sizes = {"a": 5.0, "b": 3.0, "c": 3.0, "d": 1.0}
    shares = [Processes(rank, 2).share(sizes) for rank in range(2)]
    assert shares == [{"a", "d"}, {"b", "c"}]
    assert Processes().share(sizes) == set(sizes)


def test_gradients_are_averaged_and_not_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor: tensor.mul_(4))  # four equal gradients
    gradients = [torch.tensor([1.0, -2.0]), torch.tensor(3.0)]
    Processes(1, 4).average_(gradients)
    Processes().average_(gradients)
    assert [each.tolist() for each in gradients] == [[1.0, -2.0], 3.0]


if __name__ == "__main__":
    be_both(main)
