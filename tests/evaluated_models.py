"""Tiny random language models and sentence encoders with a tokenizer, and texts in its words."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from posembed.evaluation.measures import METRICS
from posembed.evaluation.results import Row
from posembed.measure.estimates import items, sums
from posembed.measure.frame import Run, Value
from posembed.statistics import shares

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
WORDS = [f"w{number}" for number in range(90)]
SPECIALS = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
VOCABULARY = {**SPECIALS, **{word: number for number, word in enumerate(WORDS, start=len(SPECIALS))}}


def save_tokenizer(folder: Path, *, specials: bool) -> None:
    """One token a word; with ``specials``, [CLS] before and [SEP] after each text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if specials:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"} if specials else {}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)


def save_causal(folder: Path, *, positions: int = 64) -> PreTrainedModel:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_embd": 32, "n_layer": 1, "n_head": 2, "initializer_range": 0.3}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(VOCABULARY), n_positions=positions, **sizes)).eval()
    model.save_pretrained(folder)
    save_tokenizer(folder, specials=False)
    return model


def save_masked(folder: Path, *, positions: int = 64) -> PreTrainedModel:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(VOCABULARY), max_position_embeddings=positions, **SIZES)
    model = BertForMaskedLM(config).eval()
    model.save_pretrained(folder)
    save_tokenizer(folder, specials=True)
    return model


def save_encoder(folder: Path, *, positions: int = 64, pooling: dict[str, Any] | None = None) -> PreTrainedModel:
    """A folder as sentence-transformers writes it."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(VOCABULARY), max_position_embeddings=positions, **SIZES)
    model = BertModel(config).eval()
    model.save_pretrained(folder)
    save_tokenizer(folder, specials=True)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    settings = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True} if pooling is None else pooling
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    return model


def write_texts(path: Path, *, number: int = 12, words: int = 200, seed: int = 0) -> Path:
    """Documents of random words, a blank line between."""
    draw = random.Random(seed)
    path.write_text("\n\n".join(" ".join(draw.choices(WORDS, k=words)) for _ in range(number)))
    return path


def write_collection(folder: Path, *, documents: int = 12, words: int = 150, seed: int = 0) -> Path:
    """A folder in BEIR's layout. Each document is random words; its query, 12 words from its beginning or its end."""
    draw = random.Random(seed)
    texts = [draw.choices(WORDS, k=words) for _ in range(documents)]
    (folder / "qrels").mkdir(parents=True)
    corpus = [{"_id": f"d{i}", "title": text[0], "text": " ".join(text[1:])} for i, text in enumerate(texts)]
    queries = [{"_id": f"q{i}", "text": " ".join(text[:12] if i % 2 else text[-12:])} for i, text in enumerate(texts)]
    for name, lines in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    judged = "".join(f"q{i}\td{i}\t1\n" for i in range(documents))
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    return folder


def row_of(
    name: str, values: dict[str, dict[int, Sequence[float] | None]], *, baseline: str = "", length: int | None = 64
) -> Row:
    """A row with a value per text, by measure and length."""
    found = [
        Value(measure, value, at, item)
        for measure, by_length in values.items()
        for at, of_texts in by_length.items()
        for item, value in enumerate(of_texts or ())
    ]
    return Row(name, baseline, length, (Run(f"{name}, {baseline}" if baseline else name, 0, tuple(found)),))


def by_text(row: Row, measure: str, length: int) -> tuple[float, ...] | None:
    """The value of each text, of which the mean is the measure, or the logarithm of a perplexity."""
    found = items(row.runs[0], METRICS[measure], length)
    return None if found is None else shares(*sums(found))
