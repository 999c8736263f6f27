"""Runs the authors' code of every encoding beside posembed's: the largest difference, and on what input.

    python tools/agreement.py --code FOLDER    # writes benchmarks/results/agreement.md; about a minute

FOLDER holds clones of the authors' repositories, named OWNER+NAME. Their packages are not needed: the functions of a
row are taken out of their file and run with torch alone, and with the few names that agreement_inputs.py and
agreement_scores.py give them. Where no code can run, the row has the formula in float64.
"""

from __future__ import annotations
import __future__

import argparse
import ast
import logging
import math
import platform
import random
import subprocess
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import agreement_inputs as added
import agreement_scores as scores
import torch
from agreement_inputs import LEARNED, Pair
from torch import nn
from torch.nn import functional as F

OUT = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "agreement.md"


@dataclass(frozen=True)
class Row:
    """names: the encodings of ENCODINGS. code: "OWNER/NAME path", a package, or "" for the formula. what: the
    functions that run, or the formula. compare: takes the function that takes them out of their file."""

    names: tuple[str, ...]
    code: str
    what: str
    input: str
    compare: Callable[[Any], Pair]


DAPE, BIPE, YARN = "chuanyang-Zheng/DAPE", "zhenyuhe00/BiPE", "jquesnelle/yarn scaled_rope/Llama"
FLA, VIT = "fla-org/flash-linear-attention fla/ops", "naver-ai/rope-vit models/vit_rope.py"
COMPLEX = "compute_axial_cis, compute_mixed_cis, init_t_xy, reshape_for_broadcast, apply_rotary_emb"
SEQPE = "SequentialPE, SequentialPeBlock, SequentialPeMLP, SequentialPeAttention, _init_seqpe_weights"


def combination_draws(take: Any) -> torch.Tensor:
    """Every three of seven positions, in order, as often as any other."""
    return torch.tensor(list(combinations(range(7), 3)))


