"""Writes the tables of docs/who-uses-what.md: how each known model finds order, with what table, up to what length.

    python tools/who_uses_what.py

The figures are those of the model that transformers builds, without memory, from the default config of its class.
Where the published model differs, its row gives the fields that differ, and a link to the source.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, logging

from posembed.checkpoints.sources.configs import build_on_meta
from posembed.tables.modules import is_table_name

PAGE = Path(__file__).parents[1] / "docs" / "who-uses-what.md"
START, END = "<!-- start of what tools/who_uses_what.py writes -->\n", "<!-- end -->"
HUB, ARXIV, GITHUB = "https://huggingface.co/", "https://arxiv.org/abs/", "https://github.com/"
SOURCES = {
    "arxiv": "paper",
    "config.json": "config",
    "issues": "issue",
    "discussions": "answer",
    "/blog/": "blog",
    "github.com": "code",
}
WINDOWS = {
    "attention_chunk_size": "chunks of",
    "local_attention": "window",
    "attention_window": "window",
    "sliding_window": "window",
}
"""The fields of a config that give how many tokens a token attends to in some layers."""
HEADING = ("model", "year", "encoding", "table", "parameters", "limit", "figures from")
BY = "\N{NO-BREAK SPACE}x\N{NO-BREAK SPACE}"


@dataclass(frozen=True, kw_only=True)
class Model:
    """One row.

    kind: its config in transformers; "" for a model that transformers does not have.
    fields: the fields that the published model sets differently from the defaults of this config, as far as they
        matter here. also: those without which the class would refuse them.
    source: the page that says so.
    tables: the ends of the names of its tables. None means those named like a table, if the encoding is learned.
    special: the rows of its tables that are no positions: reserved, or of special tokens.
    length: the length it was made for, or the config field of it; None if it has none.
    ends: whether positions end there. None: as its learned rows do. Others keep sinusoids, angles or biases in a table
        that ends too, or interpolate learned rows, so that they do not end.
    """

    name: str
    year: int
    encoding: str
    kind: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    also: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    tables: str | tuple[str, ...] | None = None
    shape: tuple[int, ...] = ()
    special: int = 0
    length: int | str | None = "max_position_embeddings"
    ends: bool | None = None

    @cached_property
    def config(self) -> Any:
        return CONFIG_MAPPING[self.kind](**self.fields, **self.also)

    @property
    def learned(self) -> bool:
        return self.encoding.startswith(LEARNED)

    @cached_property
    def shapes(self) -> Counter[tuple[int, ...]]:
        """The shape of each of its tables, and how many tables have this shape."""
        if self.shape or not (self.learned or self.tables):
            return Counter([self.shape] if self.shape else [])
        parameters = build_on_meta(self.config).named_parameters()
        named = [p for name, p in parameters if (name.endswith(self.tables) if self.tables else is_table_name(name))]
        return Counter(tuple(side for side in p.shape if side > 1) for p in named)

    @property
    def made_for(self) -> int | None:
        """The number of positions of its table, or the length that it was made for if it has none."""
        if self.learned:
            *rows, _ = next(iter(self.shapes))
            return math.prod(rows) - self.special
        return getattr(self.config, self.length) if isinstance(self.length, str) else self.length

    @property
    def figures_from(self) -> str:
        config = [f"`{CONFIG_MAPPING[self.kind].__name__}`"] if self.kind else []
        word = next((word for part, word in SOURCES.items() if part in self.source), "")
        return ", ".join([*config, *([f"[{word}]({self.source})"] if self.source else [])])

    @property
    def row(self) -> tuple[str, ...]:
        shapes = self.shapes.items()
        tables = [(f"{n} of " if n > 1 else "") + BY.join(f"{side:,}" for side in shape) for shape, n in shapes]
        parameters = sum(math.prod(shape) * n for shape, n in shapes)
        length = "" if self.made_for is None else f"{self.made_for:,}"
        ends = self.learned if self.ends is None else self.ends
        limit = length if ends else f"none ({length})" if length else "none"
        encoding = self.encoding + (window(self.config) if self.kind else "")
        size = (", ".join(tables), f"{parameters:,}")
        return (self.name, str(self.year), encoding, *size, limit, self.figures_from)


LEARNED, ROPE, ALIBI, SINUSOIDS = "learned", "RoPE", "ALiBi", "sinusoids"
BIAS = "bias by distance"

MODELS: Mapping[str, tuple[Model, ...]] = {
    "Text encoders": (
        Model(name="BERT-base", year=2018, encoding=LEARNED, kind="bert"),
        Model(
            name="BERT-large", year=2018, encoding=LEARNED, kind="bert",
            fields={"hidden_size": 1024}, also={"num_attention_heads": 16},
            source=f"{HUB}google-bert/bert-large-uncased/blob/main/config.json",
        ),
        Model(
            name="XLNet-large", year=2019, encoding="relative sinusoids", kind="xlnet", length=None,
        ),
        Model(
            name="RoBERTa-base", year=2019, encoding=LEARNED, kind="roberta", special=2,
            fields={"max_position_embeddings": 514}, source=f"{GITHUB}huggingface/transformers/issues/14243",
        ),
        Model(name="ALBERT-xxlarge", year=2019, encoding=LEARNED, kind="albert"),
        Model(name="DistilBERT", year=2019, encoding=LEARNED, kind="distilbert"),
        Model(name="ELECTRA-small", year=2020, encoding=LEARNED, kind="electra"),
        Model(
            name="Longformer-base", year=2020, encoding=LEARNED, kind="longformer", special=2,
            fields={"max_position_embeddings": 4098},
            source=f"{GITHUB}allenai/longformer/blob/master/scripts/convert_model_to_long.py",
        ),
        Model(name="BigBird-base", year=2020, encoding=LEARNED, kind="big_bird"),
        Model(
            name="DeBERTa-v3-base", year=2021, encoding="relative rows", kind="deberta-v2",
            fields={"hidden_size": 768, "position_buckets": 256},
            also={"num_attention_heads": 12, "relative_attention": True, "position_biased_input": False},
            source=f"{HUB}microsoft/deberta-v3-base/blob/main/config.json", tables="rel_embeddings.weight",
        ),
        Model(name="ModernBERT-base", year=2024, encoding=ROPE, kind="modernbert"),
    ),
    "Text decoders": (
        Model(name="GPT-1", year=2018, encoding=LEARNED, kind="openai-gpt"),
        Model(name="GPT-2", year=2019, encoding=LEARNED, kind="gpt2"),
        Model(
            name="GPT-2 XL", year=2019, encoding=LEARNED, kind="gpt2", fields={"n_embd": 1600}, also={"n_head": 25},
            source=f"{HUB}openai-community/gpt2-xl/blob/main/config.json",
        ),
        Model(name="GPT-3 175B", year=2020, encoding=LEARNED, shape=(2048, 12288), source=f"{ARXIV}2005.14165"),
        Model(name="GPT-Neo 1.3B", year=2021, encoding=LEARNED, kind="gpt_neo"),
        Model(name="GPT-J 6B", year=2021, encoding=ROPE, kind="gptj", ends=True),
        Model(name="GPT-NeoX 20B", year=2022, encoding=ROPE, kind="gpt_neox"),
        Model(name="OPT-125M", year=2022, encoding=LEARNED, kind="opt", special=2),
        Model(
            name="OPT-175B", year=2022, encoding=LEARNED, kind="opt", special=2,
            fields={"hidden_size": 12288}, also={"num_attention_heads": 96},
            source=f"{GITHUB}facebookresearch/metaseq/blob/main/metaseq/launcher/opt_job_constants.py",
        ),
        Model(
            name="BLOOM", year=2022, encoding=ALIBI, kind="bloom", length=2048,
            source=f"{HUB}bigscience/bloom/discussions/236",
        ),
        Model(name="MPT", year=2023, encoding=ALIBI, kind="mpt", length="max_seq_len", ends=True),
        Model(name="Falcon-7B", year=2023, encoding=ROPE, kind="falcon"),
        Model(name="Llama 7B", year=2023, encoding=ROPE, kind="llama"),
        Model(
            name="Llama 2", year=2023, encoding=ROPE, kind="llama", fields={"max_position_embeddings": 4096},
            source=f"{ARXIV}2307.09288",
        ),
        Model(
            name="Mistral 7B", year=2023, encoding=ROPE, kind="mistral", length=8192,
            source=f"{ARXIV}2310.06825",
        ),
        Model(name="Phi-1.5", year=2023, encoding=ROPE, kind="phi"),
        Model(name="Gemma 7B", year=2024, encoding=ROPE, kind="gemma"),
        Model(
            name="Phi-3-mini", year=2024, encoding=ROPE, kind="phi3", fields={"sliding_window": 2047},
            source=f"{HUB}microsoft/Phi-3-mini-4k-instruct/blob/main/config.json",
        ),
        Model(
            name="Llama 3", year=2024, encoding=ROPE, kind="llama", fields={"max_position_embeddings": 8192},
            source=f"{ARXIV}2407.21783",
        ),
        Model(
            name="Llama 3.1", year=2024, encoding="RoPE, scaled", kind="llama",
            fields={"max_position_embeddings": 131072}, source=f"{ARXIV}2407.21783",
        ),
        Model(name="Qwen2", year=2024, encoding=ROPE, kind="qwen2"),
        Model(name="Gemma 2", year=2024, encoding=ROPE, kind="gemma2"),
        Model(
            name="DeepSeek-V3", year=2024, encoding="RoPE, scaled (YaRN)", kind="deepseek_v3",
            fields={"max_position_embeddings": 163840},
            source=f"{HUB}deepseek-ai/DeepSeek-V3/blob/main/config.json",
        ),
        Model(
            name="Gemma 3 4B", year=2025, encoding=ROPE, kind="gemma3_text", fields={"sliding_window": 1024},
            source=f"{ARXIV}2503.19786",
        ),
        Model(
            name="Llama 4 Scout", year=2025, encoding="RoPE in 3 of 4 layers",
            kind="llama4_text", length=10_000_000, source=f"{HUB}blog/llama4-release",
        ),
        Model(name="Qwen3", year=2025, encoding=ROPE, kind="qwen3"),
        Model(
            name="SmolLM3", year=2025, encoding="RoPE in 3 of 4 layers", kind="smollm3",
            fields={"max_position_embeddings": 65536}, source=f"{HUB}HuggingFaceTB/SmolLM3-3B/blob/main/config.json",
        ),
        Model(name="gpt-oss", year=2025, encoding="RoPE, scaled (YaRN)", kind="gpt_oss"),
    ),
    "Encoder-decoders for text": (
        Model(
            name="Transformer", year=2017, encoding=SINUSOIDS, length=None, source=f"{ARXIV}1706.03762",
        ),
        Model(name="BART-large", year=2019, encoding=LEARNED, kind="bart", special=2),
        Model(
            name="T5-small", year=2019, encoding=BIAS, kind="t5", tables="relative_attention_bias.weight", length=512,
            source=f"{GITHUB}google-research/text-to-text-transfer-transformer/blob/main/t5/models/gin/sequence_lengths/"
            "default.gin",
        ),
        Model(name="Pegasus-large", year=2019, encoding=SINUSOIDS, kind="pegasus", ends=True),
        Model(name="M2M-100", year=2020, encoding=SINUSOIDS, kind="m2m_100"),
    ),
    "Images": (
        Model(name="ViT-B/16", year=2020, encoding=LEARNED, kind="vit", special=1),
        Model(name="DeiT-B/16", year=2020, encoding=LEARNED, kind="deit", special=2),
        Model(
            name="CLIP ViT-B/32, images", year=2021, encoding=LEARNED, kind="clip", special=1,
            tables="vision_model.embeddings.position_embedding.weight",
        ),
        Model(
            name="CLIP ViT-B/32, texts", year=2021, encoding=LEARNED, kind="clip",
            tables="text_model.embeddings.position_embedding.weight",
        ),
        Model(
            name="Swin-T", year=2021, encoding=BIAS, kind="swin", tables="relative_position_bias_table", length=None,
        ),
        Model(
            name="BEiT-B/16", year=2021, encoding=BIAS, kind="beit", fields={"use_relative_position_bias": True},
            source=f"{HUB}microsoft/beit-base-patch16-224-pt22k-ft22k/blob/main/config.json",
            tables="relative_position_bias_table", length=196,
        ),
        Model(name="MAE ViT-B/16", year=2021, encoding=SINUSOIDS, kind="vit_mae", length=196, ends=True),
        Model(name="SAM ViT-B/16", year=2023, encoding="learned, and relative rows",
              kind="sam_vision_model", tables=("pos_embed", "rel_pos_h", "rel_pos_w")),
        Model(
            name="DINOv2 ViT-B/14", year=2023, encoding=LEARNED, kind="dinov2", special=1, fields={"image_size": 518},
            ends=False,
            source=f"{HUB}facebook/dinov2-base/blob/main/config.json",
        ),
        Model(
            name="SigLIP-B/16, images", year=2023, encoding=LEARNED, kind="siglip",
            tables="vision_model.embeddings.position_embedding.weight",
        ),
        Model(
            name="SigLIP-B/16, texts", year=2023, encoding=LEARNED, kind="siglip",
            tables="text_model.embeddings.position_embedding.weight",
        ),
        Model(name="DINOv3 ViT-S/16", year=2025, encoding="RoPE, two axes", kind="dinov3_vit", length=None),
    ),
    "Sound": (
        Model(
            name="wav2vec 2.0 base", year=2020, encoding="convolution", kind="wav2vec2", length=None,
            tables="pos_conv_embed.conv.parametrizations.weight.original1",
        ),
        Model(name="AST", year=2021, encoding=LEARNED, kind="audio-spectrogram-transformer", special=2),
        Model(
            name="Whisper-tiny, sound", year=2022, encoding=SINUSOIDS, kind="whisper", length="max_source_positions",
            ends=True,
        ),
        Model(
            name="Whisper-tiny, text", year=2022, encoding=LEARNED, kind="whisper",
            tables="decoder.embed_positions.weight",
        ),
        Model(
            name="Whisper-large, text", year=2022, encoding=LEARNED, kind="whisper",
            fields={"d_model": 1280}, also={"encoder_attention_heads": 20, "decoder_attention_heads": 20},
            source=f"{ARXIV}2212.04356", tables="decoder.embed_positions.weight",
        ),
    ),
}  # fmt: skip


def window(config: Any) -> str:
    """Returns ", window 4,096 in 1 of 2 layers" if tokens attend only to near tokens in these layers, otherwise ""."""
    found = [(word, getattr(config, name)) for name, word in WINDOWS.items() if getattr(config, name, None)]
    layers = getattr(config, "layer_types", None) or ["near"]
    if hasattr(config, "attention_layers"):  # GPT-Neo
        found, layers = [("window", config.window_size)], config.attention_layers
    if not found:
        return ""
    period = next(n for n in range(1, len(layers) + 1) if layers == (layers[:n] * len(layers))[: len(layers)])
    some = sum(layer not in ("full_attention", "global") for layer in layers[:period])
    word, size = found[0]
    return f", {word} {size:,}" + (f" in {some} of {period} layers" if some < period else "")


def kind_of(model: Model) -> str:
    """The column of the count by year: the first word of the encoding that has a column."""
    words = {"learned": "a learned table", "RoPE": "RoPE", "ALiBi": "ALiBi", "sinusoids": "sinusoids"}
    return next((column for word, column in words.items() if model.encoding.startswith(word)), "something else")


def counts() -> list[tuple[str, ...]]:
    """How many of the models for text use which encoding, by year of publication."""
    texts = [model for group, models in MODELS.items() if group.startswith(("Text", "Enc")) for model in models]
    spans = {"2017-2019": range(2017, 2020), "2020-2022": range(2020, 2023), "2023-2025": range(2023, 2026)}
    columns = ("a learned table", "sinusoids", "RoPE", "ALiBi", "something else")
    found = {span: Counter(kind_of(model) for model in texts if model.year in years) for span, years in spans.items()}
    return [("", *columns), *((span, *(str(kinds[column]) for column in columns)) for span, kinds in found.items())]


def markdown(rows: list[tuple[str, ...]]) -> Iterator[str]:
    heading, *others = rows
    yield f"| {' | '.join(heading)} |"
    yield "|---" * len(heading) + "|"
    for row in others:
        yield f"| {' | '.join(row)} |"
    yield ""


def lines() -> Iterator[str]:
    yield from ("## Models for text, by year", "", *markdown(counts()))
    for group, models in MODELS.items():
        yield from (f"## {group}", "", *markdown([HEADING, *(model.row for model in models)]))


def written(page: str) -> str:
    """Returns the page with new tables between its two marks."""
    before, rest = page.split(START)
    return before + START + "\n" + "\n".join(lines()) + END + rest.split(END)[1]


if __name__ == "__main__":
    logging.set_verbosity_error()
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
