"""Questions whose answers are spans of a context, from SQuAD's files or generated, and the metrics of answers."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posembed.errors import DataError
from posembed.lab.data.labelled import LONE_SURROGATE, Examples, examples_of, split_parts
from posembed.lab.data.sentences import different, question_about_facts
from posembed.lab.data.tables import Row, Table, named, read_tables
from posembed.lab.data.text import same_words

GENERATED = 6000
"""The number of generated questions."""
COLUMNS = ("context", "question", "answer", "answer_start")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about a context. answers: pairs (text, index of its first character in the context); training uses the
    first pair. document: the context's title, or the context itself; the same for all questions about a context."""

    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    document: str


def load_answered(data: str = "generated", *, test_data: str | None = None) -> Examples[Asked]:
    """Reads and splits questions with answers.

    Args:
        data: "generated" (about who gave or got which thing), a .json file in SQuAD's format, a .jsonl, .csv or .tsv
            file with the columns context, question, answer and answer_start (or SQuAD's answers), "hf:NAME[:CONFIG]",
            "squad" (the hub's version) or "squad:FOLDER" (train-v1.1.json and dev-v1.1.json). Questions without an
            answer are skipped.
        test_data: a file with the held-out questions. Nothing else is then held out.

    Raises:
        DataError: the data cannot be read or lacks these columns, or a context lacks its answer at answer_start.
    """
    skipped = 0
    if data == "generated":
        if test_data:
            raise DataError(
                "generated questions have a held-out part of their own; give --test-data with a --data file"
            )
        made = different(GENERATED, question_about_facts)
        parts = [[Asked(question, context, ((text, at),), context) for question, context, text, at in made]]
        about = "generated questions"
    else:
        if named(data) is not None and data.partition(":")[0] != "squad":
            raise DataError(f"{data} has labels, not answers; give it to posembed compare tasks text")
        tables, about = read_tables(data, test_data, read_json=_squad)
        read = [_questions(table) for table in tables]
        parts, skipped = [part for part, _ in read], sum(count for _, count in read)
    for part in parts:
        if not part:
            raise DataError(f"{about} has no question with an answer")
    parts = [_one_document_per_context(part) for part in parts]
    kept, held_out, left_out = split_parts(parts, lambda a: same_words(a.context), name=about, one="title or context")
    return examples_of(
        kept,
        held_out,
        lambda a: (a.document, a.question, a.context, *(f"{text} {start}" for text, start in a.answers)),
        about=f"{about}:",
        kind="questions",
        left_out=left_out,
        others="on {:,} other contexts or titles",
        more=f", {skipped:,} without an answer skipped" * bool(skipped),
    )


def _squad(text: str, path: Path) -> Iterator[Row]:
    """Yields one row for each question of a file in SQuAD's format (Rajpurkar et al. 2016, arXiv:1606.05250)."""
    try:
        articles, number = json.loads(text)["data"], 0
        for article in articles:
            for paragraph in article["paragraphs"]:
                for asked in paragraph["qas"]:
                    number += 1
                    yield number, {"title": article.get("title"), "context": paragraph["context"], **asked}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} is not in SQuAD's format ({type(error).__name__}: {error}); expected "
            '{"data": [{"title", "paragraphs": [{"context", "qas": [{"question", "answers": [{"text", '
            '"answer_start"}]}]}]}]}'
        ) from error


