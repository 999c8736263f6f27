"""Reports on the position tables of a checkpoint: what they are, what they learned, and what is wrong with them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posembed.arguments import checks_arguments
from posembed.checkpoints.axes import OF_BIAS
from posembed.checkpoints.buckets import Bucket, buckets_of
from posembed.checkpoints.choose import companions, why_none
from posembed.checkpoints.find import is_ids_or_mask
from posembed.checkpoints.native.files import tables_of
from posembed.checkpoints.plan import address_of
from posembed.checkpoints.position_tables import Config, Found, FoundTable, PositionTable, Tensors, fields_in
from posembed.checkpoints.sources.configs import config_object
from posembed.checkpoints.sources.model_types import open_model
from posembed.modelfiles.checkpoint import Checkpoint
from posembed.modelfiles.folders import SENTENCE_ENCODER, sentence_class
from posembed.modelfiles.safetensors import AnyTensor, dtype_name, first_rows, tensor_bytes, values_of
from posembed.tables.along_axes import AlongAxis, along_axes, by_distance
from posembed.tables.health import Finding, check_relative, check_table
from posembed.tables.modules import parent
from posembed.tables.probes import FEWEST_ROWS, order_error, position_error
from posembed.tables.similarity import cosine_by_distance, neighbour_cosine, toeplitz_residual
from posembed.tables.spectrum import table_spectrum
from posembed.words import CAUSAL, MASKED, SENTENCES

# A singular value decomposition of more rows takes minutes, and this many show what was learned.
MOST_ROWS = 4096
TOKEN_TABLE = re.compile(r"(word_embeddings?|wte|embed_tokens|token_embeddings?|tokens_embed|shared)\.weight$")
EMBEDDING = re.compile(r"emb|wte|wpe|(^|\.)shared\.weight$")
BUFFER = re.compile(r"final_logits_bias|inv_freq|running_(mean|var)$")
SAMPLED_TOKENS = 8192
COMPARED_ROWS = 256
DISTANCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FEWEST_CELLS = 3  # along axes, which need no probe


@dataclass(frozen=True)
class Learned:
    """Measures of what the position rows learned. A measure is None or () if it is not meaningful.

    rows: the number of measured rows, starting with the first. directions_90: the smallest number of directions that
    hold 90% of the rows' variance. toeplitz: the share of the rows' similarity that their distance does not explain,
    from 0 to 1. position_error: the mean error, in positions, of a linear probe that predicts a row's position.
    order_error: the error rate of a linear probe that predicts which of two rows comes first. along: how alike
    neighbours are along each axis, if any. bias_by_distance: for attention biases, pairs of a distance and the mean
    bias over all heads at that distance.
    """

    rows: int
    effective_rank: float
    directions_90: int
    neighbour_cosine: float | None = None
    cosine_by_distance: tuple[tuple[int, float], ...] = ()
    toeplitz: float | None = None
    position_error: float | None = None
    order_error: float | None = None
    along: tuple[AlongAxis, ...] = ()
    bias_by_distance: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class TableReport:
    """A report on one table: what it is, its share of the model, what it learned, and what is wrong with it.

    values: the table's rows (N, D) in the stored dtype, or the stored tensor if the table is not understood.
    dependents: the keys of other tensors that change with the table. buckets: for a table of distance buckets, the
    distances that read each row.
    """

    table: FoundTable
    values: Tensor
    parameters: int
    share_of_model: float
    share_of_embeddings: float
    dependents: tuple[str, ...]
    learned: Learned | None
    findings: tuple[Finding, ...]
    buckets: tuple[Bucket, ...] = ()

    @property
    def of_biases(self) -> bool:
        """Whether each row holds one bias per attention head, which is added to the attention scores."""
        return bool(self.buckets) or (
            self.relative and bool(OF_BIAS.search(self.table.key)) and not self.table.in_buckets
        )

    @property
    def relative(self) -> bool:
        """Whether each row belongs to a difference or a distance of two positions."""
        table = self.table
        return table.in_buckets or (
            isinstance(table, PositionTable) and any(axis.relative for axis in table.layout.axes)
        )

    def to_dict(self) -> dict[str, Any]:
        table = self.table
        names = ("key", "kind", "found_by", "doubt", "rows", "length", "width", "dtype")
        own = ("parameters", "share_of_model", "share_of_embeddings")
        return {
            **{name: getattr(table, name, None) for name in names},
            "layout": asdict(table.layout) if isinstance(table, PositionTable) else None,
            **{name: getattr(self, name) for name in own},
            "config_field": str(table.field) if table.field and table.field.stated else None,
            "config_value": table.field.value if table.field and table.field.stated else None,
            "dependents": list(self.dependents),
            "learned": None if self.learned is None else asdict(self.learned),
            "findings": [asdict(finding) for finding in self.findings],
            "buckets": [asdict(bucket) for bucket in self.buckets],
        }

    def __repr__(self) -> str:
        table = self.table
        kind = table.kind if isinstance(table, PositionTable) else "not understood"
        lines = [
            f"  {table.key}: {' x '.join(map(str, table.shape))}, {kind}",
            *(f"    ! {each}" for each in self.findings),
        ]
        return "\n".join([*lines, f"    ? {table.doubt}"] if table.doubt and not table.fixed else lines)


HEADS = {"ForMaskedLM": MASKED, "ForCausalLM": CAUSAL, "LMHeadModel": CAUSAL}
"""The model's kind, by the ending of its class name in config.json."""


