"""Questions with answers: SQuAD's files and tables, and its scores against the script's own text."""

from __future__ import annotations

import collections
import json
import re
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posembed.errors import DataError
from posembed.lab.data.answered import exact_match, f1_score, load_answered
from published_files import paragraph, write_squad
from together import together

# --- the functions of SQuAD's evaluate-v1.1.py (Rajpurkar et al. 2016) -----------------------------------------


def normalize_answer(s):
    def remove_articles(text):
        return re.sub(r"\b(a|an|the)\b", " ", text)

    def white_space_fix(text):
        return " ".join(text.split())

    def remove_punc(text):
        exclude = set(string.punctuation)
        return "".join(ch for ch in text if ch not in exclude)

    def lower(text):
        return text.lower()

    return white_space_fix(remove_articles(remove_punc(lower(s))))


def squad_f1(prediction, ground_truth):
    prediction_tokens = normalize_answer(prediction).split()
    ground_truth_tokens = normalize_answer(ground_truth).split()
    common = collections.Counter(prediction_tokens) & collections.Counter(ground_truth_tokens)
    num_same = sum(common.values())
    if num_same == 0:
        return 0
    precision = 1.0 * num_same / len(prediction_tokens)
    recall = 1.0 * num_same / len(ground_truth_tokens)
    return (2 * precision * recall) / (precision + recall)


WORDS = st.lists(
    st.sampled_from(["the", "The", "a", "an", "U.S.", "army", "army,", "-", "theatre", "Ä", "«x»", " ", "\t", "1.5"]),
    max_size=6,
).map(" ".join)


@settings(max_examples=100)
@given(answer=WORDS, references=st.lists(WORDS, min_size=1, max_size=3))
def test_scores_are_those_of_the_script(answer: str, references: list[str]) -> None:
    assert f1_score(answer, references) == max(squad_f1(answer, each) for each in references)
    assert exact_match(answer, references) == any(normalize_answer(answer) == normalize_answer(r) for r in references)


# --- files -------------------------------------------------------------------------------------------------------


def test_the_files_of_squad(tmp_path: Path) -> None:
    write_squad(tmp_path)
    there = load_answered(f"squad:{tmp_path}")
    assert (len(there.train), len(there.held_out)) == (8, 8)
    assert there.train[3].answers == (("Óscar 3", 13), ("Ana", 29))
    assert {a.document for a in there.held_out} == {f"dev {n}" for n in range(4)}
    both = load_answered(str(tmp_path / "train-v1.1.json"), test_data=str(tmp_path / "dev-v1.1.json"))
    assert both.sha256 == there.sha256
    alone = load_answered(str(tmp_path / "train-v1.1.json"))
    assert not {a.document for a in alone.train} & {a.document for a in alone.held_out}
    assert len(alone.held_out) == 2  # one article


def test_the_same_questions_from_tables(tmp_path: Path) -> None:
    write_squad(tmp_path)
    rows = []
    for i in range(8):
        one = paragraph(i)
        asked = one["qas"][0]
        rows.append({"title": f"train {i // 2}", "context": one["context"], "question": asked["question"], **asked})
    flat = [{**row, "answers": row["answers"][:1]} for row in rows]
    (tmp_path / "lists.jsonl").write_text("\n".join(map(json.dumps, flat)))
    hub = [
        {**row, "answers": {key: [a[key] for a in row["answers"]] for key in ("text", "answer_start")}} for row in flat
    ]
    (tmp_path / "hub.jsonl").write_text("\n".join(map(json.dumps, hub)))
    (tmp_path / "flat.tsv").write_text(
        "title\tcontext\tquestion\tanswer\tanswer_start\n"
        + "".join(
            f"{row['title']}\t{row['context']}\t{row['question']}\t{row['answers'][0]['text']}\t"
            f"{row['answers'][0]['answer_start']}\n"
            for row in rows
        )
    )
    hashes = {load_answered(str(tmp_path / name)).sha256 for name in ("lists.jsonl", "hub.jsonl", "flat.tsv")}
    assert len(hashes) == 1


def test_questions_without_an_answer_are_counted(tmp_path: Path) -> None:
    data = [{"title": str(i), "paragraphs": [paragraph(i, answers=i != 2)]} for i in range(6)]
    (tmp_path / "a.json").write_text(json.dumps({"data": data}))
    assert "1 without an answer skipped" in load_answered(str(tmp_path / "a.json")).description


