"""The last step after a resize: a few hundred steps of fine-tuning with the Trainer of transformers.

A small GPT-2 is trained on the source of Python's standard library, 64 bytes at a time, and resized to 256. It is then
fine-tuned on texts of that length for a few hundred steps: once the table alone, once the whole model. Both are
compared with chunking the text at 64, and with a model trained at 256 from the start for the same number of steps:

    python examples/tune_resized.py

With ``--smoothing 0.1``, the whole model is fine-tuned with a loss of your own, ``own_loss``.
"""

from __future__ import annotations

import argparse
import random
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

import posembed
from posembed.evaluation.results import Evaluation

SHORT, LONG = 64, 256
POSITIONS = "transformer.wpe.weight"


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer with one token per byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def standard_library(files: int | None = None) -> tuple[list[str], list[str]]:
    """Returns the sources to train on, and every tenth source, which is held out."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    random.Random(0).shuffle(paths)
    sources = [path.read_text(encoding="utf-8") for path in paths[:files]]
    return [source for number, source in enumerate(sources) if number % 10], sources[::10]


def windows(ids: Tensor, length: int) -> list[dict[str, Tensor]]:
    """Splits a text into chunks, in the format of Trainer. Drops the remainder."""
    chunks = ids[: len(ids) // length * length].view(-1, length)
    return [{"input_ids": chunk, "labels": chunk} for chunk in chunks]


def train(
    model: GPT2LMHeadModel,
    data: list[dict[str, Tensor]],
    folder: Path,
    *,
    steps: int,
    tokens_a_step: int,
    learning_rate: float,
    smoothing: float = 0.0,
) -> GPT2LMHeadModel:
    """Trains with AdamW on windows of a text, and saves the checkpoint in ``folder``."""

    def own_loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | None = None) -> Tensor:
        """Any function of the model's outputs can be the loss; here, cross-entropy with smoothed labels."""
        logits, answers = outputs.logits[:, :-1], labels[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1), answers.flatten(), label_smoothing=smoothing)

    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        max_steps=steps,
        per_device_train_batch_size=tokens_a_step // len(data[0]["input_ids"]),
        learning_rate=learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=steps // 20,
        weight_decay=0.0,  # it would shrink rows that no text uses
        seed=0,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    loss = own_loss if smoothing else None
    trainer = Trainer(model=model, args=arguments, train_dataset=data, compute_loss_func=loss)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return model


def new_model(length: int, *, layers: int, width: int) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256,
        n_positions=length,
        n_embd=width,
        n_layer=layers,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config)


def only_the_table(model: GPT2LMHeadModel) -> GPT2LMHeadModel:
    """Freezes all parameters except the position table."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == POSITIONS)
    return model


def tune_and_compare(
    folder: Path,
    *,
    steps: int = 1000,
    tuning_steps: int = 300,
    layers: int = 3,
    width: int = 96,
    tokens_a_step: int = 2048,
    texts: int = 60,
    files: int | None = None,
    method: str | None = None,
    smoothing: float = 0.0,
) -> Evaluation:
    """Trains, resizes, fine-tunes and evaluates. The checkpoints and the held-out texts stay in ``folder``."""
    sources, held_out = standard_library(files)
    ids = torch.tensor([number for text in byte_tokenizer()(sources)["input_ids"] for number in text])
    size = {"layers": layers, "width": width}
    fast = {"tokens_a_step": tokens_a_step, "learning_rate": 2e-3}
    slow = {"tokens_a_step": tokens_a_step, "learning_rate": 5e-4, "smoothing": smoothing}
    short, long = windows(ids, SHORT), windows(ids, LONG)

    train(new_model(SHORT, **size), short, folder / "trained-64", steps=steps, **fast)
    train(new_model(LONG, **size), long, folder / "trained-256", steps=steps + tuning_steps, **fast)
    posembed.resize_checkpoint(folder / "trained-64", folder / "resized", length=LONG, method=method)

    model = GPT2LMHeadModel.from_pretrained(folder / "resized")
    train(only_the_table(model), long, folder / "table-tuned", steps=tuning_steps, **fast)
    model = GPT2LMHeadModel.from_pretrained(folder / "resized")
    train(model, long, folder / "all-tuned", steps=tuning_steps, **slow)

    texts_folder = folder / "held-out"
    texts_folder.mkdir()
    for number, source in enumerate(held_out):
        (texts_folder / f"{number}.txt").write_text(source, encoding="utf-8")
    names = ("trained-64", "resized", "table-tuned", "all-tuned", "trained-256")
    return posembed.evaluate_checkpoints(
        [folder / name for name in names], texts_folder, lengths=(SHORT, 128, LONG), texts=texts
    )


def main() -> None:
    from posembed.report.evaluation import paragraphs, tables
    from posembed.report.terminal import as_text

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="training steps at 64")
    parser.add_argument("--tuning-steps", type=int, default=300)
    parser.add_argument("--method", help="the resize method")
    parser.add_argument("--smoothing", type=float, default=0.0, help="of the labels, in a loss of your own")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        evaluation = tune_and_compare(Path(folder), **vars(arguments))
        print(as_text(tables(evaluation), paragraphs(evaluation), width=200).replace(f"{folder}/", ""))


if __name__ == "__main__":
    main()
