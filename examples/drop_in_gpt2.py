"""posembed's table inside transformers' GPT-2: the same logits, generated tokens and saved keys.

python examples/drop_in_gpt2.py          a small GPT-2 with random weights
python examples/drop_in_gpt2.py gpt2     one from the hub, or from a folder
"""

from __future__ import annotations

import copy
import sys

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from posembed import LearnedPositionalEmbedding
from posembed.errors import PositionError


class PositionRows(LearnedPositionalEmbedding):
    """Returns rows alone: GPT-2 calls ``wpe`` with position ids (1, L) or (B, L) and adds its output to the tokens."""

    def forward(self, position_ids: Tensor) -> Tensor:
        return self.rows(position_ids)


def use_posembed(model: GPT2LMHeadModel) -> GPT2LMHeadModel:
    """Returns a copy of the model with posembed's position table."""
    model = copy.deepcopy(model)
    rows, dim = model.transformer.wpe.weight.shape
    model.transformer.wpe = PositionRows(max_len=rows, dim=dim, init=model.transformer.wpe.weight)
    return model


def main(checkpoint: str | None = None) -> None:
    torch.manual_seed(0)
    if checkpoint is None:
        config = GPT2Config(
            vocab_size=100, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=99, eos_token_id=99
        )
        theirs = GPT2LMHeadModel(config).eval()
    else:
        theirs = GPT2LMHeadModel.from_pretrained(checkpoint).eval()
    ours = use_posembed(theirs)
    longest = theirs.config.n_positions

    tokens = torch.randint(90, (2, longest))
    assert torch.equal(ours(tokens).logits, theirs(tokens).logits)

    prompts = torch.randint(90, (2, 6))
    mask = torch.tensor([[0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1]])  # the first prompt is padded on the left
    options = {"attention_mask": mask, "max_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
    generated = ours.generate(prompts, use_cache=True, **options)
    assert torch.equal(generated, theirs.generate(prompts, use_cache=True, **options))
    assert torch.equal(generated, ours.generate(prompts, use_cache=False, **options))
    alone = ours.generate(prompts[:1, 3:], **(options | {"attention_mask": mask[:1, 3:]}))
    assert torch.equal(generated[0, 3:], alone[0])

    assert ours.state_dict().keys() == theirs.state_dict().keys()
    print("the same logits, and the same tokens from left-padded prompts with a cache and without")

    too_long = torch.randint(90, (1, longest + 1))
    try:
        theirs(too_long)
    except IndexError as error:
        print(f"transformers, {longest + 1} tokens: {error}")
    try:
        ours(too_long)
    except PositionError as error:
        print(f"posembed, {longest + 1} tokens: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