ROW = {"context": "the cat sat", "question": "who?", "answer": "cat", "answer_start": 4}


@together(
    ("row", "message"),
    [
        (
            {"answer_start": 3},
            "question 3 of a.jsonl: expected the answer 'cat' at character 3 .*, found ' ca'; correct",
        ),
        ({"answer_start": -7}, "expected the answer 'cat' at character -7"),
        ({"answer_start": "first"}, "the index of its first character; got"),
        ({"answer_start": None}, "the index of its first character; got"),
        ({"answer": 4}, "expected an answer's text"),
        ({"answer": 0}, "expected an answer's text"),
        ({"answer": 0.0}, "expected an answer's text"),
        ({"context": ""}, "question 3 of a.jsonl has no context: it holds ''; expected text"),
        ({"question": 7}, "has no question: it holds 7"),
        ({"answers": ["cat"]}, "the index of its first character; got"),
    ],
)
def test_bad_rows(row: dict, message: str, tmp_path: Path) -> None:
    good = [ROW, {**ROW, "context": "the cat ran"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, [*good, ROW | row])))
    with pytest.raises(DataError, match=message):
        load_answered(str(tmp_path / "a.jsonl"))


def test_bad_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"data": [{"paragraphs": [{"qas": [{}]}]}]}')
    with pytest.raises(DataError, match="is not in SQuAD's format"):
        load_answered(str(tmp_path / "a.json"))
    (tmp_path / "b.csv").write_text("context,question\nx,y\n")
    with pytest.raises(DataError, match="has no column named 'answer'; expected context, question, answer"):
        load_answered(str(tmp_path / "b.csv"))
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, [ROW, {**ROW, "question": "what?"}])))
    with pytest.raises(DataError, match="has one title or context"):
        load_answered(str(tmp_path / "c.jsonl"))
    with pytest.raises(DataError, match=r"should end in \.csv, \.tsv, \.jsonl or \.json"):
        load_answered(str(tmp_path / "d.txt"))
    with pytest.raises(DataError, match="mnli has labels, not answers; give it to posembed compare tasks text"):
        load_answered("mnli")


def asked(number: int, title: str | None, **answers: object) -> dict:
    row = {"context": f"{number} in Peru", "question": "where?", "answer": "Peru", "answer_start": len(f"{number} in ")}
    return row | ({} if title is None else {"title": title}) | answers


def as_lines(rows: list[dict], path: Path) -> str:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("title", "test_title"), [(None, "t"), ("t", None), ("t", "u"), (None, None), ("t", "t")], ids=str
)
def test_no_context_is_on_both_sides(title: str | None, test_title: str | None, tmp_path: Path) -> None:
    def rows(which: str | None, numbers: range) -> list[dict]:
        return [asked(number, which and f"{which}{number + at}") for number in numbers for at in range(3)]

    train = as_lines(rows(title, range(8)), tmp_path / "a.jsonl")
    test = as_lines(rows(test_title, range(6, 10)), tmp_path / "b.jsonl")
    for data in (load_answered(train, test_data=test), load_answered(train), load_answered(test)):
        assert data.train
        assert data.held_out
        assert not {each.context for each in data.train} & {each.context for each in data.held_out}
    data = load_answered(train, test_data=test)
    assert (len(data.train), len(data.held_out)) == (18, 12)
    assert "6 more left out" in data.description


def test_a_given_split_keeps_other_contexts_with_a_held_out_title(tmp_path: Path) -> None:
    train, test = ([asked(number, "same") for number in numbers] for numbers in (range(4), range(4, 6)))
    data = load_answered(as_lines(train, tmp_path / "a.jsonl"), test_data=as_lines(test, tmp_path / "b.jsonl"))
    assert (len(data.train), len(data.held_out)) == (4, 2)


@pytest.mark.parametrize(
    "answers",
    [
        {"text": "Peru", "answer_start": [5]},
        {"text": "Peru", "answer_start": 5},
        {"text": ["Peru", "in"], "answer_start": [5]},
        {"text": ["Peru"]},
        "{'text': ['Peru'], 'answer_start': [5]}",
    ],
    ids=str,
)
def test_answers_in_another_form(answers: object, tmp_path: Path) -> None:
    file = as_lines([asked(number, None, answers=answers) for number in range(4)], tmp_path / "a.jsonl")
    with pytest.raises(DataError, match=r"question 1 of .*: expected answers"):
        load_answered(file)
