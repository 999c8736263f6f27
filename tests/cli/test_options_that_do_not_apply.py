"""An option of another kind of model, of data or of training is an error that says what it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from evaluated_models import save_causal, save_encoder, save_masked, write_collection, write_texts
from posembed.cli import app
from posembed.evaluation import settings as evaluation
from posembed.settings import Part, options
from posembed.tuning import settings as tuning
from tuning.test_images import save_image_model, write_images

VALUES = {"ways": "mean", "split": "test", "query_prompt": "w1 ", "document_prompt": "w1 ", "held_out": "0.5"}
"""A value of each option that takes no 24."""


def test_only_what_is_required_says_so() -> None:
    def found(command: click.Command, *path: str) -> Iterator[str]:
        for name, inner in getattr(command, "commands", {}).items():
            yield from found(inner, *path, name)
        for each in command.params:
            if isinstance(each, click.Option) and "required" in str(each.help).split("[dim]")[-1]:
                yield " ".join([*path, each.opts[0]])

    assert set(found(app)) == {
        *("resize --table", "evaluate --text"),  # as a sentence
        *("tune --length", "tune --image-size", "advise --length"),
    }


class Situation(NamedTuple):
    """A command without special options, and the parts that apply to it."""

    words: list[str]
    parts: tuple[type[Part], ...]
    apply: set[type[Part]]


def situations() -> Iterator[Situation]:
    amount, drawn, search, split = parts = evaluation.PARTS
    for model, data, apply in [
        ("causal", ["--text", "texts"], {amount}),
        ("encoder", ["--text", "texts"], {amount}),
        ("masked", ["--text", "texts"], {amount, drawn}),
        ("encoder", ["--retrieval", "mine"], {search, split}),
        ("encoder", ["--retrieval", "passkey"], {amount, drawn, search}),
    ]:
        yield Situation(["evaluate", model, *data, "--lengths", "32"], parts, apply)
    text, image = [tuning.TextSize, tuning.HeldOut], [tuning.ImageSize, tuning.HeldOut]
    encoder = [*text, tuning.PassageLoss, tuning.Queries]
    for model, data, train, apply in [
        ("causal", ["--text", "texts", "--length", "48"], "all", [*text, tuning.Existing]),
        ("masked", ["--text", "texts", "--length", "48"], "rows", text),
        ("encoder", ["--text", "texts", "--length", "48"], "lora", [*encoder, tuning.LowRank]),
        ("encoder", ["--text", "texts", "--length", "48"], "table", [*encoder, tuning.Existing]),
        (
            "encoder",
            ["--retrieval", "mine", "--length", "48"],
            "rows",
            [tuning.TextSize, tuning.PassageLoss, tuning.Split],
        ),
        ("image", ["--images", "images", "--image-size", "48"], "table", [*image, tuning.Existing]),
    ]:
        yield Situation(["tune", model, "out", *data, "--train", train], tuning.PARTS, set(apply))


def test_each_is_an_error_that_says_what_the_option_belongs_to(posembed, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_causal(Path("causal"), positions=24)
    save_masked(Path("masked"), positions=24)
    save_encoder(Path("encoder"), positions=24)
    save_image_model(Path("image"))
    write_texts(Path("texts"))
    write_images(Path("images"), number=2)
    write_collection(Path("mine"))
    before, wrong, seen = sorted(tmp_path.rglob("*")), list[str](), set[str]()
    for words, parts, apply in situations():
        for part in parts:
            for name in () if part in apply else options(part):
                value = VALUES.get(
                    name, "0.5" if name in ("temperature", "anchor", "held_out", "learning_rate") else "24"
                )
                done = posembed("", *words, f"--{name.replace('_', '-')}", value)
                seen.add(name)
                if done.code != 1 or f"error: {name}: only for {part.belongs}; " not in done.err:
                    wrong.append(f"{' '.join(words)} --{name}: {done.err}{done.out}")
    assert wrong == []
    assert seen == {name for part in (*evaluation.PARTS, *tuning.PARTS) for name in options(part)}
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", ["tune", "evaluate"])
def test_the_help_says_it_too(posembed, command: str) -> None:
    said = " ".join(word for word in posembed(command, "--help").out.split() if word != "│")
    for part in {"tune": tuning, "evaluate": evaluation}[command].PARTS:
        for name in options(part):
            about = said[said.index(f"--{name.replace('_', '-')} ") :]
            assert f"for {part.belongs}" in about[: about.index("]") + 1], name


def test_empty_text_is_refused_for_every_option(posembed) -> None:
    """It is no value: as a path it would be the current folder."""
    from posembed.cli import app

    arguments = {name: ["x", "y"] for name in ("resize", "tune", "push")}
    arguments |= {name: ["x"] for name in ("inspect", "check", "evaluate", "report")}
    named = {"compare lengths": app.commands["compare"].commands["lengths"]}
    named |= {name: made for name, made in app.commands.items() if name != "compare"}
    wrong = []
    for name, made in named.items():
        given = arguments.get(name, [])
        calls = [[*given[:at], "", *given[at + 1 :]] for at in range(len(given))]
        calls += [[*given, each.opts[0], ""] for each in made.params if each.opts[0].startswith("--") and each.metavar]
        for call in calls:
            done = posembed(name, *call)
            if done.code != 1 or "got ''" not in done.err or done.out:
                wrong.append((name, call, done))
    assert not wrong