def _questions(table: Table) -> tuple[list[Asked], int]:
    """Returns the questions of a table that have an answer, and the number of those that have none."""
    wanted = COLUMNS[:2] + (("answers",) if "answers" in table.columns else COLUMNS[2:])
    for column in wanted:
        if column not in table.columns:
            raise DataError(
                f"{table.name} has no column named {column!r}; expected {', '.join(COLUMNS)} (or answers, as in "
                f"SQuAD); it has {', '.join(table.columns)}"
            )
    found, skipped = [], 0
    for number, row in table.rows:
        where = f"question {number} of {table.name}"
        question, context, title = row.get("question"), row.get("context"), row.get("title")
        for column, text in (("question", question), ("context", context)):
            if not isinstance(text, str) or not text.strip() or LONE_SURROGATE.search(text):
                raise DataError(f"{where} has no {column}: it holds {text!r:.60}; expected text")
        assert isinstance(question, str)
        assert isinstance(context, str)
        answers = tuple(dict.fromkeys(_answers(row, context, where)))
        if answers:
            document = title if isinstance(title, str) and title.strip() else same_words(context)
            found.append(Asked(question, context, answers, document))
        else:
            skipped += 1
    return found, skipped


def _one_document_per_context(questions: Sequence[Asked]) -> list[Asked]:
    """Gives all questions about a context the document of the first of them, so that a split keeps them together."""
    contexts = [same_words(asked.context) for asked in questions]
    first = {context: asked.document for context, asked in zip(reversed(contexts), reversed(questions), strict=True)}
    return [replace(asked, document=first[context]) for context, asked in zip(contexts, questions, strict=True)]


def _answers(row: Mapping[str, Any], context: str, where: str) -> Iterator[tuple[str, int]]:
    """Yields the answers of a row. Raises DataError for an answer that is not in the context at its start."""
    given = row.get("answers")
    if isinstance(given, Mapping):  # the hub's form: lists of texts and of starts
        texts, starts = given.get("text"), given.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise DataError(
                f"{where}: expected answers with lists of text and answer_start of one length; got {given!r:.80}"
            )
        pairs = list(zip(texts, starts, strict=True))
    elif isinstance(given, list):
        pairs = [
            (each.get("text"), each.get("answer_start")) if isinstance(each, Mapping) else (each, None)
            for each in given
        ]
    elif given is not None:
        raise DataError(
            f"{where}: expected answers as a list, got {given!r:.80}; a .csv or .tsv file has the columns answer and "
            "answer_start instead"
        )
    else:
        answer = row.get("answer")
        nothing = not answer and (answer is False or not isinstance(answer, int | float))  # 0 is no text
        pairs = [] if nothing else [(answer, row.get("answer_start"))]
    for text, start in pairs:
        at = int(start) if isinstance(start, str) and start.strip().isdecimal() else start
        if not isinstance(text, str) or not isinstance(at, int) or isinstance(at, bool):
            raise DataError(
                f"{where}: expected an answer's text and the index of its first character; got {(text, start)!r:.80}"
            )
        if not text.strip() or at < 0 or context[at : at + len(text)] != text:
            raise DataError(
                f"{where}: expected the answer {text!r:.60} at character {at} of its context, found "
                f"{context[max(at, 0) :][: len(text)]!r:.60}; correct answer_start, which counts characters from 0"
            )
        yield text, at


# --- scores ------------------------------------------------------------------------------------------------------

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> str:
    """Returns an answer as SQuAD compares it: in lower case, without ASCII punctuation and articles, and with single
    spaces.

    >>> normalised("The  U.S. Army!")
    'us army'
    """
    return " ".join(ARTICLES.sub(" ", answer.lower().translate(PUNCTUATION)).split())


def exact_match(answer: str, references: Iterable[str]) -> bool:
    """Whether the normalised answer equals a normalised reference, as in SQuAD's evaluation script (version 1.1)."""
    return any(normalised(answer) == normalised(reference) for reference in references)


def f1_score(answer: str, references: Iterable[str]) -> float:
    """Returns the F1 score of the words of an answer, the best over the references, as in SQuAD's evaluation script
    (version 1.1). It compares the normalised texts as bags of words; no common word gives 0."""
    return max(_f1(normalised(answer).split(), normalised(reference).split()) for reference in references)


def _f1(answer: list[str], reference: list[str]) -> float:
    common = sum((Counter(answer) & Counter(reference)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(answer), common / len(reference)
    return 2 * precision * recall / (precision + recall)
