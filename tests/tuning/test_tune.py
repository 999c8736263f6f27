"""Fine-tuning from end to end, with a small sentence encoder: what is written, continued and refused."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors import safe_open

import posembed
from evaluated_models import SIZES, VOCABULARY, row_of, save_encoder, write_texts
from posembed.errors import ArgumentError, CheckpointError, DataError, PosEmbedError, RunFolderError
from posembed.evaluation.results import Row
from posembed.evaluation.runnable import open_runnable
from posembed.evaluation.texts import encode
from posembed.evaluation.ways import Encoder
from posembed.modelfiles.checkpoint import open_checkpoint
from posembed.modelfiles.safetensors import tensor_sha256, values_of
from posembed.report.tuning import answer, plan_words, seeds_table
from posembed.tuning.outs import write
from posembed.tuning.plan import plan_tuning, tune_checkpoint
from posembed.tuning.result import Tuned, with_seeds
from posembed.tuning.run import OBJECTIVES, TunePlan
from posembed.tuning.sentences import Sentences
from posembed.tuning.settings import TuneSettings
from posembed.tuning.texts import read_texts
from posembed.tuning.trainable import Trainable
from posembed.words import signed
from together import together
from tolerance import assert_close

SETTINGS: dict[str, Any] = {"length": 128, "steps": 5, "batch": 2, "passage": 8, "query": 8}


class Finished(NamedTuple):
    """A folder with a model, a text and what a fine-tuning wrote, its result, and the progress that it reported."""

    folder: Path
    tuned: Tuned
    seen: list[tuple[str, int, int]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    save_encoder(folder / "model", pooling={"pooling_mode": "mean", "embedding_dimension": 32})
    (folder / "model" / "README.md").write_text("# My model\n")
    write_texts(folder / "text", number=24, words=300)
    return folder


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder, seen = shutil.copytree(data, tmp_path_factory.mktemp("finished") / "here"), list[tuple[str, int, int]]()
    with chdir(folder):
        return Finished(folder, tune(progress=lambda *done: seen.append(done)), seen)


@pytest.fixture(scope="module")
def rows_trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = shutil.copytree(data, tmp_path_factory.mktemp("rows") / "here")
    with chdir(folder):
        return Finished(folder, tune(train="rows", steps=1), [])


@pytest.fixture
def folder(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the model and the text."""
    folder = shutil.copytree(data, tmp_path / "here")
    monkeypatch.chdir(folder)
    return folder


