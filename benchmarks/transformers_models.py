"""transformers' GPT-2 with each encoding: time of a Trainer step and memory, compared with the unmodified model.

    python benchmarks/transformers_models.py    # GPT-2 small, 20 steps of 1 text of 512 tokens for each encoding
    python benchmarks/transformers_models.py --layers 2 --width 64 --length 64 --rounds 2 --steps 3    # to try it

The weights are random. All models take turns: each round starts one process per model, which trains for a few steps of
Trainer after a warm-up step. A process holds only one model, so its memory is the model's. The peak is the
process's resident memory, or on a GPU the memory that torch has allocated. Encodings with a bias or a window need a
dense mask where the unmodified model needs none. After training, a text with padding on the left must generate the same
tokens as without padding.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

import pages
import torch

from posembed.statistics import estimate_median

UNMODIFIED = "unmodified"
ENCODINGS = ("learned", "rope", "alibi", "t5", "kerple-log", "fire", "rolling", "learned-averaged")
VOCABULARY = 50257


def train(settings: argparse.Namespace) -> dict[str, Any]:
    """Trains one model in this process. Returns its seconds per step, peak memory, loss, and the padding test."""
    import transformers as hf

    from posembed.integrations.transformers import replace_positions

    torch.manual_seed(0)
    config = hf.GPT2Config(
        n_layer=settings.layers, n_embd=settings.width, n_head=settings.width // 64 or 1,
        n_positions=max(1024, settings.length),
    )  # fmt: skip
    model = hf.GPT2LMHeadModel(config)
    if settings.one != UNMODIFIED:
        sizes = {"window": max(2, settings.length // 4)} if settings.one == "rolling" else {}
        replace_positions(model, settings.one, max_len=settings.length, **sizes)
    steps = 1 + settings.steps
    texts = [torch.randint(VOCABULARY, (settings.length,)) for _ in range(steps * settings.batch)]
    seconds: list[float] = []

    class Clock(hf.TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            wait()
            self.start = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            wait()
            seconds.append(time.perf_counter() - self.start)

    with tempfile.TemporaryDirectory() as folder:
        arguments = hf.TrainingArguments(
            output_dir=folder, max_steps=steps, per_device_train_batch_size=settings.batch, save_strategy="no",
            report_to="none", disable_tqdm=True, logging_strategy="no",
        )  # fmt: skip
        rows = [{"input_ids": text, "labels": text} for text in texts]
        trainer = hf.Trainer(model, arguments, train_dataset=rows, callbacks=[Clock()])  # type: ignore[arg-type]
        loss = trainer.train().training_loss
    if torch.cuda.is_available():
        peak = torch.cuda.max_memory_allocated()
    else:
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds[1:], "peak": peak, "loss": loss, "padding": padding_changes_nothing(model)}


def padding_changes_nothing(model: Any) -> bool:
    model.eval()
    text = torch.randint(1, VOCABULARY, (1, 24), device=model.device)
    padded = torch.cat((text.new_zeros(1, 7), text), dim=1)
    options = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    alone = model.generate(text, attention_mask=torch.ones_like(text), **options)
    beside = model.generate(padded, attention_mask=(padded != 0).long(), **options)
    return torch.equal(alone, beside[:, 7:])


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def in_turns(settings: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in (UNMODIFIED, *ENCODINGS)}
    for turn in range(settings.rounds):
        for name in runs:
            command = [sys.executable, __file__, "--one", name, *sys.argv[1:]]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"round {turn + 1}, {name}: {runs[name][-1]}", file=sys.stderr, flush=True)
    return runs


def report(settings: argparse.Namespace) -> None:
    runs = in_turns(settings)
    times = {name: estimate_median([s for run in each for s in run["seconds"]]) for name, each in runs.items()}
    peaks = {name: max(run["peak"] for run in each) for name, each in runs.items()}
    rows = []
    for name, each in runs.items():
        taken, low, high = times[name].value, times[name].low, times[name].high
        between = "" if low is None or high is None else f" ({low:.3g}-{high:.3g})"
        rows.append([
            name, f"{taken:.3g}{between}", f"{taken / times[UNMODIFIED].value:.2f}",
            f"{peaks[name] / 2**20:,.0f}", f"{peaks[name] / peaks[UNMODIFIED]:.2f}",
            f"{max(run['loss'] for run in each):.2f}", "yes" if all(run["padding"] for run in each) else "no",
        ])  # fmt: skip
    steps = settings.rounds * settings.steps
    lines = [
        "# GPT-2 of transformers with each encoding", "", "    python benchmarks/transformers_models.py", "",
        pages.machine("transformers", "accelerate"), "",
        f"{settings.layers} layers of width {settings.width}, {settings.batch} text of {settings.length} tokens "
        f"per step; {steps} steps of Trainer for each, in {settings.rounds} rounds in turns. Medians, 95% intervals.",
        "",
        *pages.table(
            ("model", "seconds per step", "of unmodified", "peak MiB", "of unmodified", "training loss",
             "left padding generates the same"), rows,
        ),
    ]  # fmt: skip
    pages.write("transformers_models", lines, keep=not settings.changed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"layers": 12, "width": 768, "length": 512, "batch": 1, "rounds": 4, "steps": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--one", choices=(UNMODIFIED, *ENCODINGS), help="train only this model, in this process")
    settings = parser.parse_args()
    settings.changed = len(sys.argv) > 1
    if settings.one:
        print(json.dumps(train(settings)))
    else:
        report(settings)


if __name__ == "__main__":
    main()