@dataclass(frozen=True, eq=False, repr=False)
class CheckpointReport:
    """The position tables of a checkpoint.

    model_type: the model type in the config, or None. why_none: the reason why no table was found; empty otherwise.
    kind: "sentence encoders", "causal language models" or "masked language models"; "" for any other.
    """

    source: str
    model_type: str | None
    parameters: int
    tables: tuple[TableReport, ...]
    why_none: str = ""
    kind: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return {**vars(self), "tables": [table.to_dict() for table in self.tables]}

    def __repr__(self) -> str:
        kind = f", {self.model_type}" if self.model_type else ""
        none = f"\nno position table was found: {self.why_none}" if not self.tables else ""
        return "\n".join([f"{self.source}{kind}: {self.parameters:,} parameters{none}", *map(repr, self.tables)])


@checks_arguments
def inspect_checkpoint(source: str | Path, *, model_type: str | None = None) -> CheckpointReport:
    """Reports on every position table of a checkpoint: what it is, what it learned, and what is wrong with it.

    Reads only the headers of the files, the position tables and a sample of the token rows.

    Args:
        source: a folder, a hub name, or one file of weights (``.safetensors``, ``.bin``, ``.pt``).
            A folder that ``torch.distributed.checkpoint`` wrote works too.
        model_type: the type of the model, such as "bert", if neither config.json nor the keys show it.

    Raises:
        CheckpointError: the files cannot be read, or the config disagrees with them.

    Examples:
        >>> from transformers import BertConfig, BertModel
        >>> from posembed import inspect_checkpoint
        >>> sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> BertModel(BertConfig(**sizes, intermediate_size=16)).save_pretrained("my-model")
        >>> [report] = inspect_checkpoint("my-model").tables
        >>> report.table.key, report.table.length
        ('embeddings.position_embeddings.weight', 512)
    """
    checkpoint = open_model(source, model_type)
    tensors, config = checkpoint.tensors, checkpoint.config or {}
    found = tables_of(checkpoint, rebuild=False)
    parameters = parameter_count(tensors)
    reports = tuple(report_on(table, found, tensors, parameters, config) for table in found.tables)
    model_type = config.get("model_type") or config.get("architecture")
    none = "" if reports else why_none(found)
    return CheckpointReport(str(source), model_type, parameters, reports, none, kind_of(checkpoint))


def parameter_count(tensors: Tensors) -> int:
    """Counts the values of a model's parameters: no ids and masks, and of tensors that share memory only one."""
    own = {address_of(tensor) or key: tensor for key, tensor in tensors.items() if not is_buffer(key, tensor)}
    return sum(math.prod(tensor.shape) for tensor in own.values())


def embedding_count(tensors: Tensors) -> int:
    """Counts the values of the tables of tokens and positions. Tables of the same shape and first rows count once."""
    tables = {key: tensor for key, tensor in tensors.items() if EMBEDDING.search(key) and len(tensor.shape) > 1}
    kinds = {
        (tensor.shape, bytes(tensor_bytes(first_rows(tensor, COMPARED_ROWS)))) if len(tensor.shape) == 2 else key: key
        for key, tensor in tables.items()
    }
    return parameter_count({key: tables[key] for key in kinds.values()})


def is_buffer(key: str, tensor: AnyTensor) -> bool:
    shape = tuple(tensor.shape)
    hides = is_ids_or_mask(key, shape) and (len(shape) < 4 or shape[:2] == (1, 1))  # or biases of several heads
    return hides or bool(BUFFER.search(key)) or dtype_name(tensor) in ("I64", "BOOL")


def kind_of(checkpoint: Checkpoint) -> str:
    if sentence_class(checkpoint.root) == SENTENCE_ENCODER:
        return SENTENCES
    config = checkpoint.config or {}
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    if config.get("is_encoder_decoder"):
        return ""
    if name.endswith("WithLMHeadModel"):  # XLM and FlauBERT
        return CAUSAL if config.get("causal") else MASKED
    return next((kind for end, kind in HEADS.items() if name.endswith(end)), "")


def report_on(table: FoundTable, found: Found, tensors: Tensors, of_model: int, config: Config) -> TableReport:
    size = math.prod(table.shape)
    embeddings = embedding_count(tensors)
    values, lengths = values_of(tensors[table.key]), {table.rows}
    if values.is_floating_point() and values.element_size() == 1:  # PyTorch computes little with float8
        values = values.float()
    if isinstance(table, PositionTable) and size:  # YOLOS has tables for each of 0 layers
        values, lengths = table.layout.rows_in(values), {table.rows, table.length}
    dependents = [other.key for other in companions(found, table)]
    if table.field is not None:
        dependents += found.buffers.get(table.field, ())
        dependents += [key for key in found.stale if tensors[key].shape[-1] in lengths]
    shares = size / max(of_model, 1), size / max(embeddings, size)
    buckets = buckets_of(found.model, table)
    report = TableReport(table, values, size, *shares, tuple(dependents), None, (), buckets)
    if not size:
        return report
    findings = (*wrong_ids(table, tensors), *what_is_wrong(report, tensors, config))
    return replace(report, learned=what_it_learned(report), findings=findings)


