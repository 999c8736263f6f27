"""Tiny random models of the field's families, and of many that the code does not name, made longer and shorter.

They reload without a missing or mismatched key, run at the new length, and answer old inputs as before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import posembed
from posembed import LearnedPositionalEmbedding
from posembed.checkpoints.plan import Edit
from posembed.errors import ArgumentError
from posembed.tables.modules import is_table_name
from tiny_models import GPT, IMAGE, PAIR, TEXT, WHISPER, first_output, reloaded, saved, text_inputs, tiny_model
from together import asked, together
from tolerance import assert_close

# family -> (settings, the row of position 0)
NAMED: dict[str, tuple[dict[str, Any], int]] = {
    "bert": (TEXT, 0),
    "electra": ({**TEXT, "embedding_size": 16}, 0),
    "albert": ({**TEXT, "embedding_size": 16}, 0),
    "distilbert": ({"vocab_size": 60, "dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 16,
                    "max_position_embeddings": 40}, 0),
    "mobilebert": ({**TEXT, "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16}, 0),
    "deberta": (TEXT, 0),
    "big_bird": ({**TEXT, "attention_type": "original_full"}, 0),
    "gpt2": (GPT, 0),
    "blenderbot": (PAIR, 0),
    "whisper": (WHISPER, 0),
    "roberta": (TEXT, 2),
    "xlm-roberta": (TEXT, 2),
    "camembert": (TEXT, 2),
    "longformer": ({**TEXT, "attention_window": 8}, 2),
    "mpnet": (TEXT, 2),
    "layoutlmv3": ({**TEXT, "visual_embed": False, "coordinate_size": 6, "shape_size": 4}, 2),
    "opt": ({**TEXT, "ffn_dim": 16, "word_embed_proj_dim": 16}, 2),
    "bart": (PAIR, 2),
    "mbart": (PAIR, 2),
    "nystromformer": ({**TEXT, "num_landmarks": 60, "segment_means_seq_len": 60}, 2),
}  # fmt: skip
NOT_NAMED: dict[str, tuple[dict[str, Any], int]] = {
    "bert-generation": (TEXT, 0),
    "bigbird_pegasus": ({**PAIR, "attention_type": "original_full"}, 0),
    "biogpt": (TEXT, 2),
    "blenderbot-small": (PAIR, 0),
    "convbert": ({**TEXT, "embedding_size": 32}, 0),
    "data2vec-text": (TEXT, 2),
    "deberta-v2": (TEXT, 0),
    "ernie": (TEXT, 0),
    "esm": ({**TEXT, "pad_token_id": 1, "mask_token_id": 4, "position_embedding_type": "absolute"}, 2),
    "flaubert": ({"vocab_size": 60, "emb_dim": 32, "n_layers": 1, "n_heads": 2, "max_position_embeddings": 40}, 0),
    "fnet": (TEXT, 0),
    "gpt_bigcode": (GPT, 0),
    "gpt_neo": (
        {"vocab_size": 60, "hidden_size": 32, "num_layers": 1, "num_heads": 2,
         "attention_types": [[["global"], 1]], "max_position_embeddings": 40},
        0,
    ),
    "ibert": (TEXT, 2),
    "imagegpt": (GPT, 0),
    "layoutlm": (TEXT, 0),
    "led": (
        {**{k: v for k, v in PAIR.items() if k != "max_position_embeddings"}, "attention_window": 8,
         "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 40},
        0,
    ),
    "markuplm": (TEXT, 1),
    "megatron-bert": (TEXT, 0),
    "mvp": (PAIR, 2),
    "openai-gpt": (GPT, 0),
    "plbart": (PAIR, 2),
    "rembert": ({**TEXT, "input_embedding_size": 16}, 0),
    "roberta-prelayernorm": (TEXT, 2),
    "roc_bert": (TEXT, 0),
    "splinter": (TEXT, 0),
    "squeezebert": ({**TEXT, "embedding_size": 32}, 0),
    "tapas": (TEXT, 0),
    "visual_bert": ({**TEXT, "visual_embedding_dim": 16}, 0),
    "xlm": ({"vocab_size": 60, "emb_dim": 32, "n_layers": 1, "n_heads": 2, "max_position_embeddings": 40}, 0),
    "xlm-roberta-xl": (TEXT, 2),
    "lxmert": ({**{name: TEXT[name] for name in TEXT if name != "num_hidden_layers"},
                "l_layers": 1, "x_layers": 1, "r_layers": 1}, 0),
}  # fmt: skip


PLAIN = [
    "bert-generation", "blenderbot-small", "convbert", "deberta-v2", "ernie", "fnet", "gpt_bigcode", "ibert",
    "layoutlm", "megatron-bert", "mvp", "openai-gpt", "plbart", "rembert", "roberta-prelayernorm", "roc_bert",
    "splinter", "squeezebert", "tapas", "xlm", "xlm-roberta-xl", "electra", "big_bird", "blenderbot", "xlm-roberta",
    "camembert", "mpnet", "mbart", "bigbird_pegasus", "data2vec-text", "imagegpt",
]  # fmt: skip
"""Families whose config and table are those of another family here."""


def by_turns(sizes: tuple[int, int], family: str) -> tuple[int, ...]:
    """A larger and a smaller size; without --whole one of them, but for the most usual families."""
    everywhere = asked["whole"] or family in ("bert", "gpt2", "roberta", "vit", "clip")
    return sizes if everywhere else (sizes[[*NAMED, *NOT_NAMED, *IMAGES].index(family) % 2],)


@together("family", [*NAMED, *NOT_NAMED], usual=lambda family: family not in PLAIN)
def test_a_text_model_of_another_length(family: str, tmp_path: Path) -> None:
    settings, first_row = (NAMED | NOT_NAMED)[family]
    model = tiny_model(family, settings)
    source = saved(model, tmp_path / "source")
    table = "decoder.embed_positions.weight" if family == "led" else None
    inputs = text_inputs(model, 16)
    with torch.no_grad():
        expected = first_output(model, inputs)

    for length in by_turns((57, 24), family):
        out = tmp_path / str(length)
        edit = posembed.resize_checkpoint(source, out, length=length, table=table).edit
        assert edit.target.length == (40 - first_row if has_field_of_rows(family) else 40, length)
        new = reloaded(model, out)
        with torch.no_grad():
            assert torch.equal(first_output(new, inputs), expected)
        assert_rows_read(new, edit, first_row, length)


def has_field_of_rows(family: str) -> bool:
    """Families whose field counts all rows, the reserved ones too."""
    return family not in ("opt", "bart", "mbart", "nystromformer", "biogpt", "mvp", "plbart")


def assert_rows_read(model: torch.nn.Module, edit: Edit, first_row: int, length: int) -> None:
    """At the new length the model reads every row from that of position 0 to the last, and no other."""
    (first_output(model, text_inputs(model, length)).double() ** 3).sum().backward()
    for change in edit.tables:
        gradient = model.get_parameter(change.key).grad
        if change.key == "embeddings.visual_position_embeddings.weight":
            continue  # VisualBERT reads its second table for images alone
        assert gradient is not None
        read = gradient.abs().sum(dim=1).nonzero().flatten().tolist()
        # LXMERT's own padding_idx keeps position 0 from a gradient, though it is read.
        assert set(read) | {first_row} == set(range(first_row, first_row + length))
        assert len(gradient) == first_row + length


def test_a_family_with_a_head_alone(tmp_path: Path) -> None:
    from transformers import TrOCRConfig, TrOCRForCausalLM

    sizes = {"d_model": 32, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 16}
    config = TrOCRConfig(vocab_size=60, max_position_embeddings=40, use_learned_position_embeddings=True, **sizes)
    model = TrOCRForCausalLM(config).eval()
    source = saved(model, tmp_path / "source")
    edit = posembed.resize_checkpoint(source, tmp_path / "out", length=57).edit
    assert edit.target.length == (40, 57)
    new = reloaded(model, tmp_path / "out")
    ids = torch.arange(5, 21)[None]
    with torch.no_grad():
        assert torch.equal(new(input_ids=ids)[0], model(input_ids=ids)[0])
        assert new(input_ids=torch.full((1, 57), 7))[0].isfinite().all()


def test_the_unnamed_families_are_not_in_the_code() -> None:
    code = "".join(
        path.read_text()
        for path in Path(posembed.__file__).parent.glob("*/*.py")
        if path.parent.name in ("checkpoints", "tables")
    ).lower()
    unnamed = [family for family in NOT_NAMED if f'"{family}"' not in code]
    assert len(unnamed) >= 20


MAE = {
    **IMAGE,
    "decoder_hidden_size": 16,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 8,
}
SINUSOIDS: dict[str, dict[str, Any]] = {
    "pegasus": PAIR,
    "marian": {**PAIR, "decoder_start_token_id": 1, "pad_token_id": 1},
    "roformer": TEXT,
    "distilbert": {**NAMED["distilbert"][0], "sinusoidal_pos_embds": True},
}


@pytest.mark.parametrize("family", SINUSOIDS)
def test_fixed_sinusoids_are_made_anew(family: str, tmp_path: Path) -> None:
    model = tiny_model(family, SINUSOIDS[family])
    source = saved(model, tmp_path / "source")
    edit = posembed.resize_checkpoint(source, tmp_path / "out", length=64).edit
    new = reloaded(model, tmp_path / "out")
    longer = tiny_model(family, {**SINUSOIDS[family], "max_position_embeddings": 64})
    inputs = text_inputs(model, 16)
    with torch.no_grad():
        assert torch.equal(first_output(new, inputs), first_output(model, inputs))
        assert first_output(new, text_inputs(new, 64)).isfinite().all()
    for change in edit.tables:
        assert_close(new.get_parameter(change.key), longer.get_parameter(change.key))


def test_whispers_encoder_is_a_sinusoid_and_its_decoder_is_not(tmp_path: Path) -> None:
    source = saved(tiny_model("whisper", WHISPER), tmp_path / "source")
    kinds = {t.table.key: t.table.kind for t in posembed.inspect_checkpoint(source).tables}
    assert kinds == {"encoder.embed_positions.weight": "sinusoidal", "decoder.embed_positions.weight": "learned"}
    edit = posembed.resize_checkpoint(source, tmp_path / "out", length=60, table="encoder.embed_positions.weight").edit
    assert [change.key for change in edit.tables] == ["encoder.embed_positions.weight"]
    reloaded(tiny_model("whisper", WHISPER), tmp_path / "out")


def fill_with_mae_formula(model: torch.nn.Module) -> None:
    """The table as transformers makes it for a model that is trained from scratch."""
    model.embeddings.patch_embeddings.projection._is_hf_initialized = False
    model.embeddings.initialize_weights()


def test_a_sinusoid_over_a_grid_is_made_anew(tmp_path: Path) -> None:
    model = tiny_model("vit_mae", MAE)
    fill_with_mae_formula(model)
    source = saved(model, tmp_path / "source")
    edit = posembed.resize_checkpoint(source, tmp_path / "out", image_size=48).edit
    larger = tiny_model("vit_mae", {**MAE, "image_size": 48})
    fill_with_mae_formula(larger)
    new = reloaded(model, tmp_path / "out")
    assert_close(new.embeddings.position_embeddings, larger.embeddings.position_embeddings)
    assert edit.tables[0].how.startswith("sines")


TEXT_TOWER = {**TEXT, "max_position_embeddings": 20}
IMAGES: dict[str, tuple[dict[str, Any], int]] = {  # settings, and rows in front of the grid
    "vit": (IMAGE, 1),
    "deit": (IMAGE, 2),
    "dinov2": (IMAGE, 1),
    "clip_vision_model": (IMAGE, 1),
    "siglip_vision_model": (IMAGE, 0),
    "dinov2_with_registers": ({**IMAGE, "num_register_tokens": 3}, 1),
    "ijepa": (IMAGE, 0),
    "flava": ({"image_config": IMAGE, "text_config": TEXT_TOWER, "multimodal_config": IMAGE}, 1),
    "clip": ({"text_config": TEXT_TOWER, "vision_config": IMAGE}, 1),
    "paligemma": (
        {
            "text_config": {**TEXT, "model_type": "gemma"},
            "vision_config": {**IMAGE, "model_type": "siglip_vision_model"},
        },
        0,
    ),
    "chinese_clip": ({"text_config": TEXT, "vision_config": IMAGE}, 1),
    "siglip": ({"text_config": TEXT_TOWER, "vision_config": IMAGE}, 0),
}


USUAL = ("vit", "deit", "siglip_vision_model", "dinov2_with_registers", "clip", "paligemma")


@together("family", IMAGES, usual=lambda family: family in USUAL)
def test_an_image_model_of_another_size(family: str, tmp_path: Path) -> None:
    settings, prefix = IMAGES[family]
    model = tiny_model(family, settings)
    source = saved(model, tmp_path / "source")
    for side in by_turns((48, 16), family):
        edit = posembed.resize_checkpoint(source, tmp_path / str(side), image_size=side).edit
        new = reloaded(model, tmp_path / str(side))
        (change,) = edit.tables
        old_rows, new_rows = (m.get_parameter(change.key).reshape(-1, 32) for m in (model, new))
        assert len(new_rows) == prefix + (side // 8) ** 2
        assert torch.equal(new_rows[:prefix], old_rows[:prefix])
        expected = posembed.resize_table(
            old_rows, grid=(side // 8, side // 8), layout=posembed.tables.TableLayout(prefix=prefix, grid=(4, 4))
        )
        assert torch.equal(new_rows, expected)
        if "text_config" not in settings:
            with torch.no_grad():
                assert first_output(new, {"pixel_values": torch.ones(1, 3, side, side)}).isfinite().all()


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("canine", {**TEXT, "num_hash_functions": 2, "num_hash_buckets": 32}, "char_position_embeddings"),
        ("deberta-v2", {**TEXT, "relative_attention": True, "max_relative_positions": -1}, "rel_embeddings"),
        ("audio-spectrogram-transformer", {**TEXT, "max_length": 64, "num_mel_bins": 32}, "no table of positions"),
        (
            "llama",
            {k: v for k, v in TEXT.items() if k != "max_position_embeddings"},
            "nothing to resize: .* rotates queries and keys instead .LlamaRotaryEmbedding., so it needs no resize",
        ),
    ],
)
def test_what_is_not_understood_is_refused(family: str, settings: dict[str, Any], reason: str, tmp_path: Path) -> None:
    source = saved(tiny_model(family, settings), tmp_path / "source")
    size = {"image_size": 64} if "image_size" in settings else {"length": 64}
    with pytest.raises(posembed.errors.CheckpointError, match=reason):
        posembed.resize_checkpoint(source, tmp_path / "out", **size)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


@together("family", [*NAMED, *NOT_NAMED], usual=lambda family: family not in PLAIN)
def test_a_layer_from_the_model_reads_the_same_rows(family: str) -> None:
    settings, first_row = (NAMED | NOT_NAMED)[family]
    model = tiny_model(family, settings)
    tables = {key: table for key, table in model.state_dict().items() if is_table_name(key) and table.dim() == 2}
    for key, table in tables.items():
        if family == "lxmert":  # it does not count from its padding row
            with pytest.raises(ArgumentError, match=r"layout=TableLayout\(\) if it is row 0"):
                LearnedPositionalEmbedding.from_module(model, key=key)
            continue
        layer = LearnedPositionalEmbedding.from_module(model, key=key)
        assert layer.layout.front == first_row
        assert torch.equal(layer.rows(torch.arange(layer.max_len)), table[first_row:])
    assert tables
