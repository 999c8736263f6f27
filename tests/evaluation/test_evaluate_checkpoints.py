"""Several checkpoints: which rows there are, what is kept, and what is refused."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import posembed
from evaluated_models import by_text, save_causal, save_encoder, save_masked, save_tokenizer, write_texts
from posembed import evaluate_checkpoints
from posembed.errors import ArgumentError, CheckpointError, DataError
from posembed.evaluation.counts import FITS
from posembed.evaluation.measures import MEASUREMENTS
from posembed.evaluation.results import Evaluation
from posembed.evaluation.runnable import Runnable, open_runnable, short_names, window_of
from posembed.evaluation.tokens import Prompt
from posembed.measure.frame import COLUMNS
from posembed.measure.jobs import Kept
from tiny_models import TEXT, saved, tiny_model
from together import together
from tolerance import assert_close

LENGTHS = (32, 64, 128)


def longer(folder: Path, **arguments: object) -> Path:
    out = folder.with_name(folder.name + "-128")
    posembed.resize_checkpoint(folder, out, length=128, **arguments)  # type: ignore[arg-type]
    return out


def test_causal_models(tmp_path: Path) -> None:
    save_causal(tmp_path / "gpt")
    new = longer(tmp_path / "gpt")
    seen: list[tuple[str, int, int]] = []
    evaluation = evaluate_checkpoints(
        [tmp_path / "gpt", new],
        write_texts(tmp_path / "text"),
        lengths=LENGTHS,
        texts=5,
        device="cpu",
        progress=lambda *at: seen.append(at),
    )
    assert (evaluation.kind, evaluation.lengths, evaluation.texts) == ("causal", LENGTHS, 5)
    before, after, baseline = evaluation.rows
    assert (before.length, before.baseline) == (64, "")
    assert (after.length, after.baseline) == (128, "")
    assert (baseline.checkpoint, baseline.baseline) == (before.checkpoint, "truncated or chunked at 64")
    for measure in evaluation.measures:
        old, new_values, chunked = (
            {length: by_text(row, measure, length) for length in LENGTHS} for row in evaluation.rows
        )
        assert old[128] is None
        # Tiling keeps the old rows, so the values at the old lengths are equal; chunking repeats the values at 64.
        assert all(old[length] == new_values[length] for length in (32, 64))
        assert chunked[128] == chunked[64] == old[64]
        assert new_values[128] not in (None, new_values[64])
    assert seen[-1][1] == seen[-1][2] == 5 * (2 + 3) * 128
    assert json.loads(json.dumps(evaluation.to_dict()))["rows"][0]["name"] == before.name
    assert any("at most 64 tokens" in note for note in evaluation.notes)


def test_masked_models_and_sentence_encoders(tmp_path: Path) -> None:
    text = write_texts(tmp_path / "text")
    save_masked(tmp_path / "bert")
    masked = evaluate_checkpoints([tmp_path / "bert"], text, lengths=LENGTHS, device="cpu")
    assert [row.baseline for row in masked.rows] == ["", "chunked at 64"]
    assert masked.measures == ("masked-token accuracy", "pseudo-perplexity")
    frame = masked.frame()
    assert (list(frame.columns), set(frame.metric)) == (
        list(COLUMNS),
        {"masked-token accuracy", "log pseudo-perplexity"},
    )
    last = frame[(frame.run == masked.reference.name) & (frame.metric == "log pseudo-perplexity") & (frame.x == 128)]
    expected = masked.reference.estimate("pseudo-perplexity", 128)
    assert expected is not None
    assert_close(math.exp(last.value.sum() / last.weight.sum()), expected.value)

    save_encoder(tmp_path / "encoder")
    new = longer(tmp_path / "encoder", method="linear")
    found = evaluate_checkpoints([new, tmp_path / "encoder"], text, lengths=LENGTHS, device="cpu")
    assert found.texts == 12
    assert [row.baseline for row in found.rows] == ["", "", "truncated at 64", "chunked at 64"]
    _, old, truncated, chunked = (
        {at: by_text(row, "mean reciprocal rank", at) for at in LENGTHS} for row in found.rows
    )
    assert [row.checkpoint for row in found.rows[2:]] == ["encoder"] * 2
    assert found.notes[0] == f"{new.name} is {new} and encoder is {tmp_path / 'encoder'}."
    assert old[64] == truncated[64] == chunked[64]
    assert None not in (truncated[128], chunked[128])


def test_another_way_to_feed_a_text_is_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_encoder(tmp_path / "encoder")
    monkeypatch.setitem(FITS, "the end", lambda texts, limit: (texts[:, -limit:],))
    baselines = {"the end": "the end", "chunked": "chunked"}
    monkeypatch.setitem(MEASUREMENTS, "sentences", replace(MEASUREMENTS["sentences"], baselines=baselines))
    text = write_texts(tmp_path / "text")
    found = evaluate_checkpoints([tmp_path / "encoder"], text, lengths=(64, 128), device="cpu")
    assert [row.baseline for row in found.rows] == ["", "the end at 64", "chunked at 64"]
    _, ending, chunked = ({at: by_text(row, "mean reciprocal rank", at) for at in (64, 128)} for row in found.rows)
    assert ending[64] == chunked[64]
    assert ending[128] not in (None, chunked[128])


def test_a_resized_checkpoint_alone_knows_its_old_length(tmp_path: Path) -> None:
    save_causal(tmp_path / "gpt")
    runnable = open_runnable(longer(tmp_path / "gpt"))
    assert (runnable.length, runnable.old_length) == (128, 64)


def test_a_model_without_a_table_runs_at_any_length_and_claims_one(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    LlamaForCausalLM(LlamaConfig(vocab_size=95, max_position_embeddings=64, **sizes)).save_pretrained(tmp_path)
    save_tokenizer(tmp_path, specials=False)
    text = write_texts(tmp_path.with_name("text"))
    evaluation = evaluate_checkpoints([tmp_path], text, lengths=(32, 128), device="cpu", texts=2)
    assert by_text(evaluation.rows[0], "perplexity", 128) is not None
    assert (evaluation.rows[0].length, evaluation.rows[1].baseline) == (None, "truncated or chunked at 64")


def test_a_sentence_encoder_is_fed_no_more_than_its_settings_say(tmp_path: Path) -> None:
    save_encoder(tmp_path / "encoder")
    (tmp_path / "encoder" / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32}))
    text = write_texts(tmp_path / "text")
    found = evaluate_checkpoints(
        [tmp_path / "encoder", longer(tmp_path / "encoder")], text, lengths=(32, 64), device="cpu"
    )
    old, new, truncated, chunked = found.rows
    assert (old.length, new.length) == (32, 128)
    assert (truncated.baseline, chunked.baseline) == ("truncated at 32", "chunked at 32")
    assert old.estimate("recall at 1", 64) is None
    assert any("at most 32 tokens" in note and "positions: 64" in note for note in found.notes)
    assert open_runnable(tmp_path / "encoder-128").old_length == 64


@together("limit", [None, 24, 64, 1000, 10**30])
@together("of_model", [None, 24, 40])
def test_the_length_of_a_sentence_encoder_is_that_of_sentence_transformers(
    of_model: int | None, limit: int | None, tmp_path: Path
) -> None:
    """Version 6 saves no max_seq_length, and takes the tokenizer's limit then."""
    library = pytest.importorskip("sentence_transformers")
    save_encoder(tmp_path, pooling={"embedding_dimension": 32, "pooling_mode": "mean"})
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"model_max_length": limit}
    path.write_text(json.dumps({name: value for name, value in settings.items() if value is not None}))
    if of_model is not None:
        (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": of_model}))
    encoder = library.SentenceTransformer(str(tmp_path), device="cpu")
    assert open_runnable(tmp_path).length == encoder.max_seq_length


FOREIGN = [
    "null",
    "5",
    "{}",
    '{"perplexity": [1]}',
    '{"perplexity": [["a"], [1]]}',
    f'{{"perplexity": [[1{"0" * 400}], [1]]}}',
]


@together(
    "content",
    [
        "name,score\nann,3\n",
        "[1]",
        '{"key": 1}',
        '{"values": {"perplexity": [[1.0], [2.0]]}}',
        '{"values": {"perplexity": [[1.0], [2.0]]}, "sha256": "0"}',
        '{"values"',
        "",
        *(f'{{"values": {v}}}' for v in FOREIGN if v != "{}"),
    ],
)
def test_a_file_that_is_no_result_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "theirs.json").write_text(content)
    with pytest.raises(DataError, match=r"theirs.json is not a result .*; move it away, or name another folder"):
        assert "theirs" in Kept(tmp_path)
    with pytest.raises(DataError, match="expected a folder of results"):
        Kept(tmp_path / "theirs.json")
    assert (tmp_path / "theirs.json").read_text() == content


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")  # to read it would wait for ever
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "link.json").symlink_to("nowhere")
    for name in ("pipe", "folder", "link"):
        with pytest.raises(DataError, match=rf"{name}.json is not a result \(it is not a file\)"):
            assert name in Kept(tmp_path)


