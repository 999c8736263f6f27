"""Tables of one row for each difference of two positions in a line, up to a limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import posembed
from posembed.errors import ArgumentError, CheckpointError
from posembed.tables import Axis, TableLayout
from tiny_models import saved
from together import together
from tolerance import assert_close, close

SMALL = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
}  # fmt: skip
SPEECH = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in {"layers": 1, "attention_heads": 2, "ffn_dim": 16}.items()
}
LONG = 40  # in tokens or frames, above all limits


def ids(length: int = LONG) -> dict[str, Tensor]:
    return {"input_ids": torch.arange(length)[None] % 50 + 5}


def frames(name: str, width: int) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {name: torch.randn(1, 8 * LONG, width)}


def granite() -> nn.Module:
    config = transformers.GraniteSpeechConfig().encoder_config
    sizes = {"input_dim": 16, "num_layers": 2, "hidden_dim": 32, "num_heads": 2, "dim_head": 16, "output_dim": 8}
    config = type(config)(**sizes, context_size=12, max_pos_emb=16, conv_kernel_size=3)
    return transformers.GraniteSpeechCTCEncoder(config)


def phi() -> nn.Module:
    names = ("hidden_size", "intermediate_size", "nemo_conv_channels", "ext_pw_out_channel")
    sizes = {**dict.fromkeys((*names, "depthwise_separable_out_channel"), 32), "num_blocks": 1, "input_size": 16}
    config = transformers.Phi4MultimodalAudioConfig(**sizes, num_attention_heads=2, bias_max_distance=10)
    return transformers.Phi4MultimodalAudioModel(config)


@dataclass
class Case:
    """A family: its model, an input, a limit to resize to, its old sides, its new sides and the keys' end."""

    model: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Any]]
    size: dict[str, Any]
    sides: tuple[int, int]
    after: tuple[int, int]
    key: str
    fewer: int = 3  # a smaller limit


CASES = {
    "wav2vec2-bert": Case(
        lambda: transformers.Wav2Vec2BertModel(transformers.Wav2Vec2BertConfig(
            **SMALL, feature_projection_input_dim=16, output_hidden_size=32, conv_depthwise_kernel_size=3,
            left_max_position_embeddings=12, right_max_position_embeddings=4,
        )),
        lambda: frames("input_features", 16), {"length": 20}, (12, 5), (20, 5), "distance_embedding.weight",
    ),
    "deberta": Case(
        lambda: transformers.DebertaModel(transformers.DebertaConfig(
            **SMALL, max_position_embeddings=24, relative_attention=True, pos_att_type=["c2p", "p2c"],
        )),
        lambda: ids(24), {"length": 37}, (24, 24), (37, 37), "rel_embeddings.weight",
    ),
    "speecht5": Case(
        lambda: transformers.SpeechT5Model(transformers.SpeechT5Config(
            vocab_size=60, hidden_size=32, **SPEECH, encoder_max_relative_position=10,
        )),
        lambda: {**frames("input_values", 32), **frames("decoder_input_values", 32)},
        {"length": 15}, (10, 10), (15, 15), "pe_k.weight",
    ),
    "granite_speech": Case(
        granite, lambda: frames("hidden_states", 16), {"length": 25}, (16, 17), (25, 26), "rel_pos_emb.weight",
        fewer=12,
    ),
    "phi4_multimodal": Case(
        phi, lambda: {**frames("hidden_states", 16), "mask": None}, {"length": 17}, (10, 10), (17, 17),
        "bias_values.weight",
    ),
}  # fmt: skip


