"""The token streams: what is asked is what is written, and the answer is Python's own."""

from __future__ import annotations

import dataclasses
import random
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posembed.lab.questions.problems import Problem
from posembed.lab.tasks.problem_texts import ALPHABET, FILLER, PROBLEMS, addition_written_forwards
from posembed.lab.tasks.problems import IDS, encode, ids_of, moved

drawn = given(size=st.integers(1, 45), seed=st.integers(0, 2**32))


def texts(name: str, size: int, seed: int) -> tuple[str, str]:
    """What stands between the start and the equals sign, and what before the end."""
    question, answer = PROBLEMS[name].write(size, random.Random(seed))
    assert (question[0], question[-1], answer[-1]) == ("^", "=", "$")
    assert set(question + answer) <= set(ALPHABET) - {"_"}
    return question[1:-1], answer[:-1]


@drawn
def test_addition_is_pythons_sum(size: int, seed: int) -> None:
    question, answer = texts("addition", size, seed)
    first, second = (number[::-1] for number in question.split("+"))
    assert len(str(int(first))) <= size
    assert (len(first), len(second), len(answer)) == (size + 1, size + 1, size + 1)
    assert first[0] == second[0] == "0"  # before each number, so that the sum has no digit of its own
    assert int(answer[::-1]) == int(first) + int(second)
    forwards = addition_written_forwards(size, random.Random(seed))
    assert forwards == (f"^{first}+{second}=", answer + "$")


@drawn
def test_copy_reverse_sorting_and_parity_are_pythons(size: int, seed: int) -> None:
    for name, solve in (
        ("copy", lambda asked: asked),
        ("reverse", lambda asked: asked[::-1]),
        ("sorting", lambda asked: "".join(sorted(asked))),
        ("parity", lambda asked: str(sum(map(int, asked)) % 2)),
    ):
        question, answer = texts(name, size, seed)
        assert len(question) == size
        assert answer == solve(question)