def test_old_leftovers_of_results_are_removed_and_nothing_else(tmp_path: Path) -> None:
    key, long_ago = "0123456789abcdef" * 4, 1_000_000_000
    names = [f".{key}.json.01234567.partial", ".thesis.json.01234567.partial", f".{key}.json.01234567.partial.txt"]
    for name in names:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (long_ago, long_ago))
    Kept(tmp_path).prepare()
    assert {path.name for path in tmp_path.iterdir()} == {"settings.json", *names[1:]}


def test_several_processes_add_to_one_folder_and_a_kill_leaves_no_result(tmp_path: Path) -> None:
    one, other, counts = Kept(tmp_path), Kept(tmp_path), {"perplexity": [[1.0, None], [2, 2]]}
    one.add("a", counts)
    other.add("b", counts)
    (tmp_path / ".c.json.0123abcd.partial").write_text('{"values"')  # as a kill leaves it
    kept = Kept(tmp_path)
    assert "c" not in kept
    assert all(key in kept and kept[key] == counts for key in "ab")


def test_attention_windows_are_noted(tmp_path: Path) -> None:
    save_causal(tmp_path / "gpt")
    assert window_of({"attention_window": [64, 512]}) == 512
    assert window_of({"attention_window": None}) is window_of({}) is None
    windowed = replace(open_runnable(tmp_path / "gpt"), window=48)
    (note,) = windowed.notes_on((32, 48))
    assert "windows of 48 tokens" in note
    assert "at 32 it" in note


