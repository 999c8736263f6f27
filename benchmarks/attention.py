"""Claim: a layer takes at most 1.03 times its fastest peer, and a step with the cache at most 1.1 times GPT-2's.

    pip install --no-deps --requirement benchmarks/requirements.txt
    python benchmarks/attention.py
    python benchmarks/attention.py --batch 2 --length 64 --width 96 --layers 2 --prompt 16 --rounds 3    # to try it

There are three measurements. In each of them all contestants take turns; the results are medians with their 95 %
intervals:

1. One layer forward, in eval mode and without gradients; there, torch's layer has its own fast path.
2. A training step of one layer: forward, backward, AdamW.
3. Decoding one token after a prompt with a whole model of 12 layers: ours with a cache, and transformers' GPT-2.

All layers have width D, heads of width 64, a feed-forward network of width 4 D with GELU, no dropout, and attention by
scaled_dot_product_attention where the peer offers it. Each peer is run as its library builds it, with its own biases,
its own GELU and its own placement of the norms. A position encoding that is added to the input is added in the measured
call.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import pages
import torch
import x_transformers
from torch import Tensor, nn
from transformers import BertConfig, DynamicCache, GPT2Config, GPT2Model
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from posembed.lab.cost.instruments import ratio, take_turns
from posembed.nn import Decoder, DecoderLayer, EncoderLayer
from posembed.report.words import interval
from posembed.statistics import Estimate, estimate_median
from posembed.words import milliseconds

LAYER_LIMIT, TOKEN_LIMIT = 1.03, 1.1
OURS = "posembed"
HEAD_DIM = 64
PACKAGES = ("transformers", "x-transformers")

Key = tuple[str, str, str]
"""("encoder" or "decoder", the encoding, the library)."""


class WithRows(nn.Module):
    """A peer's layer after a position table, as in the peer's model."""

    def __init__(self, layer: nn.Module, length: int, width: int) -> None:
        super().__init__()
        self.layer, self.rows = layer, nn.Embedding(length, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + self.rows(torch.arange(x.size(1))))


class Called(nn.Module):
    """A layer with its own calling convention."""

    def __init__(self, layer: nn.Module, call: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x: Tensor) -> Tensor:
        y = self.call(self.layer, x)
        return y if isinstance(y, Tensor) else y[0]


def ours(length: int, width: int) -> dict[Key, nn.Module]:
    heads = width // HEAD_DIM
    found: dict[Key, nn.Module] = {}
    for name in ("none", "learned", "rope", "alibi", "t5", "pope"):
        max_len = length if name == "learned" else None
        found["encoder", name, OURS] = EncoderLayer(dim=width, heads=heads, encoding=name, max_len=max_len)
        found["decoder", name, OURS] = DecoderLayer(dim=width, heads=heads, encoding=name, max_len=max_len)
    found["encoder", "none", f"{OURS}, post-norm"] = EncoderLayer(dim=width, heads=heads, encoding="none", norm="post")
    return found


def peers(length: int, width: int) -> dict[Key, nn.Module]:
    heads = width // HEAD_DIM
    found: dict[Key, nn.Module] = {}
    mask = nn.Transformer.generate_square_subsequent_mask(length)
    for norm_first, norm in ((True, "pre"), (False, "post")):
        torch_layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm_first
        )
        found["encoder", "none", f"torch, {norm}-norm"] = torch_layer
    found["decoder", "none", "torch, pre-norm"] = Called(
        nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        ),
        lambda layer, x: layer(x, src_mask=mask, is_causal=True),
    )
    bert = BertConfig(
        hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, attn_implementation="sdpa",
    )  # fmt: skip
    found["encoder", "none", "transformers, BERT"] = Called(BertLayer(bert), lambda layer, x: layer(x))
    gpt2 = gpt2_config(length, width, layers=1)
    found["decoder", "none", "transformers, GPT-2"] = Called(GPT2Block(gpt2), lambda layer, x: layer(x))
    for kind, attention_layers in (("encoder", x_transformers.Encoder), ("decoder", x_transformers.Decoder)):
        options: dict[str, dict[str, Any]] = {
            "none": {"attn_flash": True},
            "rope": {"attn_flash": True, "rotary_pos_emb": True},
            "alibi": {"attn_flash": True, "alibi_pos_bias": True},
            "t5": {"rel_pos_bias": True},  # it has no flash with this bias
            "pope": {"attn_flash": True, "polar_pos_emb": True},
        }
        for name, chosen in options.items():
            found[kind, name, "x-transformers"] = attention_layers(
                dim=width, depth=1, heads=heads, attn_dim_head=HEAD_DIM, **chosen
            )
        for name in [key for key in found if key[:2] == (kind, "none")]:
            found[kind, "learned", name[2]] = WithRows(found[name], length, width)
    return found


def gpt2_config(length: int, width: int, layers: int) -> GPT2Config:
    config = GPT2Config(
        n_embd=width, n_head=width // HEAD_DIM, n_layer=layers, n_positions=length, attn_pdrop=0.0, resid_pdrop=0.0,
        embd_pdrop=0.0, vocab_size=8, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    return config


class TrainingStep:
    """Forward, backward and AdamW of one layer."""

    def __init__(self, layer: nn.Module, x: Tensor) -> None:
        self.layer, self.x = layer, x.clone().requires_grad_()
        self.optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-6, fused=True)

    def __call__(self) -> None:
        self.layer.train()
        self.layer(self.x).backward(self.x.detach())
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.x.grad = None


def forward_of(layer: nn.Module, x: Tensor) -> Callable[[], None]:
    @torch.no_grad()
    def step() -> None:
        layer.eval()(x)

    return step


def timed(layers: dict[Key, nn.Module], step: Callable[[nn.Module, Tensor], Any], x: Tensor, rounds: int) -> dict:
    """Returns the median seconds of each layer. Layers of the same kind with the same encoding take turns."""
    times: dict[Key, Estimate] = {}
    for group in dict.fromkeys(key[:2] for key in layers):
        members = {key: step(layer, x) for key, layer in layers.items() if key[:2] == group}
        found = take_turns({key[2]: member for key, member in members.items()}, seconds=0.0, fewest=rounds)
        times |= {key: found[key[2]] for key in members}
        print(f"{group[0]} {group[1]}: {', '.join(f'{name} {e.value * 1e3:.1f} ms' for name, e in found.items())}")
    return times


class OurSteps:
    """Decodes the same tokens after the same prompt in each round."""

    def __init__(self, prompt: Tensor, tokens: Tensor, width: int, layers: int, encoding: str) -> None:
        room = prompt.size(1) + tokens.size(1)
        self.model = Decoder(dim=width, heads=width // HEAD_DIM, layers=layers, encoding=encoding,
                             max_len=room if encoding == "learned" else None).eval()  # fmt: skip
        self.tokens = tokens
        self.cache = self.model.new_cache(len(prompt), room)
        self.model(prompt, cache=self.cache)
        self.read = (self.cache.length, self.cache.position_ids)

    def __call__(self) -> None:
        self.cache.length, self.cache.position_ids = self.read
        for i in range(self.tokens.size(1)):
            self.model(self.tokens[:, i : i + 1], cache=self.cache)


class StepsOfGPT2:
    def __init__(self, prompt: Tensor, tokens: Tensor, width: int, layers: int) -> None:
        self.model = GPT2Model(gpt2_config(prompt.size(1) + tokens.size(1), width, layers)).eval()
        self.tokens, self.read = tokens, prompt.size(1)
        self.cache = DynamicCache()
        self.model(inputs_embeds=prompt, past_key_values=self.cache)

    def __call__(self) -> None:
        if self.cache.get_seq_length() > self.read:
            self.cache.crop(self.read - self.cache.get_seq_length())
        for i in range(self.tokens.size(1)):
            self.model(inputs_embeds=self.tokens[:, i : i + 1], past_key_values=self.cache, use_cache=True)


@torch.no_grad()
def decoding(batch: int, prompt: int, tokens: int, width: int, layers: int, rounds: int) -> dict[Key, Estimate]:
    """Returns the median seconds per token."""
    x = torch.randn(batch, prompt + tokens, width)
    steps: dict[str, Callable[[], None]] = {
        "transformers, GPT-2": StepsOfGPT2(x[:, :prompt], x[:, prompt:], width, layers)
    }
    steps |= {
        f"{OURS}, {name}": OurSteps(x[:, :prompt], x[:, prompt:], width, layers, name) for name in ("learned", "rope")
    }
    with torch.no_grad():
        found = take_turns(steps, seconds=0.0, fewest=rounds)
    return {("decoding", f"batch {batch}", name): estimate_median([value / tokens for value in time.values])
            for name, time in found.items()}  # fmt: skip


def fastest_peer(times: dict[Key, Estimate], key: Key) -> Key | None:
    """Returns the fastest layer of another library with this encoding, by median time."""
    others = [other for other in times if other[:2] == key[:2] and not other[2].startswith(OURS)]
    return min(others, key=lambda other: times[other].value, default=None)


def table_of(times: dict[Key, Estimate]) -> list[str]:
    rows = []
    for key, time_ in times.items():
        peer = fastest_peer(times, key)
        mine = key[2].startswith(OURS)
        share = "" if not mine or peer is None else described(ratio(time_, times[peer]))
        rows.append([key[0], key[1], key[2], milliseconds(time_.value), interval(time_, milliseconds), share])
    return pages.table(["what", "encoding", "of", "ms", "95% interval", "times the fastest peer"], rows)


def described(share: Estimate) -> str:
    ends = "" if share.low is None or share.high is None else f" ({share.low:.3f} to {share.high:.3f})"
    return f"{share.value:.3f}{ends}"


def claims(name: str, times: dict[Key, Estimate], limit: float) -> list[dict[str, Any]]:
    found = []
    for key, time_ in times.items():
        peer = fastest_peer(times, key)
        if key[2].startswith(OURS) and peer is not None:
            share = ratio(time_, times[peer])
            found.append(
                {
                    "what": f"{name}: {key[0]}, {key[1]}, {key[2]}", "peer": peer[2], "ratio": share.value,
                    "low": share.low, "high": share.high, "limit": limit, "verdict": pages.at_most(share, limit),
                }
            )  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--width", type=int, default=768, help=f"a multiple of {HEAD_DIM}, the width of a head")
    parser.add_argument("--layers", type=int, default=12, help="layers of the model that decodes")
    parser.add_argument("--prompt", type=int, default=256, help="tokens before the decoded ones")
    parser.add_argument("--tokens", type=int, default=16, help="tokens to decode per round")
    parser.add_argument("--rounds", type=int, default=21)
    args = parser.parse_args()
    keep = all(getattr(args, name) == parser.get_default(name) for name in vars(args))
    warnings.filterwarnings("ignore", message="enable_nested_tensor")

    torch.manual_seed(0)
    started = time.perf_counter()
    x = torch.randn(args.batch, args.length, args.width)
    layers = {**ours(args.length, args.width), **peers(args.length, args.width)}
    measured = {
        "forward": timed(layers, forward_of, x, args.rounds),
        "training step": timed(layers, TrainingStep, x, args.rounds),
    }
    decoded: dict[Key, Estimate] = {}
    for batch in (1, args.batch):
        decoded |= decoding(batch, args.prompt, args.tokens, args.width, args.layers, args.rounds)
    verdicts = [claim for name, times in measured.items() for claim in claims(name, times, LAYER_LIMIT)]
    verdicts += claims("a token", decoded, TOKEN_LIMIT)

    shape = f"batch {args.batch}, length {args.length}, width {args.width}, {args.width // HEAD_DIM} heads"
    lines = ["# Layers and decoding, compared with other libraries", "", "    python benchmarks/attention.py", ""]
    lines += [pages.machine(*PACKAGES), ""]
    lines += [f"Medians of {args.rounds} rounds in which all with one encoding take turns, with 95 % intervals.", ""]
    for name, times in measured.items():
        lines += [f"## One layer, {name}: {shape}", "", *table_of(times)]
    lines += [
        f"## A token after {args.prompt}, with a cache: {args.layers} layers, width {args.width}",
        "",
        *table_of(decoded),
        "## The claims",
        "",
        *(
            f"- {claim['what']}: {claim['ratio']:.3f} times {claim['peer']}, at most {claim['limit']}: "
            f"{claim['verdict']}."
            for claim in verdicts
        ),
        "",
    ]
    pages.write("attention", lines, keep=keep)
    if keep:
        results = {
            "machine": pages.machine(*PACKAGES),
            "settings": vars(args),
            "seconds": round(time.perf_counter() - started),
            "medians_ms": {
                name: {", ".join(key): round(1e3 * statistics.median(e.values), 4) for key, e in times.items()}
                for name, times in {**measured, "a token": decoded}.items()
            },
            "claims": verdicts,
        }
        (pages.RESULTS / "attention.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
