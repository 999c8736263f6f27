"""Texts whose positions lie in blocks, start behind the padding row, or read rows behind that of the last token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import posembed
from posembed.errors import CheckpointError
from tiny_models import loud_model, saved
from together import together
from tolerance import assert_close

SMALL = {"vocab_size": 60, "hidden_size": 16, "num_attention_heads": 2}


def answer(model: nn.Module, **inputs: Any) -> Tensor:
    torch.manual_seed(1)  # Reformer hashes at random
    with torch.no_grad():
        return next(each for each in model(**inputs).values() if isinstance(each, Tensor))


# Blocks


def reformer(blocks: int, places: int) -> Any:
    return loud_model("ReformerModel", transformers.ReformerConfig(
        **SMALL, attention_head_size=8, feed_forward_size=16, attn_layers=["local", "lsh"], num_hidden_layers=2,
        axial_pos_shape=[blocks, places], axial_pos_embds_dim=[6, 10], max_position_embeddings=blocks * places,
        local_attn_chunk_length=4, lsh_attn_chunk_length=4, num_buckets=2, is_decoder=False,
    ))  # fmt: skip


def test_positions_in_blocks_are_refused_with_the_field_that_gives_them(tmp_path: Path) -> None:
    model = reformer(3, 8)
    with pytest.raises(CheckpointError, match=r"its positions lie in blocks \(axial_pos_shape\)"):
        posembed.resize_model_(model, length=48)
    reports = posembed.inspect_checkpoint(saved(model, tmp_path / "old")).tables
    assert len(reports) == 2
    assert all("axial_pos_shape" in report.table.doubt for report in reports)


# Rows ahead


@together("padding", [0, 1, 3])
@together("length", [6, 16, 20, 61])
def test_prophetnet_counts_from_its_padding_row_and_reads_one_row_ahead(padding: int, length: int) -> None:
    config = transformers.ProphetNetConfig(
        vocab_size=60, hidden_size=16, encoder_ffn_dim=16, decoder_ffn_dim=16, num_encoder_layers=1,
        num_decoder_layers=1, num_encoder_attention_heads=2, num_decoder_attention_heads=2, ngram=2, num_buckets=8,
        max_position_embeddings=40, pad_token_id=padding, bos_token_id=5, eos_token_id=6, decoder_start_token_id=5,
    )  # fmt: skip
    model = loud_model("ProphetNetModel", config)
    old = 40 - padding - 1
    ids = torch.randint(7, 60, (1, min(old, length) - 1))  # one less in the decoder
    before = answer(model, input_ids=ids, decoder_input_ids=ids)
    edit = posembed.resize_model_(model, length=length)
    assert [change.after.shape[0] for change in edit.tables] == [length + padding + 1] * 2
    assert torch.equal(answer(model, input_ids=ids, decoder_input_ids=ids), before)
    longest = torch.randint(7, 60, (1, length))
    assert answer(model, input_ids=longest, decoder_input_ids=longest[:, :-1]).isfinite().all()
    with pytest.raises(IndexError):
        answer(model, input_ids=longest, decoder_input_ids=longest)


def clvp(**other: Any) -> Any:
    small = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 64}
    side = {**small, "intermediate_size": 16, "projection_dim": 16, "bos_token_id": 1, "eos_token_id": 0}
    decoder = {"vocab_size": 62, "max_position_embeddings": 90, "max_text_tokens": 40, "feature_size": 8, **other}
    config = transformers.ClvpConfig(
        text_config={**side, "vocab_size": 60}, speech_config={**side, "vocab_size": 62}, projection_dim=16,
        decoder_config={**small, **decoder, "num_mel_attn_blocks": 1, "decoder_fixing_codes": [1, 2, 3]},
    )  # fmt: skip
    return loud_model("ClvpModelForConditionalGeneration", config)


def test_clvp_adds_a_token_at_both_ends_of_a_text() -> None:
    model, key = clvp(), "conditioning_encoder.text_position_embedding.weight"
    torch.manual_seed(2)
    given = {"input_features": torch.randn(1, 8, 20), "output_hidden_states": True}
    ids, longer = torch.randint(5, 50, (1, 38)), torch.randint(5, 50, (1, 58))
    before = [each.clone() for each in model(input_ids=ids, **given).decoder_hidden_states]
    with pytest.raises(CheckpointError, match="no small copy"):  # no row of families.json has this setting
        posembed.resize_model_(clvp(n_inner=16), length=60, table=key)
    posembed.resize_model_(model, length=60, table=key)
    assert all(map(torch.equal, model(input_ids=ids, **given).decoder_hidden_states, before))
    assert model(input_ids=longer, **given).decoder_hidden_states[-1].isfinite().all()


# Series of times


@pytest.mark.parametrize("token", [False, True])
@pytest.mark.parametrize("steps", [48, 22])
def test_a_series_of_other_times_keeps_the_formula_of_its_positions(token: bool, steps: int, tmp_path: Path) -> None:
    def patchtst(steps: int, kind: str) -> Any:
        return transformers.PatchTSTModel(transformers.PatchTSTConfig(
            context_length=steps, patch_length=4, patch_stride=2, d_model=16, num_hidden_layers=1, ffn_dim=16,
            num_attention_heads=2, num_input_channels=3, positional_encoding_type=kind, use_cls_token=token,
        )).eval()  # fmt: skip

    key = "encoder.positional_encoder.position_enc"
    model, own = patchtst(32, "sincos"), patchtst(steps, "sincos").get_parameter(key).detach()
    old, series = model.get_parameter(key).detach().clone(), torch.randn(1, steps, 3)
    (change,) = posembed.resize_model_(model, frames=steps).tables
    new = model.get_parameter(key).detach()
    shared = min(len(old), len(new))
    assert change.kept == shared
    assert torch.equal(new[:shared], old[:shared])
    line = torch.stack([own.flatten(), torch.ones(own.numel())], dim=1)  # theirs has another mean and deviation
    fit = line @ torch.linalg.lstsq(line, new.flatten()[:, None]).solution
    assert_close(fit[:, 0], new.flatten())
    assert model(past_values=series).last_hidden_state.isfinite().all()
    learned = patchtst(32, "random")
    row = learned.get_parameter(key).detach()[0].clone()
    source = saved(learned, tmp_path / "old")
    (source / "README.md").write_text("# A model")
    posembed.resize_checkpoint(source, tmp_path / "new", frames=steps)
    grown = transformers.PatchTSTModel.from_pretrained(tmp_path / "new").eval()
    assert grown.config.context_length == steps
    assert grown(past_values=series).last_hidden_state.isfinite().all()
    assert torch.equal(grown.get_parameter(key)[0], row) or not token  # the row of the class token
    assert "time steps" in (tmp_path / "new" / "README.md").read_text()


# Nothing to resize


def test_blocks_that_are_compressed_and_buckets_in_code_are_listed_as_such(tmp_path: Path) -> None:
    udop = transformers.UdopConfig(
        d_model=16, d_kv=8, num_heads=2, num_layers=1, d_ff=16, vocab_size=60, max_2d_position_embeddings=8,
        image_size=8, patch_size=4,
    )  # fmt: skip
    source = saved(loud_model("UdopModel", udop), tmp_path / "udop")
    tables = {report.table.key: report.table for report in posembed.inspect_checkpoint(source).tables}
    for key, table in tables.items():
        if "relative_attention_bias" in key:
            assert table.fixed
            assert table.in_buckets
            assert "need no resize" in table.doubt
    assert sum("relative_bias.biases" in key for key in tables) >= 4
    key = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    with pytest.raises(CheckpointError, match="reads none of the rows"):  # other modules hold those that it reads
        posembed.resize_checkpoint(source, tmp_path / "new", buckets=64, table=key)
    assert not (tmp_path / "new").exists()
    config = transformers.CONFIG_MAPPING["deepseek_v4"](
        **SMALL, num_hidden_layers=2, head_dim=8, qk_rope_head_dim=4, q_lora_rank=8, o_lora_rank=8, o_groups=1,
        n_routed_experts=2, num_experts_per_tok=1, moe_intermediate_size=8, index_n_heads=2, index_head_dim=8,
    )  # fmt: skip
    model = transformers.AutoModel.from_config(config)
    reports = posembed.inspect_checkpoint(saved(model, tmp_path / "deepseek")).tables
    assert reports
    assert all(each.table.fixed and "need no resize" in each.table.doubt for each in reports)
    assert not any("bucket" in each.table.doubt for each in reports)