def test_a_name_is_the_end_of_a_path_that_no_other_has() -> None:
    assert short_names(["/a/b/x", "/a/c/x", "y", "a/y", "../z", ".", "/"]) == {
        **{"/a/b/x": "b/x", "/a/c/x": "c/x", "y": "y", "a/y": "a/y"},
        **{"../z": "z", ".": ".", "/": "/"},
    }
    assert short_names(["me/x", "/a/x", "/a/me/x"], hub=["me/x"]) == {
        **{"me/x": "me/x", "/a/x": "a/x", "/a/me/x": "a/me/x"}
    }


def test_a_second_call_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_causal(tmp_path / "gpt")
    new, text, results = longer(tmp_path / "gpt"), write_texts(tmp_path / "text"), tmp_path / "a" / "kept"
    loaded: list[str] = []
    load = Runnable.model
    monkeypatch.setattr(Runnable, "model", lambda self, device: loaded.append(self.name) or load(self, device))

    def call(*sources: Path, **arguments: object) -> Evaluation:
        return evaluate_checkpoints(
            sources, text, **{"lengths": (32, 128), "texts": 3, "device": "cpu", "results": results} | arguments
        )

    first = call(tmp_path / "gpt")
    assert loaded == ["gpt"]
    both = call(tmp_path / "gpt", new)
    assert loaded == ["gpt", new.name]
    assert both.rows[0] == first.rows[0]
    call(new, tmp_path / "gpt")
    assert len(loaded) == 2
    call(tmp_path / "gpt", texts=2)
    assert len(loaded) == 3
    assert len(list(results.glob("*.json"))) == 6 + 1  # and the settings


def test_changed_weights_are_measured_again(tmp_path: Path) -> None:
    save_causal(tmp_path / "gpt")
    before = open_runnable(tmp_path / "gpt").sha256
    assert open_runnable(tmp_path / "gpt").sha256 == before
    model = save_causal(tmp_path / "gpt")
    model.transformer.wpe.weight.data[0] += 1
    model.save_pretrained(tmp_path / "gpt")
    assert open_runnable(tmp_path / "gpt").sha256 != before


def test_outputs_that_are_not_finite_are_noted(tmp_path: Path) -> None:
    model = save_causal(tmp_path / "gpt")
    model.transformer.wpe.weight.data[40:] = float("nan")
    model.save_pretrained(tmp_path / "gpt")
    text = write_texts(tmp_path / "text")
    evaluation = evaluate_checkpoints([tmp_path / "gpt"], text, lengths=(32, 64), device="cpu", texts=2)
    assert by_text(evaluation.rows[0], "perplexity", 32) is not None
    assert by_text(evaluation.rows[0], "perplexity", 64) is None
    assert any("at 64 tokens, because outputs are not finite" in note for note in evaluation.notes)