def answer(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        output = model.eval()(**inputs)
    return output if isinstance(output, Tensor) else output[0]


def layout(sides: tuple[int, int]) -> TableLayout:
    axes = (
        Axis(name, size, relative=True, signed=False) for name, size in zip(("backward", "forward"), sides, strict=True)
    )
    return TableLayout(axes=tuple(axes))


def mostly(*usual: str) -> pytest.MarkDecorator:
    cases = [pytest.param(name, marks=() if name in usual else pytest.mark.whole) for name in CASES]
    return pytest.mark.parametrize("case", cases, indirect=True)


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def model(case: Case) -> nn.Module:
    torch.manual_seed(0)
    model = case.model().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(case.key):
                parameter.copy_(torch.randn_like(parameter))  # at its first scale, it hardly changes an answer
    return model


@mostly("wav2vec2-bert", "granite_speech", "deberta")
def test_larger_limits_change_no_answer_in_files_and_in_memory(case: Case, model: nn.Module, tmp_path: Path) -> None:
    before = answer(model, case.inputs())
    old = {name: parameter.detach().clone() for name, parameter in model.named_parameters() if name.endswith(case.key)}
    source = saved(model, tmp_path / "old")
    found = [report.table for report in posembed.inspect_checkpoint(source).tables if report.table.key in old]
    assert [table.layout for table in found] == [layout(case.sides)] * len(old)

    posembed.resize_checkpoint(source, tmp_path / "new", **case.size)
    edit = posembed.resize_model_(model, **case.size)

    written = type(model).from_pretrained(tmp_path / "new")
    for resized in (model, written):
        assert_close(answer(resized, case.inputs()), before, depth=2)
    for key, table in old.items():
        rows, new = table.reshape(-1, table.shape[-1]), written.get_parameter(key).reshape(-1, table.shape[-1])
        assert len(new) == sum(case.after)
        for row, values in enumerate(new):
            distance = row - case.after[0]
            at = min(max(distance + case.sides[0], 0), len(rows) - 1)
            assert torch.equal(values, rows[at])
        assert torch.equal(model.get_parameter(key).reshape(new.shape), new)
        assert next(change.kept for change in edit.tables if change.key == key) == len(rows)


@together("method", ["extend", "zeros", "linear-corners", "cubic-corners"])
@together("sides", [(1, 1), (12, 5), (3, 8)])
def test_limited_differences_keep_zero_and_come_back(sides: tuple[int, int], method: str) -> None:
    table = torch.randn(sum(sides), 3)
    larger = (sides[0] + 4, sides[1] + 1)
    new = posembed.resize_table(
        table, sizes={"backward": larger[0], "forward": larger[1]}, layout=layout(sides), method=method
    )
    assert new.shape == (sum(larger), 3)
    assert torch.equal(new[larger[0]], table[sides[0]])
    if method in ("extend", "zeros"):
        back = posembed.resize_table(
            new, sizes={"backward": sides[0], "forward": sides[1]}, layout=layout(larger), method=method
        )
        assert torch.equal(back, table)


def test_a_method_for_other_tables_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"limited differences .* choose one of extend, zeros"):
        posembed.resize_table(torch.randn(17, 3), sizes={"backward": 20}, layout=layout((12, 5)), method="tile")


@pytest.mark.parametrize("case", ["wav2vec2-bert"], indirect=True)
def test_a_method_that_changes_answers_says_which_keeps_them(case: Case, model: nn.Module) -> None:
    edit = posembed.resize_model_(model, length=20, method="linear-corners")
    assert any("--method extend" in check for check in edit.checks)


