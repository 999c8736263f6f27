"""Put RoPE in the place of GPT-2's position table, and train it with the Trainer of transformers.

Both models are trained on 64 letters at a time of Python's standard library, and evaluated at 64 and at 128:

    python examples/trainer.py
"""

import math
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, logging
from transformers.trainer_callback import PrinterCallback

from posembed.integrations.transformers import from_pretrained, replace_positions

logging.set_verbosity_error()
logging.disable_progress_bar()

TRAINED = 64
sources = [path.read_bytes() for path in sorted(Path(os.__file__).parent.glob("*.py"))]
letters = torch.tensor(list(b"".join(sources)))
training, held_out = letters[:-50_000], letters[-50_000:]


def texts(letters: Tensor, length: int) -> list[dict[str, Tensor]]:
    pieces = letters[: len(letters) // length * length].view(-1, length)
    return [{"input_ids": piece, "labels": piece} for piece in pieces]


def new_gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    size = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256, "n_positions": TRAINED}
    return GPT2LMHeadModel(GPT2Config(**size, bos_token_id=None, eos_token_id=None))


def train_and_evaluate(model: GPT2LMHeadModel, folder: str) -> None:
    options = {"save_strategy": "no", "logging_strategy": "no", "report_to": "none", "disable_tqdm": True}
    arguments = TrainingArguments(
        folder, max_steps=200, per_device_train_batch_size=32, learning_rate=3e-3, use_cpu=True, **options
    )
    trainer = Trainer(model, arguments, train_dataset=texts(training, TRAINED))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    for length in (TRAINED, 2 * TRAINED):
        try:
            loss = trainer.evaluate(texts(held_out, length))["eval_loss"]
            print(f"  perplexity at {length:3}: {math.exp(loss):.2f}")
        except IndexError as error:
            print(f"  at {length}: IndexError: {error}")


with TemporaryDirectory() as folder:
    print("GPT-2 with its own table")
    train_and_evaluate(new_gpt2(), folder)

    print("GPT-2 with RoPE")
    model = replace_positions(new_gpt2(), "rope")  # the one word
    train_and_evaluate(model, folder)

    model.save_pretrained(folder)
    again = from_pretrained(folder)
    text = held_out[None, :100]
    assert torch.equal(again.eval()(text).logits, model.eval()(text).logits)
    print("  saved, loaded again: the same outputs")