def test_bad_input(tmp_path: Path) -> None:
    text = write_texts(tmp_path / "text")
    save_causal(tmp_path / "gpt")
    save_masked(tmp_path / "bert")
    with pytest.raises(ArgumentError, match="models of one kind"):
        evaluate_checkpoints([tmp_path / "gpt", tmp_path / "bert"], text)
    with pytest.raises(ArgumentError, match="named twice"):
        evaluate_checkpoints([tmp_path / "gpt", tmp_path / "gpt"], text)
    with pytest.raises(DataError, match="expected at least 1 text of 2,048 tokens"):
        evaluate_checkpoints([tmp_path / "gpt"], text)
    save_encoder(tmp_path / "encoder")
    with pytest.raises(DataError, match="expected at least 10 texts"):
        evaluate_checkpoints([tmp_path / "encoder"], write_texts(tmp_path / "few", number=9), lengths=(32,))
    with pytest.raises(ArgumentError, match="texts: expected at least 10 to evaluate a sentence encoder; got 9"):
        evaluate_checkpoints([tmp_path / "encoder"], text, texts=9, lengths=(32,))


NAN = float("nan")


@together(
    ("name", "given"),
    [
        *(("sources", given) for given in (3, None, b"gpt", [], [3], [None], NAN)),
        *(("text", given) for given in (3, None, b"text", [3], ["text", None], NAN)),
        *(("lengths", given) for given in (512, "32;64", b"  ", (), (8,), (32.5,), (True,), [NAN], NAN)),
        *(("texts", given) for given in (-1, 0, 1.5, True, "x", NAN)),
        *(("seed", given) for given in (1.5, True, "x", NAN, 2**64, -(2**63) - 1)),
        *(("device", given) for given in ("toaster", 1.5, ["cpu"], NAN)),
        *(("results", given) for given in (3, ["kept"], NAN)),
        *(("progress", given) for given in (3, None)),
    ],
)
def test_arguments_of_another_kind_are_refused(name: str, given: object) -> None:
    with pytest.raises(ArgumentError, match=f"^{name}: expected .*; got "):
        evaluate_checkpoints(**{"sources": ["gpt"], "text": "text", name: given})  # type: ignore[arg-type]


def test_a_model_that_sees_what_it_predicts_has_no_perplexity(tmp_path: Path) -> None:
    """The class of a decoder does not say so: a BERT is one only with is_decoder, and XLM with causal."""
    from transformers import (
        BertConfig,
        BertLMHeadModel,
        RobertaConfig,
        RobertaForCausalLM,
        XLMConfig,
        XLMWithLMHeadModel,
        XLNetConfig,
        XLNetLMHeadModel,
    )

    wide = {"emb_dim": 32, "n_layers": 1, "n_heads": 2, "max_position_embeddings": 64}
    models = {
        "bert": (BertLMHeadModel, BertConfig(**TEXT), False),
        "decoder": (BertLMHeadModel, BertConfig(**TEXT, is_decoder=True), True),
        "roberta": (RobertaForCausalLM, RobertaConfig(**TEXT), False),
        "xlnet": (XLNetLMHeadModel, XLNetConfig(vocab_size=60, d_model=32, n_layer=1, n_head=2, d_inner=16), False),
        "xlm": (XLMWithLMHeadModel, XLMConfig(vocab_size=60, causal=True, **wide), True),
    }
    for name, (kind, config, causal) in models.items():
        torch.manual_seed(0)
        kind(config).save_pretrained(tmp_path / name)
        runnable = open_runnable(tmp_path / name)
        assert runnable.kind == "causal"
        if causal:
            assert runnable.model("cpu").config.model_type == config.model_type
        else:
            with pytest.raises(CheckpointError, match="it sees the tokens that it predicts"):
                runnable.model("cpu")


def test_a_few_tokens_have_one_that_is_masked(tmp_path: Path) -> None:
    save_masked(tmp_path / "model")
    (tmp_path / "text.txt").write_text(" ".join(f"w{each}" for each in range(14)))
    for seed in range(20):
        found = evaluate_checkpoints([tmp_path / "model"], tmp_path / "text.txt", lengths=(16,), texts=1, seed=seed)
        assert found.frame()["value"].notna().all()


