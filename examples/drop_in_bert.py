"""posembed's input layer inside transformers' BERT: the same logits, generated tokens and saved keys.

python examples/drop_in_bert.py                      a small BERT with random weights
python examples/drop_in_bert.py bert-base-uncased    one from the hub, or from a folder
"""

from __future__ import annotations

import copy
import sys
import tempfile

import torch
from torch import Tensor
from transformers import BertConfig, BertLMHeadModel

from posembed.inputs import BertInput
from posembed.positions import from_mask


class Embeddings(BertInput):
    """BertInput with the call signature of the embeddings in transformers' BERT."""

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: None = None,
        past_key_values_length: int = 0,
        cache_length: int = 0,  # the name of past_key_values_length since transformers 5.24
    ) -> Tensor:
        offset = past_key_values_length + cache_length if position_ids is None else 0
        return super().forward(input_ids, position_ids=position_ids, offset=offset, token_type_ids=token_type_ids)


def main(checkpoint: str | None = None) -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        if checkpoint is None:
            checkpoint = folder
            depth = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
            config = BertConfig(
                vocab_size=100,
                hidden_size=16,
                max_position_embeddings=32,
                is_decoder=True,
                eos_token_id=99,
                **depth,
            )
            BertLMHeadModel(config).save_pretrained(folder)
        theirs = BertLMHeadModel.from_pretrained(checkpoint, is_decoder=True).eval()
        ours = copy.deepcopy(theirs)
        ours.bert.embeddings = Embeddings.from_checkpoint(checkpoint)
        ours.tie_weights()  # the output layer shares the token table

    tokens = torch.randint(1, 90, (2, 20))
    types = torch.arange(20).expand(2, 20) // 10  # two sentences
    assert torch.equal(ours(tokens, token_type_ids=types).logits, theirs(tokens, token_type_ids=types).logits)

    prompts = torch.randint(1, 90, (2, 6))
    mask = torch.tensor([[0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1]])  # the first prompt is padded on the left
    logits = ours(prompts, attention_mask=mask, position_ids=from_mask(mask)).logits
    torch.testing.assert_close(logits[0, 3:], ours(prompts[:1, 3:]).logits[0], rtol=0, atol=1e-5)

    options = {"attention_mask": mask, "max_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
    options |= {"return_dict_in_generate": True, "output_logits": True}
    cached, uncached = (ours.generate(prompts, use_cache=use, **options) for use in (True, False))
    expected = theirs.generate(prompts, use_cache=True, **options)
    assert torch.equal(cached.sequences, expected.sequences)
    assert torch.equal(torch.stack(cached.logits), torch.stack(expected.logits))
    assert torch.equal(cached.sequences, uncached.sequences)
    torch.testing.assert_close(torch.stack(cached.logits), torch.stack(uncached.logits), rtol=0, atol=1e-5)

    assert ours.cls.predictions.decoder.weight is ours.bert.embeddings.word_embeddings.weight
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    print("the same logits, and the same tokens from left-padded prompts with a cache and without")


if __name__ == "__main__":
    main(*sys.argv[1:2])
