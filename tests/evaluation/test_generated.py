"""Generated tasks: one fact per document, the same facts at every length, and documents that fill the length."""

from __future__ import annotations

import pytest

from posembed.errors import ArgumentError
from posembed.evaluation.generated import DATA, GENERATED, generate


def count(text: str) -> int:
    """Words, and two special tokens."""
    return len(text.split()) + 2


@pytest.mark.parametrize("task", GENERATED)
@pytest.mark.parametrize("length", [32, 256, 1500])
def test_each_fact_is_in_one_document_that_fills_the_length(task: str, length: int) -> None:
    made = generate(task, length=length, documents=40, seed=3, count=count)
    shorter = generate(task, length=30, documents=40, seed=3, count=count)
    assert (len(made.documents), len(made.queries)) == (40, 20)
    assert (made.queries, made.judged) == (shorter.queries, shorter.judged)
    longest = max(count(sentence) for sentence in GENERATED[task].filler)
    for name, text in made.documents.items():
        assert length - longest < count(text) <= length
        (fact,) = {sentence for sentence in facts_of(task, shorter.documents[name]) if sentence in text}
        assert sum(fact in other for other in made.documents.values()) == 1


@pytest.mark.parametrize("task", GENERATED)
@pytest.mark.parametrize("joined", [0, 1, -1])
def test_joining_costs_tokens_too(task: str, joined: int) -> None:
    """A tokenizer of characters counts the spaces; one of bytes may have fewer tokens behind a space."""

    def counted(text: str) -> int:
        return len(text.replace(" ", "")) // 4 + max(0, 1 + joined) * text.count(" ") + 2

    for length in (256, 1024):
        made = generate(task, length=length, documents=40, seed=3, count=counted)
        sizes = [counted(text) for text in made.documents.values()]
        assert 0.8 * length < min(sizes)
        assert max(sizes) <= length


def facts_of(task: str, text: str) -> list[str]:
    """What is left of a text without its filler."""
    for sentence in GENERATED[task].filler:
        text = text.replace(sentence, "")
    return [text.strip()]


@pytest.mark.parametrize("task", GENERATED)
def test_facts_are_spread_over_the_documents(task: str) -> None:
    made = generate(task, length=400, documents=100, seed=0, count=count)
    places = []
    for text in made.documents.values():
        (fact,) = facts_of(task, text)
        places.append(text.index(fact) / (len(text) - len(fact)))
    for quarter in range(4):
        assert 10 <= sum(quarter / 4 <= place < (quarter + 1) / 4 for place in places) <= 45
    assert min(places) < 0.05
    assert max(places) > 0.95


@pytest.mark.parametrize("task", GENERATED)
def test_a_seed_decides_everything(task: str) -> None:
    how = {"length": 100, "documents": 10, "count": count}
    assert generate(task, seed=1, **how) == generate(task, seed=1, **how)
    assert generate(task, seed=1, **how) != generate(task, seed=2, **how)


def test_a_query_names_the_city_of_its_document() -> None:
    made = generate("needle", length=60, documents=120, seed=0, count=count)
    assert len(set(made.queries.values())) == 60
    for (query, asked), text in zip(made.queries.items(), made.documents.values(), strict=False):
        (city,) = {city for city in DATA["cities"] if city in asked}
        assert city in text, query


def test_too_many_documents_and_too_short_lengths_are_refused() -> None:
    with pytest.raises(ArgumentError, match="at most 120 documents; got 121"):
        generate("needle", length=64, documents=121, seed=0, count=count)
    with pytest.raises(ArgumentError, match=r"the facts of the task passkey have up to [0-9]+ tokens; got 10"):
        generate("passkey", length=10, documents=10, seed=0, count=count)