def what_is_wrong(report: TableReport, tensors: Tensors, config: Config) -> tuple[Finding, ...]:
    table = report.table
    if report.relative:
        return check_relative(report.values)
    if not isinstance(table, PositionTable) or table.kind != "learned":
        return ()
    # The cells of images and sounds are not added to the rows of the tokens.
    of_text = all(axis.name == "coordinate" for axis in table.layout.axes)
    norm = token_norm(tensors, table) if of_text else None
    stated = scales_tokens(config, table.key, tensors)
    scaled = norm and norm * math.sqrt(table.width)
    findings = check_table(report.values, layout=table.layout, token_norm=scaled if stated else norm)
    if stated is None and "model_type" in config and any(each.what == "scale" for each in findings):
        known = config_object(config)  # which imports transformers; config.json leaves out the defaults of its type
        if known is not None and scales_tokens(known.to_dict(), table.key, tensors):
            return check_table(report.values, layout=table.layout, token_norm=scaled)
    return findings


def wrong_ids(table: FoundTable, tensors: Tensors) -> Iterator[Finding]:
    """Yields a finding if the position ids stored beside a table are not 0, 1, 2, ..., as in merged files of Stable
    Diffusion, whose ids were averaged as floats. Each position then reads the row of its id, rounded down."""
    key = f"{parent(parent(table.key))}.position_ids".removeprefix(".")
    ids = values_of(tensors[key]).flatten() if key in tensors else None
    if ids is None or len(ids) != table.rows:
        return
    expected = torch.arange(len(ids), dtype=torch.float64)
    wrong = (ids.double() != expected).nonzero().flatten().tolist()
    if wrong:
        at = wrong[0]
        yield Finding(
            what="wrong ids",
            rows=tuple(wrong),
            figure=f"{key} holds {ids[at].item():g} for position {at}",
            meaning="A model that reads these ids adds the rows of other positions.",
            remedy=f"Replace them by 0 to {len(ids) - 1} as int64, or remove them, since most models make their own.",
        )


def what_it_learned(report: TableReport) -> Learned | None:
    """Measures what the position rows learned. Returns None if the rows are too few or not finite."""
    table = report.table
    if not isinstance(table, PositionTable):
        return None
    layout = table.layout
    cells = layout.split(report.values)[1]
    rows = cells[:MOST_ROWS]
    fewest = FEWEST_CELLS if layout.axes else FEWEST_ROWS
    if len(rows) < fewest or not rows.is_floating_point() or not rows.isfinite().all():
        return None
    spectrum = table_spectrum(rows)
    learned = Learned(len(rows), spectrum.effective_rank, spectrum.directions_for(0.9))
    if layout.axes:  # neighbours in the table may not be neighbours in the image
        finite = cells.isfinite().all()
        biases = by_distance(cells, layout) if report.of_biases and finite else ()
        return replace(learned, along=along_axes(cells, layout) if finite else (), bias_by_distance=biases)
    distances = cosine_by_distance(rows)
    return replace(
        learned,
        neighbour_cosine=neighbour_cosine(rows).median().item(),
        cosine_by_distance=tuple((d, distances[d].item()) for d in DISTANCES if d < len(rows)),
        toeplitz=toeplitz_residual(rows),
        position_error=position_error(rows),
        order_error=order_error(rows),
    )


def scales_tokens(config: Config, key: str, tensors: Tensors) -> bool | None:
    """Returns whether a config says that the tokens beside a table are multiplied by the square root of their width, as
    in mBART; None if it says nothing. A section such as ``decoder`` speaks of the tensors that are named so, if any."""
    said = [(path[:-1], value) for path, value in fields_in(config) if path[-1] == "scale_embedding"]
    for above, value in sorted(said, key=lambda each: -len(each[0])):  # the nearest section decides
        sections = [re.compile(rf"(^|[._]){re.escape(each.partition('_')[0])}").search for each in above]
        if all(each(key) or not any(map(each, tensors)) for each in sections):
            return value is True
    return None


def token_norm(tensors: Tensors, table: FoundTable) -> float | None:
    """Returns the mean norm of a sample of the token table's rows, or None without a token table of the same width."""
    for key, tensor in tensors.items():
        if TOKEN_TABLE.search(key) and len(tensor.shape) == 2 and tensor.shape[1] == table.width:
            norms = first_rows(tensor, SAMPLED_TOKENS).float().norm(dim=1)
            norms = norms[norms > 0]  # a padding token's row is zero
            return norms.mean().item() if len(norms) and norms.isfinite().all() else None
    return None