ROWS = (
    Row(LEARNED, "transformers", "GPT2Model", "x (2, 64, 32), the table of 64 rows", added.learned),
    Row(("learned-interpolated",), "torch", "F.interpolate(mode='linear')", "64 rows read at length 200, float64",
        partial(added.extended, "learned-interpolated",
                lambda table, take: F.interpolate(table.T[None], size=200, mode="linear")[0].T)),
    Row(("learned-hierarchical",), "bojone/bert4keras bert4keras/layers.py", "PositionEmbedding.call",
        "64 rows read at length 200, float64; torch in place of Keras' backend",
        partial(added.extended, "learned-hierarchical", added.two_digits)),
    Row(("learned-tiled",), "", "row k mod N", "64 rows read at length 200, float64",
        partial(added.extended, "learned-tiled", lambda table, take: table[torch.arange(200) % 64])),
    Row(("learned-random",), "", "row k below N", "64 rows; the rows past them are random",
        partial(added.extended, "learned-random", lambda table, take: table)),
    Row(("learned-shifted",), "butsugiri/shape onmt/modules/embeddings.py", "PositionalEncoding",
        "how often 40,000 draws give each start of 2 tokens in 7 positions; theirs never draw the last of 8 rows",
        partial(added.drawn, "learned-shifted", 2, added.shape_draws)),
    Row(("learned-randomized",), "", "each 3 of 7 positions as often as any other",
        "how often 40,000 draws give each; the authors' choice(replace=False) needs JAX",
        partial(added.drawn, "learned-randomized", 3, combination_draws)),
    Row(("learned-skipped",), "dwzhu-pku/PoSE src/train_gptj.py", "train_preprocess_function_pose",
        "how often 40,000 draws give each 3 of 7 positions; in longer texts their first part ends in the first half of "
        "the tokens, posembed's anywhere",
        partial(added.drawn, "learned-skipped", 3, added.pose_draws)),
    Row(("learned-averaged",), "", "means of the diagonals of P Wq (P Wk)^T / sqrt(d); numpy.polyfit past N",
        "32 rows, length 100, float64", scores.averaged),
    Row(("rolling",), "", "(x + P[i mod w]) Wq and Wk, a window of w", "a layer, x (2, 100, 32), w = 16, float64",
        scores.rolling),
    Row(("learned-concat",), "", "[x, row]", "x (2, 64, 32)", added.concatenated),
    Row(("none",), "torch", "F.scaled_dot_product_attention(is_causal=True)", "a layer, x (2, 100, 32), float64",
        scores.none),
    Row(("sinusoidal",), "transformers", "xlm.create_sinusoidal_embeddings", "positions 0 to 1,999, width 32",
        added.sinusoidal),
    Row(("learned-1d", "learned-2d"), "timm", "VisionTransformer._pos_embed, resample_abs_pos_embed",
        "a 4 x 6 grid and [CLS], x (2, 25, 32); learned-2d also on 6 x 9", added.timm_grid),
    Row(("factorized",), "timm", "NaFlexEmbeds._apply_factorized_pos_embed", "a 4 x 6 grid, x (2, 24, 32)",
        added.factorized),
    Row(("sinusoidal-2d",), "facebookresearch/mae util/pos_embed.py",
        "get_2d_sincos_pos_embed, get_2d_sincos_pos_embed_from_grid, get_1d_sincos_pos_embed_from_grid",
        "a 14 x 14 grid, width 32; their sines first; np.float is float", added.mae),
    Row(("rope",), "transformers", "LlamaRotaryEmbedding, apply_rotary_pos_emb", "q and k (2, 4, 512, 64)", added.rope),
    Row(("p-rope",), "transformers", "ROPE_INIT_FUNCTIONS['proportional']",
        "q and k (2, 4, 512, 64), p = .75; their frequencies, turned in float64",
        partial(added.fewer_turns, "p-rope", added.proportional)),
    Row(("hope",), "", "RoPE with theta = 0 below 2 pi / L", "q and k (2, 4, 512, 64), L = 512",
        partial(added.fewer_turns, "hope", added.high_frequencies)),
    Row(("rope-linear", "rope-ntk", "rope-yarn", "rope-llama3", "rope-longrope"), "transformers",
        "ROPE_INIT_FUNCTIONS: linear, dynamic, yarn, llama3, longrope",
        "frequencies and attention factors, trained at 512, a text of 2,048, d = 64", added.peers_scalings),
    Row(("rope-linear",), f"{YARN}DynamicScaledRotaryEmbedding.py", "LlamaDynamicScaledRotaryEmbedding",
        "cosines and sines, trained at 512, a text of 2,048, d = 64",
        partial(added.scaled, "rope-linear", added.dynamic("LlamaDynamicScaledRotaryEmbedding"))),
    Row(("rope-ntk",), f"{YARN}DynamicScaledRotaryEmbedding.py", "LlamaDynamicScaledRotaryEmbedding",
        "the same, ntk=1",
        partial(added.scaled, "rope-ntk", added.dynamic("LlamaDynamicScaledRotaryEmbedding", ntk=1))),
    Row(("rope-yarn",), f"{YARN}DynamicYaRNScaledRotaryEmbedding.py",
        "LlamaDynamicYaRNScaledRotaryEmbedding, find_correction_dim, find_correction_range, linear_ramp_mask, "
        "get_mscale",
        "the same, times the attention factor",
        partial(added.scaled, "rope-yarn",
                added.dynamic("LlamaDynamicYaRNScaledRotaryEmbedding", original_max_position_embeddings=512))),
    Row(("rope-llama3",), "meta-llama/llama-models models/llama3/model.py", "precompute_freqs_cis, apply_scaling",
        "the first 2,048 positions of a text of 65,536, trained at 8,192, d = 64",
        partial(added.scaled, "rope-llama3", added.llama3, trained=8192)),
    Row(("rope-longrope",), "microsoft/LongRoPE rope/longrope.py", "LongRoPEScaledRotaryEmbedding",
        "trained at 512, a text of 2,048, d = 64, factors of 1 to 4.9",
        partial(added.scaled, "rope-longrope", added.longrope)),
    Row(("rope-axial",), VIT, COMPLEX, "a 5 x 7 grid and [CLS], q and k (2, 4, 36, 8)",
        partial(scores.rope_vit, "rope-axial")),
    Row(("rope-mixed",), VIT, COMPLEX, "a 5 x 7 grid and [CLS], q and k (2, 4, 36, 8)",
        partial(scores.rope_vit, "rope-mixed")),
    Row(("pope",), "x-transformers", "PolarEmbedding, apply_polar_pos_emb", "q and k (2, 4, 512, 8)", scores.pope),
    Row(("alibi",), "ofirpress/attention_with_linear_biases fairseq/models/transformer.py", "get_slopes",
        "4, 8 and 12 heads, length 512; theirs less each query's own number, which softmax ignores", scores.alibi),
    Row(("t5",), "transformers", "T5Attention.compute_bias", "a decoder and an encoder, length 300", scores.t5),
    Row(("kerple-log",), "chijames/KERPLE megatron/mpu/layers.py", "ParallelKerpleLog", "4 heads, length 300",
        partial(scores.kerple, "kerple-log", "ParallelKerpleLog")),
    Row(("kerple-power",), "chijames/KERPLE megatron/mpu/layers.py", "ParallelKerplePower", "4 heads, length 300",
        partial(scores.kerple, "kerple-power", "ParallelKerplePower")),
    Row(("fire",), f"{DAPE} megatron/model/positional_embeddings.py", "FIRE",
        "trained at 128, length 300; DAPE's authors' code of it", scores.fire),
    Row(("tupe", "tupe-r"), "guolinke/TUPE fairseq/modules/transformer_sentence_encoder.py",
        "TransformerSentenceEncoder, relative_position_bucket",
        "the biases of 200 positions: all with reset_first=True; without, from the second on", scores.tupe),
    Row(("bipe-rope",), f"{BIPE} my_modeling_llama_bipe_rope.py",
        "get_bilevel_ids, LlamaRotaryEmbedding, rotate_half, apply_rotary_pos_emb",
        "2 x 64 tokens with separators: ids, rows, q and k (2, 4, 64, 8)", partial(scores.bipe, "bipe-rope")),
    Row(("bipe-alibi",), f"{BIPE} my_modeling_llama_bipe_alibi.py", "get_bilevel_ids, _init_alibi_mul96",
        "the same: ids, rows, bias",
        partial(scores.bipe, "bipe-alibi")),
    Row(("seqpe",), "ghrua/seqpe image_seqpe/models/sequential_pe.py", SEQPE,
        "positions 0, 7, 42, 999 and 19,999, float64", scores.seqpe),
    Row(("fox",), f"{FLA}/forgetting_attn/naive.py", "naive_forgetting_attn",
        "a layer, x (2, 100, 32); the authors' own code (zhixuan-lin/forgetting-transformer) is a Triton kernel",
        scores.fox),
    Row(("cable",), "axiomlab/Cable src/Cable.py", "CausalSelfAttention",
        "a layer, x (2, 100, 32); with 1 / sqrt(d), which this file leaves out", scores.cable),
    Row(("cope",), "x-transformers", "CoPE", "a layer, x (2, 100, 32), float64; the listing of the paper's appendix",
        scores.cope),
    Row(("dape",), f"{DAPE} DAPE.py", "ParallelKerpleLog_DAPE", "a layer, x (2, 100, 32), float64", scores.dape),
    Row(("path",), f"{FLA}/path_attn/naive.py", "naive_path_attn",
        "a layer, x (2, 100, 32), the convolution of path_attn.py by torch; two chunks", scores.path),
    Row(("lookhere",), "GreenCUBIC/lookhere lookhere.py", "create_lh_layer_tensor, get_slopes, get_none_slopes",
        "12 heads, a 5 x 7 grid, cones of 90, 180 and 45 degrees", scores.lookhere),
)  # fmt: skip


