"""Where does a longer learned table pay? Language models of bytes, lengthened by ``posembed tune``.

    python benchmarks/longer_pays.py --train FILE --text FILE

Trains a causal and a masked model of transformers from scratch, with 64 positions, on one file. Then lengthens each
to 128 positions, or as many as --lengths names, with ``posembed tune`` on documents of another file, and measures them
on held-out documents: at the new length, and in the best way to read with 64 positions. The same fine-tuning at 64
positions reads the same tokens. Keeps models and results in runs/longer-pays, continues there, and writes
benchmarks/results/longer_pays.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pages
import torch
import torch.nn.functional as F
from resize_quality import markdown
from torch import nn

from posembed.cli.console import Bar
from posembed.report import evaluation as evaluation_report
from posembed.report import tuning as tuning_report
from posembed.tuning.plan import plan_tuning
from posembed.tuning.result import Tuned

WORK = Path("runs/longer-pays")
SHORT = 64
TOKENS_PER_STEP = 2048
MASKED_SHARE = 0.4
"""The share of masked tokens in the training from scratch. With 15%, small models learn from context much later."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True, help="the text of the training from scratch")
    parser.add_argument("--text", type=Path, required=True, help="the text of the fine-tuning and of the measurement")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--lengths", type=int, nargs="+", default=[2 * SHORT])
    parser.add_argument("--method", default="stretch", help="how the new rows are first computed")
    parser.add_argument("--tune-steps", type=int, default=800)
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="of the fine-tuning")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    for name in given.models:
        if not (WORK / name).exists():
            from_scratch(name, given.train.read_bytes())
        for length in given.lengths:
            out = WORK / f"{name}-{length}-{given.method}"
            kept = out.with_name(f"{out.name}.json")
            if not kept.exists():
                settings = {
                    "length": length,
                    "method": given.method,
                    "steps": given.tune_steps,
                    "batch": TOKENS_PER_STEP // length,
                    "learning_rate": given.learning_rate,
                    "seeds": given.seeds,
                }
                with Bar() as bar:
                    tuned = plan_tuning(WORK / name, out, given.text, settings).run(bar.update)
                kept.write_text(json.dumps({"lines": list(described(name, tuned)), **tuned.to_dict()}))
    found = [json.loads(path.read_text()) for name in given.models for path in sorted(WORK.glob(f"{name}-*.json"))]
    lines = [
        "# Where does a longer learned table pay?", "",
        "    python benchmarks/longer_pays.py --train FILE --text FILE", "",
        pages.machine("transformers"), "",
        f"Models of bytes: 3 layers of width 96 with 4 heads, trained from scratch with {SHORT} positions in steps of "
        f"{TOKENS_PER_STEP:,} tokens ({', '.join(f'{name}: {MODELS[name].steps:,}' for name in given.models)}), then "
        f"fine-tuned for {given.tune_steps:,} steps of as many tokens.", "",
    ]  # fmt: skip
    pages.write("longer_pays", [*lines, *(line for each in found for line in each["lines"])])


# --- models of bytes -------------------------------------------------------------------------------------------------


def gpt2(vocabulary: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"vocab_size": vocabulary, "n_positions": SHORT, "n_embd": 96, "n_layer": 3, "n_head": 4}
    return GPT2LMHeadModel(GPT2Config(**sizes, **no_dropout, bos_token_id=None, eos_token_id=None))


def bert(vocabulary: int) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    sizes = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 384}
    config = BertConfig(
        vocab_size=vocabulary, max_position_embeddings=SHORT, initializer_range=0.1, **sizes, **no_dropout
    )
    return BertForMaskedLM(config)


class Kind(NamedTuple):
    """A kind of model, and its training from scratch."""

    make: Callable[[int], nn.Module]
    steps: int
    learning_rate: float


MODELS = {"causal": Kind(gpt2, 1000, 3e-3), "masked": Kind(bert, 2500, 1.5e-3)}


def tokenizer_of_bytes() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: number for number, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"mask_token": "<mask>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=SHORT, **special)


def from_scratch(name: str, text: bytes) -> None:
    """Trains a model on windows at random places of the text, and saves it with its tokenizer."""
    make, steps, rate = MODELS[name]
    tokenizer = tokenizer_of_bytes()
    ids = torch.tensor(tokenizer(text.decode("utf-8"))["input_ids"])
    torch.manual_seed(0)
    model: Any = make(len(tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rate, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        starts = torch.randint(len(ids) - SHORT, (TOKENS_PER_STEP // SHORT, 1))
        read = ids[starts + torch.arange(SHORT)]
        if name == "masked":
            chosen = torch.rand(read.shape) < MASKED_SHARE
            logits = model(input_ids=read.masked_fill(chosen, tokenizer.mask_token_id)).logits
            loss = F.cross_entropy(logits[chosen], read[chosen])
        else:
            loss = model(input_ids=read, labels=read).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    print(f"{name}: the training loss ends at {loss.item():.2f}")
    model.save_pretrained(WORK / name)
    tokenizer.save_pretrained(WORK / name)


def described(name: str, tuned: Tuned) -> Iterable[str]:
    yield from (f"## {name.capitalize()}, from {SHORT} to {tuned.length} positions, by {tuned.settings.method}", "")
    yield from (" ".join(tuning_report.answer(tuned)), "")
    for table in (*evaluation_report.tables(tuned.evaluation)[:1], *tuning_report.seeds_table(tuned)):
        yield from (f"### {table.title}", "", *markdown(table, slice(None)), "")
    yield from (f"- {line}" for line in (*tuning_report.how(tuned), *tuned.evaluation.notes))
    yield ""


if __name__ == "__main__":
    main()