@contextmanager
def chdir(folder: Path) -> Iterator[None]:
    """contextlib.chdir, which Python 3.10 lacks."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def tune(**others: Any) -> Tuned:
    return tune_checkpoint("model", "out", **{"text": "text", "device": "cpu", **SETTINGS, **others})


def hashes(path: str | Path) -> dict[str, str]:
    return {key: tensor_sha256(values_of(tensor)) for key, tensor in open_checkpoint(path).tensors.items()}


def test_what_is_written(finished: Finished, data: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    folder, tuned, seen = finished
    assert hashes(folder / "model") == hashes(data / "model")
    assert sorted(path.name for path in folder.iterdir()) == ["model", "out", "out-at-64", "out.tune", "text"]
    for name in ("fine-tuning at 128", "fine-tuning at 64"):
        assert [(done, total) for of, done, total in seen if of == name] == [(step, 5) for step in range(1, 6)]
    record = json.loads((folder / "out" / "posembed.json").read_text())
    assert (record["resizes"][0]["to"], record["tunings"][0]["steps"]) == (128, 5)
    card = (folder / "out" / "README.md").read_text()
    assert card.startswith("# My model\n\n## Position table resized")
    assert "## Fine-tuned at 128 tokens" in card
    assert "not trained" not in card
    assert "read in pieces of 64" in (folder / "out-at-64" / "README.md").read_text()
    assert hashes(folder / "out-at-64") != hashes(data / "model")
    assert AutoModel.from_pretrained(folder / "out").embeddings.position_embeddings.weight.shape == (128, 32)
    assert AutoTokenizer.from_pretrained(folder / "out").model_max_length == 128
    with pytest.raises(CheckpointError, match="not an unchanged earlier resize"):
        posembed.resize_checkpoint(data / "model", folder / "out", length=96, overwrite=True)
    assert (tuned.steps, tuned.out) == (5, Path("out"))
    assert repr(tuned).startswith(f"out, fine-tuned in 5 steps; recommended: {tuned.recommended.name}\n")
    assert repr(tuned).endswith(repr(tuned.evaluation))


def test_the_baselines(finished: Finished) -> None:
    evaluation = finished.tuned.evaluation
    rows = [row.name for row in evaluation.rows]
    assert rows[:3] == ["out", "model", "out-at-64"]
    assert {"model, truncated at 64", "model, chunks of 64, mean", "out-at-64, chunks of 64, max"} <= set(rows)
    assert {"out, chunks of 64, mean", "out, late chunks of 64, max", "model, chunks of 64 in context, max"} <= set(
        rows
    )
    candidates = [row.name for row in finished.tuned.candidates]
    assert candidates == ["model, chunks of 64, mean", "out-at-64, chunks of 64, mean", "out"]
    assert finished.tuned.kept is not None
    assert 0.9 < finished.tuned.kept.value < 1
    assert (evaluation.unit, evaluation.texts, evaluation.reference.name) == ("document", 10, candidates[0])


def test_sentence_transformers_embeds_as_we_do(finished: Finished) -> None:
    library = pytest.importorskip("sentence_transformers")
    out = open_runnable(finished.folder / "out")
    tokenizer, texts = out.tokenizer(), read_texts(finished.folder / "text")[:4]
    with torch.inference_mode():
        reader = Encoder(out.model("cpu"), (2,), (3,), "mean", 0)
        ids = [torch.tensor(encode(tokenizer, text)[:126]) for text in texts]
        ours = torch.cat([reader.pooled(states, 126, 126) for states in reader.states(ids)])
    theirs = library.SentenceTransformer(str(finished.folder / "out"), device="cpu").encode(texts)
    assert_close(ours, torch.tensor(theirs))


def test_ctrl_c_and_the_same_call_end_with_the_same_bits(finished: Finished, folder: Path) -> None:
    def press(name: str, done: int, total: int) -> None:
        if (name, done) in (("fine-tuning at 64", 2), ("fine-tuning at 128", 4)):
            os.kill(os.getpid(), signal.SIGINT)

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            tune(progress=press)
        assert not Path("out").exists()
    seen: list[tuple[str, int]] = []
    again = tune(progress=lambda name, done, total: seen.append((name, done)))
    assert [step for step in seen if step[0].startswith("fine")] == [("fine-tuning at 128", 5)]
    for out in ("out", "out-at-64"):
        assert hashes(out) == hashes(finished.folder / out)
    assert again.evaluation == finished.tuned.evaluation


def test_a_precision_in_the_environment_changes_nothing(
    rows_trained: Finished, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, which has no mixed precision here: accelerate would take it from the environment."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    tune(train="rows", steps=1)
    assert os.environ["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert hashes("out") == hashes(rows_trained.folder / "out")


def test_mpnet_whose_layers_also_have_relative_biases(folder: Path) -> None:
    """The class of all-mpnet-base-v2."""
    from transformers import MPNetConfig, MPNetModel

    torch.manual_seed(0)
    sizes = {**SIZES, "vocab_size": len(VOCABULARY), "max_position_embeddings": 66}  # two rows are reserved
    MPNetModel(MPNetConfig(**sizes, pad_token_id=1)).save_pretrained("model")
    tuned = tune(steps=1)
    assert tuned.candidates[-1].name == "out"
    before, after = (open_checkpoint(place).tensors for place in ("model", "out"))
    shapes = {key: (tuple(before[key].shape), tuple(after[key].shape)) for key in before}
    changed = {key: shape for key, shape in shapes.items() if shape[0] != shape[1]}
    assert changed == {"embeddings.position_embeddings.weight": ((66, 32), (130, 32))}
    assert list(tuned.moved[0]) == list(range(128))


def test_two_processes_do_not_run_the_same_fine_tuning(folder: Path) -> None:
    def again(name: str, done: int, total: int) -> None:
        if not name.startswith("fine-tuning"):
            return
        with pytest.raises(RunFolderError, match="another process is running this command; wait for it"):
            tune()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(progress=again)


def test_another_run_is_not_continued(folder: Path) -> None:
    def stop(name: str, done: int, total: int) -> None:
        if name.startswith("fine-tuning"):
            raise KeyboardInterrupt

    Path("out.tune").mkdir()  # as if killed at once
    with pytest.raises(KeyboardInterrupt):
        tune(progress=stop)
    with pytest.raises(RunFolderError, match=r"other settings \(batch: 2 there, 4 now\); use the same settings"):
        tune(batch=4)
    write_texts(Path("text"), number=25, words=300)
    with pytest.raises(RunFolderError, match=r"other settings \(texts: \w+… there, \w+… now\)"):
        tune()
    Path("out.tune/settings.json").write_text("{}")
    with pytest.raises(RunFolderError, match="it has no question"):
        tune()


def test_a_kill_between_the_two_outputs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(plan: TunePlan, which: str, place: Path) -> None:
        if which == "tuned":
            raise KeyboardInterrupt
        write(plan, which, place)

    with monkeypatch.context() as patched:
        patched.setattr("posembed.tuning.run.write", killed)
        with pytest.raises(KeyboardInterrupt):
            tune(steps=1)
    assert Path("out-at-64").exists()
    tune(steps=1)
    assert Path("out").exists()


def test_rows_train_nothing_at_the_old_length(rows_trained: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = rows_trained.tuned
    monkeypatch.chdir(rows_trained.folder)
    assert not Path("out-at-64").exists()
    assert len(tuned.candidates) == 2
    before, after = hashes("model"), hashes("out")
    changed = [key for key in before if before[key] != after[key]]
    assert changed == ["embeddings.position_embeddings.weight"]
    table = values_of(open_checkpoint("out").tensors[changed[0]])
    assert torch.equal(table[:64], values_of(open_checkpoint("model").tensors[changed[0]]))
    assert tuned.kept is not None
    assert_close(tuned.kept.value, 1, dtype=torch.float32)
    values = {row.name: row.runs[0].values for row in tuned.evaluation.rows}
    assert values["out, chunks of 64, mean"] == values["model, chunks of 64, mean"]


def test_minutes_become_steps_once(folder: Path) -> None:
    counted: list[int] = []

    def stop(name: str, done: int, total: int) -> None:
        if name.startswith("fine-tuning"):
            counted.append(total)
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            tune(steps=None, minutes=0.5, progress=stop)
    assert counted[0] == counted[1] > 1
    assert json.loads(Path("out.tune/state.json").read_text())["steps"] == counted[0]


def test_minutes_cover_every_part_of_the_command(folder: Path) -> None:
    def planned(**chosen: Any) -> TunePlan:
        given = {**SETTINGS, "steps": None, **chosen}
        return plan_tuning("model", "out", "text", given, device="cpu")

    for minutes, seeds in ((0.5, 1), (2.0, 2)):
        plan = planned(minutes=minutes, seeds=seeds)
        estimate = dict(plan.estimate())
        steps = estimate.pop("steps")
        assert steps > 1
        assert sum(estimate.values()) <= 60 * minutes
        assert sum(estimate.values()) > 60 * minutes - 2 * seeds * sum(plan.per_step.values())
    short = planned(minutes=1e-6)
    assert short.estimate()["steps"] == 1
    assert "time for a single step" in " ".join(plan_words(short))


def test_the_sizes_of_documents_are_those_of_what_is_searched_of_whole_ones(finished: Finished) -> None:
    with chdir(finished.folder):
        tokenizer = open_runnable("model").tokenizer()
        sizes = [len(encode(tokenizer, text)) + 2 - 3 * 8 for text in read_texts("text")]  # without three queries
    (note,) = (note for note in finished.tuned.evaluation.notes if note.startswith("Documents with more tokens"))
    *_, longest = (int(word.replace(",", "")) for word in re.findall(r"[\d,]*\d", note))
    assert longest in sizes
    assert longest > SETTINGS["length"]


def test_the_answer_names_the_best_row_of_the_table(finished: Finished) -> None:
    """Whichever row is the best, and by however much, the answer names it, or recommends it."""
    tuned = finished.tuned
    measure, length, rows = tuned.measure, tuned.length, tuned.evaluation.rows
    number = tuned.evaluation.texts
    for at, ahead in itertools.product(range(len(rows)), (0.001, 0.3)):
        values = [0.1 + (ahead if each == at else 0.0) for each in range(len(rows))]
        noise = [0.01 * (each % 2) for each in range(number)]
        changed = tuple(
            row_of(row.checkpoint, {measure: {length: [value + n for n in noise]}}, baseline=row.baseline)
            for row, value in zip(rows, values, strict=True)
        )
        of = replace(tuned, evaluation=replace(tuned.evaluation, rows=changed))
        said = " ".join(answer(of))
        if changed[at] in of.candidates:
            assert "Of all rows" not in said
            continue
        assert f"Of all rows, “{changed[at].name}” has the best {measure}: {0.105 + ahead:.3f}" in said
        assert "It is no candidate" in said
        assert "measure it on other texts before you use it" in said
        better = rf"{re.escape(changed[at].name)}”? \({re.escape(signed(ahead))}[,;)].* significantly better than"
        assert re.search(better, said)


def test_an_existing_out_is_refused_before_any_text_is_read_and_anything_written(folder: Path) -> None:
    for place in ("out", "out-at-64"):
        Path(place).mkdir()
        with pytest.raises(CheckpointError, match=f"{place}: it exists"):
            tune(text="no such file")
        assert not Path("out.tune").exists()
        Path(place).rmdir()


def test_a_loss_that_is_not_finite(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Diverging(Sentences):
        def loss(self, model: Any, items: Any, **how: Any) -> torch.Tensor:
            return super().loss(model, items, **how) * (math.nan if min(items) >= 4 else 1.0)

    monkeypatch.setitem(OBJECTIVES, "sentences", Diverging)
    with pytest.raises(CheckpointError, match="the loss of step 3 is not finite"):
        tune()
    assert not Path("out").exists()
    with pytest.raises(CheckpointError, match=r"step 3 is not finite; .*; there is no checkpoint"):
        tune()
    monkeypatch.setattr("posembed.tuning.trainer.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    with pytest.raises(CheckpointError, match=r"step 3 .*; its last checkpoint is out\.tune/seed-0-old-steps/\S*-2$"):
        tune()
    with safe_open("out.tune/seed-0-old-steps/checkpoint-2/trained.safetensors", "pt") as weights:
        assert all(weights.get_tensor(name).isfinite().all() for name in weights.keys())  # noqa: SIM118


def test_ways_to_save_memory_do_not_change_the_result(
    finished: Finished, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Large(Sentences):
        most = 1

        def loss(self, model: Any, items: Any, **how: Any) -> torch.Tensor:
            if len(items) > self.most:
                torch.empty(1 << 50)  # more than any machine has
            return super().loss(model, items, **how)

    monkeypatch.setitem(OBJECTIVES, "sentences", Large)
    tune(checkpointing=True)
    whole, parts = (open_checkpoint(place / "out").tensors for place in (finished.folder, folder))
    scale = [values_of(value) for value in whole.values()]
    for key in whole:
        assert_close(values_of(parts[key]), values_of(whole[key]), depth=8, scale=scale)
    for name in ("out-at-64", "out", "out.tune"):
        shutil.rmtree(name)
    Large.most = 0
    with pytest.raises(CheckpointError, match=r"a window of 64 tokens does not fit into memory; give --checkpointing"):
        tune()


def test_a_batch_in_parts_continues_from_its_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Large(Sentences):
        def loss(self, model: Any, items: Any, **how: Any) -> torch.Tensor:
            if len(items) > 1:
                torch.empty(1 << 50)  # more than any machine has
            return super().loss(model, items, **how)

    def progress(name: str, done: int, total: int) -> None:
        seen.append((name, done))
        if (name, done, interrupted) == ("fine-tuning at 128", 3, False):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setitem(OBJECTIVES, "sentences", Large)
    seen, interrupted = list[tuple[str, int]](), False
    with pytest.raises(KeyboardInterrupt):
        tune(progress=progress)
    seen, interrupted = [], True
    tune(progress=progress)
    assert [done for name, done in seen if name == "fine-tuning at 128"] == [4, 5]


@together(
    "steps, warmup",
    itertools.product([1, 2, 3, 10], [0.0, 0.1, 0.5, 0.99]),
    usual=lambda *case: case in {(1, 0.99), (2, 0.5), (3, 0.0), (10, 0.1), (10, 0.99)},
)
def test_the_learning_rate_reaches_its_peak(steps: int, warmup: float, tmp_path: Path) -> None:
    from posembed.tuning.trainer import StepTrainer

    model = torch.nn.Linear(2, 1)
    trained, rates = Trainable(model, {}, [{"params": list(model.parameters()), "lr": 0.25}]), list[float]()

    class Recorded:
        def loss(self, model: Any, items: Any, **how: Any) -> torch.Tensor:
            return model(torch.ones(2)).sum()

    def tick(done: int) -> None:
        rates.append(model.bias.item())

    before, settings = model.bias.item(), TuneSettings(length=16, batch=1, warmup=warmup)
    how: dict[str, Any] = {"length": 16, "seed": 0, "device": "cpu", "parts": 1}
    StepTrainer(trained, Recorded(), settings, folder=tmp_path, steps=steps, **how).run(tick)  # type: ignore[arg-type]
    # With a constant gradient, each step of AdamW is as large as the learning rate.
    largest = max(a - b for a, b in zip([before, *rates], rates, strict=False))
    assert largest == pytest.approx(0.25, rel=1e-4)  # AdamW's eps, and bias correction in float32


@pytest.mark.parametrize("length", [33, 64])
def test_positions_that_a_lower_limit_leaves_unused_are_not_cut_off(folder: Path, length: int) -> None:
    (folder / "model" / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32}))
    with pytest.raises(ArgumentError, match=r"length: expected more than 64 tokens, for which"):
        tune(length=length)
    assert sorted(path.name for path in folder.iterdir()) == ["model", "text"]


def test_seeds_are_averaged(folder: Path) -> None:
    tuned = tune(seeds=2, steps=1)
    measure, length = tuned.measure, tuned.length
    assert tuned.evaluation.reference.seeds == [0, 1]
    by_seed = tuned.frame().query("metric == @measure and x == @length").groupby(["run", "seed"])
    values = (by_seed.value.sum() / by_seed.weight.sum()).unstack()
    for row in tuned.evaluation.rows:
        found = row.estimate(measure, length)
        assert (found is None) == (row.name not in values.index)
        if found is not None:
            assert_close(found.value, values.loc[row.name].mean())
    (table,) = seeds_table(tuned)
    assert [cell.text for cell in table.head] == ["seed 0", "seed 1", "difference", "significant?"]
    assert table.title.endswith("and the difference from the first row with its 95% interval over seeds")
    first, *_, last = tuned.candidates
    assert table.rows[-1].cells[2].text == signed((values.loc[last.name] - values.loc[first.name]).mean())


def of_seeds(tuned: Tuned, values: Callable[[str, int], Sequence[float]], seeds: int = 1) -> Tuned:
    """The same result with other values by document, for each row and seed."""

    def changed(row: Row, seed: int) -> Row:
        made = row_of(row.checkpoint, {tuned.measure: {128: values(row.name, seed)}}, baseline=row.baseline)
        return replace(made, runs=(replace(made.runs[0], seed=seed),))

    evaluation = replace(tuned.evaluation, measures=(tuned.measure,), lengths=(128,))
    made = [[changed(row, seed) for row in evaluation.rows] for seed in range(seeds)]
    return replace(tuned, evaluation=with_seeds([replace(evaluation, rows=tuple(rows)) for rows in made]))


@pytest.mark.parametrize(("gains", "pays"), [((0.2, 0.21, 0.19), True), ((0.6, -0.2, 0.2), False), ((0.6, -0.2), True)])
def test_a_gain_must_hold_over_three_seeds(finished: Finished, gains: tuple[float, ...], pays: bool) -> None:
    last = finished.tuned.candidates[-1].name

    def values(name: str, seed: int) -> list[float]:
        return [(name == last) * gains[seed] + i % 3 / 99 for i in range(10)]

    assert of_seeds(finished.tuned, values, len(gains)).pays == pays


def test_the_choice_is_the_cheapest_that_nothing_beats(finished: Finished) -> None:
    names = [row.name for row in finished.tuned.candidates]
    for values, best in (((0.5, 0.5, 0.5), 0), ((0.5, 0.6, 0.6), 1), ((0.5, 0.4, 0.6), 2), ((0.5, 0.6, 0.7), 2)):
        of = dict(zip(names, values, strict=True))
        found = of_seeds(finished.tuned, lambda name, seed, of=of: [of.get(name, 0) + i % 3 / 50 for i in range(10)])
        assert found.recommended.name == names[best]
        assert found.pays == (best == 2)


@pytest.fixture
def untouched(folder: Path) -> Iterator[Path]:
    before = sorted(folder.rglob("*"))
    yield folder
    assert sorted(folder.rglob("*")) == before


@together(
    ("changed", "error", "message"),
    [
        (
            {"length": 64},
            ArgumentError,
            "length: expected more than 64 tokens, for which model has positions already; got 64",
        ),
        ({"length": 8}, ArgumentError, "length: expected a whole number of at least 16; got 8"),
        ({"length": 400}, DataError, "expected at least 20 documents of 400 tokens.* the longest has 302"),
        ({"train": "head"}, ArgumentError, "train: expected one of all, rows, table, lora; got 'head'"),
        (
            {"train": "rows", "method": "linear"},
            ArgumentError,
            "rows keeps the existing rows, and this resize changes them",
        ),
        ({"method": "best"}, ArgumentError, "best"),
        ({"minutes": 3}, ArgumentError, "minutes: expected either minutes or steps; got both"),
        ({"batches": 2}, ArgumentError, r"unknown option 'batches' of tune \(did you mean batch\?\)"),
        ({"length": None}, ArgumentError, "length: expected a whole number of at least 16; got none"),
        ({"passage": 17}, ArgumentError, "passage: expected at most 16 tokens"),
        ({"device": "none"}, ArgumentError, "device: expected a device"),
    ],
)
def test_wrong_settings(untouched: Path, changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tune(**changed)


@together(
    ("out", "text", "message"),
    [
        ("text", "text", "text: it exists; choose another OUT"),
        ("model/inside", "text", "must be outside"),
        ("no/out", "text", "the folder no does not exist"),
        ("out", "no", "no: expected a text file or a folder"),
        ("ö" * 120, "no", "out: expected a name of at most .* bytes; got 240"),
    ],
)
def test_wrong_paths(untouched: Path, out: str, text: str, message: str) -> None:
    with pytest.raises(PosEmbedError, match=message):
        tune_checkpoint("model", out, text, **SETTINGS)


def test_wrong_models(folder: Path) -> None:
    from transformers import ViTConfig, ViTModel

    sizes: dict[str, int] = {"image_size": 16, "patch_size": 4, "num_hidden_layers": 1, "hidden_size": 8}
    ViTModel(ViTConfig(num_attention_heads=2, intermediate_size=8, **sizes)).save_pretrained(folder / "vit")
    with pytest.raises(CheckpointError, match=r"config.json names ViTModel; .* examples/tune_resized.py does"):
        tune_checkpoint("vit", "out", "text", **SETTINGS)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "model" / file).unlink()
    with pytest.raises(CheckpointError, match="expected a tokenizer next to the weights"):
        tune()
    assert not Path("out.tune").exists()