def test_the_default_method_is_the_one_that_keeps_the_answers() -> None:
    """Beyond its window, VITS adds nothing, so new rows are 0."""
    sizes = {"hidden_size": 16, "flow_size": 16, "ffn_dim": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    voice = {
        "spectrogram_bins": 9, "depth_separable_channels": 2, "duration_predictor_filter_channels": 16,
        "prior_encoder_num_flows": 1, "prior_encoder_num_wavenet_layers": 1, "posterior_encoder_num_wavenet_layers": 1,
        "upsample_initial_channel": 16, "upsample_rates": [2, 2], "upsample_kernel_sizes": [4, 4],
        "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3]],
    }  # fmt: skip
    torch.manual_seed(0)
    model = transformers.VitsModel(transformers.VitsConfig(vocab_size=60, **sizes, **voice)).eval()
    given = {**ids(), "padding_mask": torch.ones(1, LONG, 1)}
    before = answer(model.text_encoder, given)
    edit = posembed.resize_model_(model, window=7)
    assert {change.how for change in edit.tables} == {"zeros"}
    assert_close(answer(model.text_encoder, given), before, depth=2)


@mostly("wav2vec2-bert", "speecht5", "phi4_multimodal")
def test_smaller_limits_keep_the_rows_of_each_difference_and_the_answers_within(case: Case, model: nn.Module) -> None:
    """A side that has fewer differences than the new limit of the other one stays as it is."""
    within = {name: None if value is None else value[:, : case.fewer] for name, value in case.inputs().items()}
    before = answer(model, within)
    old = {name: parameter.detach().clone() for name, parameter in model.named_parameters() if name.endswith(case.key)}
    edit = posembed.resize_model_(model, length=case.fewer)
    assert "for an input within the new limits" in edit.checks[-1]
    for change in edit.target.changes:
        if key := next((key for key in old if key == change.table.parameter), None):
            rows, (backward, forward) = (
                old[key].reshape(sum(case.sides), -1),
                (axis.size for axis in change.layout.axes),
            )
            kept = rows[case.sides[0] - backward : case.sides[0] + forward]
            assert torch.equal(model.get_parameter(key).reshape(backward + forward, -1), kept)
    assert_close(answer(model, within), before, depth=2)


def deberta() -> nn.Module:
    """Its absolute and its relative positions have the same field."""
    sizes = {**SMALL, "num_hidden_layers": 1, "max_position_embeddings": 40}
    return transformers.DebertaModel(transformers.DebertaConfig(**sizes, relative_attention=True, pos_att_type=["c2p"]))


STATEMENTS = [
    (CASES["wav2vec2-bert"].model, {"length": 20}, ("extend", "zeros", "linear-corners")),
    (deberta, {"length": 55}, ("tile", "stretch", "extend", "zeros", "linear-corners")),
]


@together(
    ("make", "size", "method"),
    [(make, size, method) for make, size, methods in STATEMENTS for method in methods],
    usual=lambda make, size, method: (
        method in (("tile", "stretch", "zeros") if make is deberta else ("extend", "linear-corners"))
    ),
)
def test_what_is_said_about_answers_is_true(make: Callable[[], nn.Module], size: dict[str, int], method: str) -> None:
    """The statement holds for this model: about an input within the old limits, and about one with differences beyond
    them, if the model can read it."""
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "position_embeddings" in name or name.endswith(("distance_embedding.weight", "rel_embeddings.weight")):
                parameter.normal_()
    inputs = [ids(4), ids(40)] if make is deberta else [{"input_features": torch.randn(1, n, 16)} for n in (4, 40)]
    if method == "stretch":  # keeps the first 20 rows
        inputs[0] = ids(30)
    before = [answer(model, each) for each in inputs]
    said = posembed.resize_model_(model, **size, method=method).checks[-1]
    short, long = (close(answer(model, each), wanted) for each, wanted in zip(inputs, before, strict=True))
    if not short:
        assert "The answers change, also for short inputs; --method extend" in said
    elif not long:
        assert "The answers change for inputs with differences beyond the old limits; --method extend" in said
    else:
        assert "gives the same answers at the old and at the new size, for the same input" in said


def test_limits_are_tried_at_their_own_size_however_large() -> None:
    """The chunks of Granite Speech must not be longer than the limit; DeBERTa's texts share the field of its limit."""
    model = deberta()
    posembed.resize_model_(model, length=600)
    assert model.encoder.rel_embeddings.weight.shape[0] == 1200
    config = transformers.GraniteSpeechConfig().encoder_config
    sizes = {"input_dim": 16, "num_layers": 1, "hidden_dim": 8, "num_heads": 2, "dim_head": 4, "output_dim": 8}
    config = type(config)(**sizes, context_size=200, max_pos_emb=512, conv_kernel_size=3)
    edit = posembed.resize_model_(transformers.GraniteSpeechCTCEncoder(config), length=600)
    assert edit.tables[0].after.shape == (1201, 4)


def test_buckets_of_distances_need_no_resize(tmp_path: Path) -> None:
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    model = transformers.T5EncoderModel(transformers.T5Config(vocab_size=60, **sizes, relative_attention_num_buckets=8))
    source = saved(model, tmp_path / "old")
    [report] = posembed.inspect_checkpoint(source).tables
    assert report.table.shape == (8, 2)
    assert "its 8 rows are buckets" in report.table.doubt
    assert "from 128 tokens" in report.table.doubt
    assert answer(model, ids(300)).shape[1] == 300  # a text beyond the last bucket
    with pytest.raises(CheckpointError, match=r"nothing to resize: .*relative_attention_bias.weight.* need no resize"):
        posembed.resize_checkpoint(source, tmp_path / "new", length=1024)
    assert not (tmp_path / "new").exists()


def test_rows_and_columns_with_sizes_in_code_are_refused() -> None:
    sides = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], out_features=["stage2"], layer_type="basic"
    )
    sizes = {**sides, "d_model": 32, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "num_queries": 5}
    model = transformers.DetrModel(
        transformers.DetrConfig(backbone_config=backbone, **sizes, position_embedding_type="learned")
    )
    with pytest.raises(CheckpointError, match=r"50 rows are a number in the model's code"):
        posembed.resize_model_(model, image_size=512)
