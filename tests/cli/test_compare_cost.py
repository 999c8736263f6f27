"""posembed compare cost and its page, as a user runs them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas

from posembed.lab.cost.results import CostSummary, load
from posembed.measure.frame import COLUMNS

SMALL = "--encodings learned,alibi --batch 1 --length 16 --width 32 --heads 4 --layers 2 --longest 512 --seconds 0"


def test_tables_on_stdout_and_a_page_of_them(posembed, tmp_path: Path) -> None:
    code, out, err = posembed(f"compare cost {SMALL} --out {tmp_path}")
    assert code == 0
    for text in ("Time of the encoding alone", "Overhead in the layer", "GPT-2 small", "1,048,576", "393,216"):
        assert text in out
    assert f"posembed report {tmp_path} makes a page of them" in " ".join(err.split())
    assert posembed(f"report {tmp_path}")[:2] == (0, f"report: {tmp_path / 'report.html'}\n")
    assert "What does each encoding cost in parameters, time and memory" in (tmp_path / "report.html").read_text(
        encoding="utf-8"
    )


def test_json_is_the_result(posembed, tmp_path: Path) -> None:
    code, out, _ = posembed(f"compare cost {SMALL} --json --out {tmp_path}")
    assert code == 0
    assert json.loads(out) == CostSummary(load(tmp_path)).to_dict()
    assert {each["run"] for each in json.loads(out)["estimates"]} == {"learned", "alibi"}


def test_csv_is_the_frame(posembed, tmp_path: Path) -> None:
    code, out, _ = posembed(f"compare cost {SMALL} --csv --out {tmp_path}")
    frame, result = (
        pandas.read_csv(io.StringIO(out), keep_default_na=False, converters={"value": float}),
        load(tmp_path),
    )
    assert code == 0
    assert tuple(frame.columns) == COLUMNS
    for run in result.frame.runs[1:]:
        own = frame[frame.run == run.name].set_index("metric").value
        assert {metric: float(own[metric]) for metric in ("parameters", "peak bytes, forward")} == {
            metric: run.value(metric) for metric in ("parameters", "peak bytes, forward")
        }
        assert list(own["time alone, forward"]) == [each.value for each in run.found["time alone, forward", None]]
        assert len(own[["time by length"]]) == 1
    assert "expected one of --json and --csv; got both" in posembed(f"compare cost {SMALL} --csv --json").err
    assert "a dry run measures none" in posembed(f"compare cost {SMALL} --csv --dry-run").err


def test_the_same_command_prints_the_kept_result(posembed, tmp_path: Path) -> None:
    first, second = (posembed(f"compare cost {SMALL} --out {tmp_path}") for _ in range(2))
    assert (second.code, second.out) == (0, first.out)
    assert "measured earlier; name another --out to measure again" in second.err
    assert "measured earlier" not in first.err
    plan = posembed(f"compare cost {SMALL} --out {tmp_path} --dry-run")
    assert "The folder holds all of these encodings; nothing was measured." in plan.out


def test_ctrl_c_ends_with_what_the_same_command_does(posembed, tmp_path: Path, monkeypatch) -> None:
    def stopped(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("posembed.lab.cost.measure.grow", stopped)
        done = posembed(f"compare cost {SMALL} --out {tmp_path}")
    assert (done.code, done.err) == (130, f"posembed: stopped; the same command measures again into {tmp_path}\n")
    assert posembed(f"compare cost {SMALL} --out {tmp_path}").code == 0


def test_a_plan_of_a_preset_measures_nothing(posembed, tmp_path: Path) -> None:
    command = f"compare cost --preset documents-quarter --seconds 0 --batch 2 --out {tmp_path / 'none'} --dry-run"
    code, out, err = posembed(command)
    assert code == 0, err
    assert "batch 2, length 128, width 192, heads 3" in out
    assert "nothing was measured" in out
    code, out, _ = posembed(f"{command} --json")
    planned = json.loads(out)
    names = ["attention without position", "learned", "sinusoidal", "rope", "alibi"]
    assert [each["encoding"] for each in planned] == names
    assert [each["parameters"] for each in planned] == [0, 128 * 192, 0, 0, 0]
    assert all(each["seconds"] > 0 for each in planned)
    assert not (tmp_path / "none").exists()
    code, _, err = posembed("compare cost --preset huge --dry-run")
    assert (code, "unknown preset 'huge'; choose from default, documents, documents-quarter" in err) == (1, True)