def test_the_encoder_of_a_t5_is_a_sentence_encoder(tmp_path: Path) -> None:
    from transformers import T5Config, T5EncoderModel

    save_encoder(tmp_path)
    for old in (tmp_path / "model.safetensors", tmp_path / "config.json"):
        old.unlink()
    model = T5EncoderModel(T5Config(vocab_size=100, d_model=32, d_kv=8, d_ff=16, num_layers=1, num_heads=2))
    model.save_pretrained(tmp_path)
    assert type(open_runnable(tmp_path).model("cpu")) is T5EncoderModel
    save_encoder(tmp_path / "own")
    config = json.loads((tmp_path / "own" / "config.json").read_text())
    (tmp_path / "own" / "config.json").write_text(json.dumps({**config, "architectures": ["MyEncoderModel"]}))
    assert type(open_runnable(tmp_path / "own").model("cpu")).__name__ == "BertModel"


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    headless = saved(tiny_model("bert", TEXT), tmp_path / "headless")
    with pytest.raises(CheckpointError, match="names BertModel; evaluate the checkpoint that has"):
        open_runnable(headless)
    with pytest.raises(CheckpointError, match="weights alone cannot be run"):
        open_runnable(headless / "model.safetensors")
    config = json.loads((headless / "config.json").read_text())
    (headless / "config.json").write_text(json.dumps({**config, "architectures": ["BertForMaskedLM"]}))
    with pytest.raises(CheckpointError, match="which would be random"):
        open_runnable(headless).model("cpu")
    with pytest.raises(CheckpointError, match="expected a tokenizer next to the weights"):
        open_runnable(headless).tokenizer()


@pytest.mark.parametrize(
    ("settings", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode": "max", "embedding_dimension": 32}, "max"),
    ],
)
def test_poolings(tmp_path: Path, settings: dict[str, object], pooling: str) -> None:
    save_encoder(tmp_path / "encoder", pooling=settings)
    assert open_runnable(tmp_path / "encoder").pooling == pooling


def test_modules_and_poolings_that_are_not_known_are_refused(tmp_path: Path) -> None:
    save_encoder(tmp_path / "a", pooling={"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True})
    with pytest.raises(CheckpointError, match=r"pools by \['cls', 'mean'\]"):
        open_runnable(tmp_path / "a")
    save_encoder(tmp_path / "c", pooling={"pooling_mode_mean_tokens": False, "pooling_mode_mean_sqrt_len_tokens": True})
    with pytest.raises(CheckpointError, match="pools by mean_sqrt_len"):
        open_runnable(tmp_path / "c")
    save_encoder(tmp_path / "b")
    modules = json.loads((tmp_path / "b" / "modules.json").read_text())
    (tmp_path / "b" / "modules.json").write_text(json.dumps([*modules[:2], {**modules[2], "path": "../a"}]))
    with pytest.raises(CheckpointError, match=r"expected only subfolders; got '\.\./a'"):
        open_runnable(tmp_path / "b")
    dense = {"path": "3_Dense", "type": "sentence_transformers.models.Dense"}
    (tmp_path / "b" / "modules.json").write_text(json.dumps([*modules, dense]))
    with pytest.raises(CheckpointError, match="the module Dense"):
        open_runnable(tmp_path / "b")


def test_settings_of_sentence_transformers_that_change_vectors(tmp_path: Path) -> None:
    """Lower case is followed, another comparison is said, and prompts outside the mean are refused."""
    save_encoder(tmp_path, pooling={"embedding_dimension": 32, "pooling_mode": "mean", "include_prompt": False})
    assert open_runnable(tmp_path).tokenizer().encode("W1") != open_runnable(tmp_path).tokenizer().encode("w1")
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64, "do_lower_case": True}))
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"similarity_fn_name": "dot"}))
    runnable = open_runnable(tmp_path)
    tokenizer = runnable.tokenizer()
    assert tokenizer.encode("W1 w2") == tokenizer.encode("w1 w2")
    assert any("comparing by dot" in note for note in runnable.notes_on([64]))
    assert Prompt.of(runnable, tokenizer, ["query"]).text == ""
    with pytest.raises(CheckpointError, match="leaves the prompt 'find ' out of its vectors"):
        Prompt.of(runnable, tokenizer, ["query"], "find ")
