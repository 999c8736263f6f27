"""The lab's training speed in tokens per second, compared with the models of nanoGPT and x-transformers.

    python benchmarks/lab.py --nanogpt /a/checkout/of/nanoGPT
    python benchmarks/lab.py --nanogpt ... --preset gpt2 --batch 8 --device cuda

All models have the same size, data, optimizer and clipping. Ours trains in posembed's own loop (train.run), the others
in a minimal loop. They take short turns, so that disturbances of the machine affect all of them alike. The table shows
medians over the turns, and each model's rate relative to the faster peer in the same turn, with the 95 % interval of
that median. With --command, the script also shows the time that `posembed compare lengths` spends outside training.
Writes benchmarks/results/lab.md.

nanoGPT: github.com/karpathy/nanoGPT; the script reads its model.py. x-transformers: pip install x-transformers.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import itertools
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.lab.cost.instruments import ratio
from posembed.lab.data.text import Corpus, load_corpus
from posembed.lab.questions.lengths import Lengths
from posembed.lab.runs import train
from posembed.lab.runs.environment import make_accelerator, processor_name
from posembed.lab.runs.spec import merged, with_default_window
from posembed.lab.tasks.language import LanguageModelling
from posembed.lab.tasks.text_specs import LengthSpec
from posembed.statistics import estimate_median

if TYPE_CHECKING:
    from accelerate import Accelerator

RESULTS = Path(__file__).resolve().parent / "results" / "lab.md"
Turn = Callable[[], float]
"""Trains for some steps. Returns tokens per second."""


class Unmeasured(LanguageModelling):
    """Language modelling without the final measurement."""

    def measure(self, spec: Any, model: Any, accelerator: Any) -> Any:
        return None


class Compiled(Unmeasured):
    """Language modelling with a compiled model. The first turn, which does not count, compiles it."""

    def __init__(self, corpus: Corpus) -> None:
        super().__init__(corpus)
        self.compiled: dict[int, Any] = {}

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        if id(model) not in self.compiled:
            self.compiled[id(model)] = torch.compile(model)
        return super().loss(self.compiled[id(model)], *batch)


def ours(task: LanguageModelling, spec: LengthSpec, accelerator: Accelerator) -> Turn:
    def turn() -> float:
        seconds: list[float] = []

        def note(progress: train.Progress) -> None:
            seconds.append(time.perf_counter())

        train.run(spec, task, accelerator, on_step=note)
        return rate(spec, seconds)

    return turn


def plain_loop(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    task: LanguageModelling,
    spec: LengthSpec,
    device: Any,
) -> Turn:
    """Returns a turn of the shortest loop that trains the same: draw, forward, backward, clip, step."""
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec.learning_rate, betas=(0.9, 0.95), fused=True)
    drawn_by = task.build(dataclasses.replace(spec, encoding="none"))

    def turn() -> float:
        seconds = []
        for step in range(spec.steps):
            inputs, targets, _ = (tensor.to(device) for tensor in task.draw(spec, drawn_by, step))
            loss(inputs, targets).backward()
            nn.utils.clip_grad_norm_(model.parameters(), spec.clip)
            optimizer.step()
            optimizer.zero_grad()
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter())
        return rate(spec, seconds)

    return turn


def rate(spec: LengthSpec, ends: list[float]) -> float:
    """Returns tokens per second by the median step, without the first step, which includes the setup."""
    steps = [after - before for before, after in itertools.pairwise(ends)]
    return spec.batch * spec.train_length / statistics.median(steps)


def nanogpt(folder: Path, task: LanguageModelling, spec: LengthSpec, device: Any) -> Turn:
    found = importlib.util.spec_from_file_location("nanogpt_model", folder / "model.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["nanogpt_model"] = module
    found.loader.exec_module(module)
    sizes = {"n_layer": spec.layers, "n_head": spec.heads, "n_embd": spec.width, "dropout": spec.dropout}
    config = module.GPTConfig(block_size=spec.train_length, vocab_size=task.corpus.vocabulary, bias=True, **sizes)
    model = module.GPT(config)
    return plain_loop(model, lambda ids, targets: model(ids.contiguous(), targets.contiguous())[1], task, spec, device)


def x_transformers(task: LanguageModelling, spec: LengthSpec, device: Any) -> Turn:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=spec.width,
        depth=spec.layers,
        heads=spec.heads,
        attn_dim_head=spec.width // spec.heads,
        attn_flash=True,
        attn_dropout=spec.dropout,
        ff_dropout=spec.dropout,
    )
    model = TransformerWrapper(
        num_tokens=task.corpus.vocabulary, max_seq_len=spec.train_length, attn_layers=layers, tie_embedding=True
    )

    def loss(ids: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())

    return plain_loop(model, loss, task, spec, device)


def command_parts(preset: str, steps: int | None) -> dict[str, float]:
    """Returns the seconds of one `posembed compare lengths` with one encoding: the total, then each part."""
    with tempfile.TemporaryDirectory() as folder:
        more = [] if steps is None else ["--steps", str(steps)]
        command = [
            sys.executable,
            "-m",
            "posembed",
            "compare",
            "lengths",
            "--preset",
            preset,
            "--encodings",
            "alibi",
        ]
        start = time.perf_counter()
        subprocess.run([*command, *more, "--out", folder], check=True, capture_output=True)
        parts = {"the whole command": time.perf_counter() - start}
    start = time.perf_counter()
    corpus = load_corpus("stdlib")
    parts["reading the text"] = time.perf_counter() - start
    spec = spec_of(corpus, preset, encoding="alibi", steps=steps)
    accelerator = make_accelerator()
    task = LanguageModelling(corpus)
    start = time.perf_counter()
    result = train.run(spec, task, accelerator)
    parts["training"] = result.seconds
    parts["measuring"] = time.perf_counter() - start - result.seconds
    parts["imports, summary, printing"] = parts["the whole command"] - sum(list(parts.values())[1:])
    return parts


def spec_of(corpus: Corpus, preset: str, *, encoding: str, **given: Any) -> LengthSpec:
    settings = with_default_window(merged(Lengths.presets[preset], given))
    return LengthSpec(question="lengths", encoding=encoding, seed=0, data_sha256=corpus.sha256, **settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, help="a folder that holds nanoGPT's model.py")
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int, default=8, help="steps per turn")
    parser.add_argument("--turns", type=int, default=41)
    parser.add_argument("--device")
    parser.add_argument("--command", action="store_true", help="also time the parts of posembed compare lengths")
    arguments = parser.parse_args()

    corpus = load_corpus("stdlib")
    spec = spec_of(corpus, arguments.preset, encoding="learned", steps=arguments.steps, warmup=1, batch=arguments.batch)
    accelerator = make_accelerator("no", arguments.device)
    task = Unmeasured(corpus)
    turns = {
        "posembed's lab": ours(task, spec, accelerator),
        "posembed's lab, compiled": ours(Compiled(corpus), spec, accelerator),
        "x-transformers": x_transformers(task, spec, accelerator.device),
    }
    if arguments.nanogpt is None:
        print("nanoGPT is left out; name a checkout of it with --nanogpt FOLDER")
    else:
        turns["nanoGPT"] = nanogpt(arguments.nanogpt, task, spec, accelerator.device)
    rates: dict[str, list[float]] = {name: [] for name in turns}
    first: dict[str, float] = {}
    for number in range(arguments.turns + 1):
        for name, turn in list(turns.items())[:: 1 if number % 2 else -1]:  # no model always follows the same one
            started = time.perf_counter()
            found = turn()
            if number:  # the first turn compiles and warms up
                rates[name].append(found)
            else:
                first[name] = time.perf_counter() - started
    peers = {name: values for name, values in rates.items() if not name.startswith("posembed")}
    fastest = max(peers, key=lambda name: statistics.median(peers[name]))
    given = " ".join("nanoGPT" if Path(word).is_dir() else word for word in sys.argv[1:])
    lines = [
        "# The lab's training, compared with nanoGPT's model and x-transformers'",
        "",
        f"    python benchmarks/lab.py {given}",
        "",
    ]
    lines += [
        f"{spec.layers} layers, width {spec.width}, {spec.heads} heads, {spec.batch} x {spec.train_length} tokens "
        f"per step, AdamW, float32; {arguments.turns} turns of {arguments.steps} steps each. {processor_name()}, "
        f"{torch.get_num_threads()} threads, {platform.system()}, torch {version('torch')}, x-transformers "
        f"{version('x-transformers')}.",
        "",
        f"| | tokens per second | quartiles | against {fastest}, turn by turn | 95 % interval |",
        "|---|---|---|---|---|",
    ]
    for name, values in rates.items():
        low, middle, high = statistics.quantiles(values, n=4)
        share = ratio(estimate_median(values), estimate_median(rates[fastest]))
        interval = "" if name == fastest or share.low is None else f"{share.low:.2f} to {share.high:.2f}"
        lines.append(f"| {name} | {middle:,.0f} | {low:,.0f} to {high:,.0f} | {share.value:.2f} | {interval} |")
    eager, compiled = "posembed's lab", "posembed's lab, compiled"
    compiling = first[compiled] - first[eager]
    won = estimate_median([1 / a - 1 / b for a, b in zip(rates[eager], rates[compiled], strict=True)]).value
    steps = compiling / (won * spec.batch * spec.train_length) if won > 0 else None
    lines += [
        "",
        f"Compiling takes {compiling:.0f} s, "
        + (f"won back after {steps:,.0f} steps" if steps is not None else "never won back")
        + f"; the preset trains {Lengths.presets[arguments.preset]['steps']:,}.",
    ]
    if arguments.command:
        lines += ["", f"`posembed compare lengths --preset {arguments.preset} --encodings alibi`, in seconds:", ""]
        lines += ["| part | seconds |", "|---|---|"]
        lines += [f"| {name} | {seconds:.1f} |" for name, seconds in command_parts(arguments.preset, None).items()]
    text = "\n".join([*lines, ""])
    RESULTS.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