def taker(row: Row, folder: Path) -> Callable[..., SimpleNamespace]:
    """Returns what takes a row's functions, or a file's beside it, out of their file; nothing else of it runs."""

    def take(beside: str = "", names: str = row.what, **given: Any) -> SimpleNamespace:
        repository, _, path = row.code.partition(" ")
        file = folder / repository.replace("/", "+") / path
        file = file.with_name(beside) if beside else file
        tree, space = (
            ast.parse(file.read_text(encoding="utf-8")),
            {"torch": torch, "nn": nn, "F": F, "math": math, **given},
        )
        for name in names.split(", "):
            node: Any = tree
            for part in name.split("."):
                kinds = (ast.FunctionDef, ast.ClassDef)
                node = next(each for each in ast.walk(node) if isinstance(each, kinds) and each.name == part)
            exec(compile(ast.Module([node], []), str(file), "exec", __future__.annotations.compiler_flag), space)
        return SimpleNamespace(**space)

    return take


def flat(result: Any) -> torch.Tensor:
    parts = result if isinstance(result, list) else [result]
    return torch.cat([part.detach().double().flatten() for part in parts])


def line(row: Row, folder: Path) -> str:
    """Runs one row and returns its line of the table."""
    torch.manual_seed(0)
    random.seed(0)
    ours, theirs = (flat(side) for side in row.compare(taker(row, folder)))
    assert ours.shape == theirs.shape, row
    differ = ours != theirs  # two times -inf is the same
    difference = (ours - theirs)[differ].abs().max().item() if differ.any() else 0.0
    largest = theirs[theirs.isfinite()].abs().max().item()
    repository, _, path = row.code.partition(" ")
    if not row.code:
        source = "the formula in float64"
    elif not path:
        source = f"{row.code} {version(row.code)}"
    else:
        where = folder / repository.replace("/", "+")
        run = ("git", "-C", str(where), "rev-parse", "--short=7", "HEAD")
        commit = subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
        source = f"[{repository}](https://github.com/{repository}/blob/{commit}/{path}) {commit}: `{path}`"
    what = f": {row.what}" if not row.code else f": `{row.what}`"
    shown = f"{difference:.1e}" if difference else "0"
    return f"| {', '.join(row.names)} | {source}{what} | {row.input} | {shown} | {largest:.2g} |"


def page(lines: list[str]) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "timm", "x-transformers"))
    text = f"""# Every encoding beside its authors' code

    python tools/agreement.py --code FOLDER

Python {platform.python_version()}, {versions}, on a CPU. Both sides
have the same random parameters and input, in float32 unless a row says so. The difference is the largest of all
numbers, whose own size the last column gives: angles are float32, so that rotations differ more at later positions. Of
a repository's file, the named functions ran alone, without what the file imports. "The formula" means that no code of
the authors runs here, or that the encoding is posembed's own.

| encoding | compared with | input | largest difference | largest number |
|---|---|---|---|---|
"""
    return text + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--code", type=Path, required=True, help="the folder of clones, OWNER+NAME")
    parser.add_argument("--only", help="the rows of one encoding, printed and not written")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    lines = []
    for row in ROWS:
        if given.only in (None, *row.names):
            lines.append(line(row, given.code))
            print(lines[-1], flush=True)
    if given.only is None:
        OUT.write_text(page(lines), encoding="utf-8")


if __name__ == "__main__":
    with torch.no_grad():
        main()