@drawn
def test_the_passkey_stands_once_in_its_text(size: int, seed: int) -> None:
    question, answer = texts("passkey", size, seed)
    before, key, after = question.split("#")
    assert key == answer
    assert len(key) == 5
    assert key.isdigit()
    assert len(before + after) == size
    assert before + after in FILLER * (size // len(FILLER) + 2)


def test_every_place_of_the_text_may_hide_the_key() -> None:
    places = {texts("passkey", 3, seed)[0].index("#") for seed in range(100)}
    assert places == {0, 1, 2, 3}


def states(name: str, text: str) -> list[str]:
    """The bit written last before each instruction, by search; or the place of the ball, by moving the cups."""
    instructions = re.findall(r"[wsir][0-5]", text)
    assert "".join(instructions) == text
    found, row = [], [""] * 5
    for letter, value in instructions:
        if name == "tracking":
            place = int(value) - 1
            if letter == "w":
                row[place] = "ball"
            elif letter == "s":
                row[place], row[(place + 1) % 5] = row[(place + 1) % 5], row[place]
            found.append(str(row.index("ball") + 1))
        else:
            found.append(re.findall(r"w([01])", text[: 2 * len(found) + 2])[-1])
    return found


def written(name: str, tail: str, size: int, draw: random.Random) -> tuple[str, ...]:
    problem = PROBLEMS[name]
    return (problem.tails[tail] if tail else problem.write)(size, draw)


@given(
    name=st.sampled_from(["flip-flop", "tracking"]),
    tail=st.sampled_from(["", "sparse", "dense"]),
    size=st.integers(1, 60),
    seed=st.integers(0, 2**32),
)
def test_every_read_is_what_the_automaton_holds(name: str, tail: str, size: int, seed: int) -> None:
    pieces = written(name, tail, size, random.Random(seed))
    text = "".join(pieces)
    assert len(text) == 2 * max(size, 2)
    assert (text[0], text[-2]) == ("w", "r")
    held = states(name, text)
    assert pieces[1::2] == tuple(held[place] for place, letter in enumerate(text[::2]) if letter == "r")
    assert all(piece[-1] == "r" and "r" not in piece[:-1] for piece in pieces[::2])
    assert pieces == written(name, tail, size, random.Random(seed))


@pytest.mark.parametrize(
    ("name", "tail", "shares"),
    [
        # arXiv:2306.00946, as in its published data: FFL(.8), FFL(.98) and FFL(.1), 512 tokens.
        ("flip-flop", "", {"w": 0.1, "i": 0.8, "r": 0.1}),
        ("flip-flop", "sparse", {"w": 0.01, "i": 0.98, "r": 0.01}),
        ("flip-flop", "dense", {"w": 0.45, "i": 0.1, "r": 0.45}),
        ("tracking", "", {"s": 0.8, "r": 0.2}),
        ("tracking", "sparse", {"s": 0.98, "r": 0.02}),
        ("tracking", "dense", {"s": 0.5, "r": 0.5}),
    ],
)
def test_instructions_are_as_frequent_as_published(name: str, tail: str, shares: dict[str, float]) -> None:
    draw, letters, values = random.Random(0), "", ""
    for _ in range(200):
        text = "".join(written(name, tail, 256, draw))
        assert len(text) == 512
        letters += text[2:-2:2]
        values += "".join(value for letter, value in zip(text[::2], text[1::2], strict=True) if letter != "r")
    assert set(letters) == set(shares)
    alphabet = "01" if name == "flip-flop" else "12345"
    for counted, symbol, share in (
        *((letters, letter, share) for letter, share in shares.items()),
        *((values, value, 1 / len(alphabet)) for value in alphabet),
    ):
        error = (share * (1 - share) / len(counted)) ** 0.5
        assert abs(counted.count(symbol) / len(counted) - share) < 4 * error, symbol


@given(seed=st.integers(0, 2**32), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_what_is_encoded_can_be_decoded(seed: int, sizes: list[int]) -> None:
    draw = random.Random(seed)
    problems = [PROBLEMS[name].write(size, draw) for size in sizes for name in ("addition", "flip-flop", "tracking")]
    ids, answers = encode(problems, 40)
    assert ids.shape == (3 * len(sizes), 40)
    for row, counted, pieces in zip(ids, answers, problems, strict=True):
        assert "".join(ALPHABET[token] for token in row) == "".join(pieces).ljust(40, "_")
        assert "".join(ALPHABET[token] for token in row[1:][counted == 1]) == "".join(pieces[1::2])


def tokens(text: str) -> torch.Tensor:
    return torch.tensor([[ALPHABET.index(character) for character in text]])


def test_abacus_ids_count_from_a_numbers_first_digit() -> None:
    # Figure 2 of arXiv:2405.17399 restarts at each number.
    assert ids_of("abacus", tokens("^356+94=405$")).tolist() == [[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 0]]


def test_coupled_ids_are_those_of_the_paper() -> None:
    # The example of arXiv:2405.20671, whose ids go the other way; but the start, there 0, is one digit more.
    ids = ids_of("coupled", tokens("^653+049=2070$"))
    assert ids.tolist() == [[5, 4, 3, 2, 1, 4, 3, 2, 1, 2, 3, 4, 5, 0]]


@pytest.mark.parametrize("name", IDS)
def test_the_table_has_a_row_for_every_id_drawn_and_every_id_tested(name: str) -> None:
    trained, tested = 4, 9
    addition = Problem("addition")
    task, shared = addition.prepare(addition.settings(None, {"train_size": trained, "test_sizes": (tested,)}))
    spec = dataclasses.replace(shared, encoding=name)
    rows = task.encoding(spec).max_len
    write = addition_written_forwards if name == "coupled" else PROBLEMS["addition"].write
    longest = ids_of(name, tokens("".join(write(trained, random.Random(0)))))
    generator = torch.Generator().manual_seed(0)
    seen: set[int] = set()
    for _ in range(500):
        seen |= set(moved(longest, tested, generator)[0].flatten().tolist())
    assert max(seen) < rows
    asked = ids_of(name, tokens("".join(write(tested, random.Random(0)))))
    assert set(asked.flatten().tolist()) <= seen


@given(seed=st.integers(0, 2**32), size=st.integers(1, 12), latest=st.integers(0, 30))
def test_ids_are_moved_in_two_parts_with_one_gap_between(seed: int, size: int, latest: int) -> None:
    question, answer = addition_written_forwards(size, random.Random(seed))
    ids = ids_of("coupled", tokens(question + answer)).repeat(6, 1)
    drawn, before_gap = moved(ids, latest, torch.Generator().manual_seed(seed))
    for old, new, gap in zip(ids.tolist(), drawn.tolist(), before_gap.tolist(), strict=True):
        by = {before: after - before for before, after in zip(old, new, strict=True) if before}
        assert all(after == 0 for before, after in zip(old, new, strict=True) if not before)
        assert all(after == before + by[before] for before, after in zip(old, new, strict=True) if before)
        shifts = [by[place] for place in sorted(by)]
        assert shifts == sorted(shifts)
        assert len(set(shifts)) <= 2
        assert 0 <= shifts[0] <= shifts[-1] <= latest
        # In the answer, which goes up by one, the token before the gap is the one whose next is moved by more.
        first = question.index("=")
        for place in range(first, len(old) - 2):
            assert gap[place] or new[place + 1] == new[place] + 1


def test_digits_that_belong_together_share_an_id() -> None:
    question, answer = PROBLEMS["reverse"].write(6, random.Random(1))
    ids = ids_of("coupled", tokens(question + answer))[0].tolist()
    assert ids[1:7] == ids[8:14][::-1]
    question, answer = PROBLEMS["copy"].write(6, random.Random(1))
    ids = ids_of("abacus", tokens(question + answer))[0].tolist()
    assert ids[1:7] == ids[8:14]
