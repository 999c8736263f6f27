"""JSON of any size and with any character; one value is replaced and every other byte stays."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import posembed
from posembed.errors import CheckpointError
from posembed.modelfiles.json_files import LargeJson, json_text, read_json
from tiny_models import TEXT, saved, tiny_model
from together import together

SURROGATE = "a\ud800b"
TEXTS = st.text(st.characters(exclude_categories=()), max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100)
@given(before=st.dictionaries(TEXTS, VALUES, max_size=3), after=st.dictionaries(TEXTS, VALUES, max_size=3),
       indent=st.sampled_from([None, 2]), length=st.integers(1, 10**6))  # fmt: skip
def test_one_value_is_replaced(
    before: dict[str, Any],
    after: dict[str, Any],
    indent: int | None,
    length: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("json") / "tokenizer.json"
    inner = {**before, "max_length": 16, "stride": 0}
    value = {**before, "truncation": inner, **{key: v for key, v in after.items() if key != "truncation"}}
    text = json.dumps(value, indent=indent)
    path.write_text(text)
    assert LargeJson(path).get("truncation", "max_length") == 16
    assert LargeJson(path).get("truncation", "no", "such") is None
    large = LargeJson(path)
    large.replace("truncation", "max_length", value=length)
    value["truncation"]["max_length"] = length
    assert large.text == json.dumps(value, indent=indent)


@together("text", ["", "[]", "3", "{", '{"a"', '{"a":', '{"a": 1,, }', '{"a": nothing}', "\0", "{3: 4}"])
def test_what_is_no_json_object_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"a\.json: not JSON"):
        LargeJson(tmp_path / "a.json").get("truncation")


@together("text", ['{"a": 1, "a": 1}', '{"b": [{"a": 1, "c": 2, "a": 3}]}'])
def test_a_name_that_is_there_twice_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"a\.json: not JSON \(a name is repeated\)"):
        read_json(tmp_path / "a.json")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{"a": "\xff"}')
    for read in (read_json, lambda path: LargeJson(path).get("b")):
        with pytest.raises(CheckpointError, match=r"a\.json: not JSON"):
            read(tmp_path / "a.json")


def test_a_large_vocabulary_is_neither_refused_nor_parsed(tmp_path: Path) -> None:
    source = saved(tiny_model("bert", TEXT), tmp_path / "source")
    vocabulary = f'"token {"1234567" * 350}":1234567,' * 15_000 + '"":0'
    head = '{"version":"1.0","truncation":{"max_length":40},"model":{"vocab":{'
    (source / "tokenizer.json").write_text(head + vocabulary + "}}}")
    assert (source / "tokenizer.json").stat().st_size > 35_000_000
    del vocabulary
    tracemalloc.start()
    posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * 10**8
    before, after = ((tmp_path / name / "tokenizer.json").read_bytes() for name in ("source", "out"))
    assert after == before.replace(b'"max_length":40', b'"max_length":64')


def test_lone_surrogates_and_bytes_that_are_no_text_stay(tmp_path: Path) -> None:
    """In settings, in names, in a model card: what went in comes out, and what is written can be read."""
    source = saved(tiny_model("bert", TEXT), tmp_path / "a\udcffb")
    for name in ("tokenizer_config.json", "generation_config.json"):
        (source / name).write_text(json.dumps({"model_max_length": 40, "max_length": 40, SURROGATE: SURROGATE}))
    config = {**read_json(source / "config.json"), "name": SURROGATE}
    (source / "config.json").write_text(json.dumps(config))
    (source / "tokenizer.json").write_text(json.dumps({"truncation": {"max_length": 1}, "vocab": SURROGATE}))
    (source / "README.md").write_bytes(b"caf\xe9\r\n")
    posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    out = tmp_path / "out"
    for name in ("tokenizer_config.json", "generation_config.json"):
        assert read_json(out / name) == {"model_max_length": 64, "max_length": 64, SURROGATE: SURROGATE} | (
            {"max_length": 40} if name == "tokenizer_config.json" else {"model_max_length": 40}
        )
    assert read_json(out / "config.json")["name"] == SURROGATE
    assert read_json(out / "tokenizer.json") == {"truncation": {"max_length": 64}, "vocab": SURROGATE}
    assert (out / "README.md").read_bytes().startswith(b"caf\xe9\r\n\n## Position table")
    assert read_json(out / "posembed.json")["resizes"][0]["source"] == "a\\udcffb"


@given(VALUES)
@settings(max_examples=100)
def test_json_text_is_utf8_and_the_same_value(value: Any) -> None:
    for one_line in (True, False):
        assert json.loads(json_text(value, one_line=one_line).encode()) == value
