"""The pages, the figures and the words about classified texts and images, from made-up results."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from posembed.lab.questions.classification import summarise_classification
from posembed.report.accuracy_words import percent, points
from posembed.report.classification import report as classification
from posembed.report.classification import words as classification_words
from posembed.report.images import report as images
from posembed.report.images import words as image_words

from made_up_classes import image_run, image_runs, save_classes, text_run, text_runs
from posembed import ArgumentError, RunFolderError
from posembed.lab.questions.images import summarise_images


def text_answer(results: list, **options: str) -> str:
    return " ".join(classification_words.answer(summarise_classification(results, **options)))


def image_answer(results: list, **options: str) -> str:
    return " ".join(image_words.answer(summarise_images(results, **options)))


def test_shares_in_words() -> None:
    assert percent(0.9744) == "97.4"
    assert [points(share) for share in (0.002, -0.0312, 0.0, -0.0001)] == [
        "+0.2",
        "\N{MINUS SIGN}3.1",
        "0.0",
        "0.0",
    ]


def test_a_difference_of_nothing_is_called_nothing() -> None:
    said = text_answer(text_runs(5))
    assert said.startswith("Learned cannot be told from sinusoidal: ")
    assert re.search(r"Better: t5 \+\d", said)
    assert re.search("Worse: “none” \N{MINUS SIGN}[0-9]", said)
    assert "always answering the most frequent of 3 classes would tell 58.3%" in said
    assert re.search(r"A difference below about \d+\.\d points could not have been told here", said)


def test_a_single_run_says_what_it_is() -> None:
    said = text_answer(text_runs(1))
    assert "points in a single run of each (95% interval" in said
    assert "over seeds none is known" in said
    assert "better" not in said
    assert "could not have been told" not in said


def test_one_encoding_alone_and_none_that_is_finished() -> None:
    assert text_answer(text_runs(2, ("learned",))).startswith("Learned tells 69.8% (56.0\N{EN DASH}83.5) of the 600")
    lost = [text_run("sinusoidal", failure="the loss was nan"), *text_runs(2, ("learned",))]
    assert text_answer(lost).startswith(
        "Told of 600 held-out examples: learned 69.8% (56.0\N{EN DASH}83.5). Training with"
    )
    failed = [text_run("learned", failure="the loss was nan"), text_run("sinusoidal", failure="the loss was nan")]
    assert text_answer(failed).startswith("Training with learned failed (seed 0: the loss was nan).")
    assert image_answer([image_run("none", failure="the loss was nan")]).startswith("Training with “none” failed")


def test_a_reference_of_ones_own() -> None:
    assert "than “none”: +" in text_answer(text_runs(3), reference="none")
    with pytest.raises(ArgumentError, match="the reference 'rope' is not among those to run"):
        text_answer(text_runs(2), reference="rope")
    assert "Learned-1d and learned-2d are one model" not in image_answer(image_runs(3), reference="none")


def test_images_in_words() -> None:
    trained, farther = image_words.answer(summarise_images(image_runs(5)))
    assert "Learned-2d and learned-1d are one model until the grid changes, and gave the same answers." in trained
    assert "“none” is worse than learned-1d: \N{MINUS SIGN}" in trained
    assert "of 400 held-out images with factorized" in trained
    assert "drawn at 12 x 12 pixels" in farther
    assert "Learned-2d is better than learned-1d: +" in farther


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]


def written(folder: Path, results: list) -> str:
    save_classes(folder, results)
    page = classification if "pooling" in dir(results[0].spec) and "tokenizer" in dir(results[0].spec) else images
    return page.write_report(folder).read_text(encoding="utf-8")


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_page_of_texts(tmp_path: Path, seeds: int) -> None:
    page = written(tmp_path, [*text_runs(seeds), text_run("rope", seed=9, failure="the loss was nan at step 30")])
    summary = summarise_classification(text_runs(seeds))
    for sentence in classification_words.answer(summary):
        assert sentence.split("(")[0].strip() in page.replace("&#39;", "'")
    assert page.index("accuracy less sinusoidal") < page.index("The numbers")  # the figure comes first
    assert page.count("<svg") >= 3  # differences, the learned table, training
    assert "training loss, nats an example" in page
    assert "macro F1" in page
    assert "Training with rope failed" in page
    reader = Reader()
    reader.feed(page)
    assert [source for source in reader.sources if not source.startswith(("data:", "#"))] == []


def test_macro_f1_only_where_classes_are_uneven(tmp_path: Path) -> None:
    even = [text_run(name, seed, even=True) for seed in range(2) for name in ("learned", "sinusoidal")]
    page = written(tmp_path, even)
    assert "macro F1" not in page.split("Evidence")[0]


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_page_of_images(tmp_path: Path, seeds: int) -> None:
    page = written(tmp_path, [*image_runs(seeds), image_run("sinusoidal-2d", failure="the loss was nan at step 30")])
    assert page.index("held-out images told, percent") < page.index("The numbers")
    assert page.count("<svg") >= 4  # accuracies, two learned tables, training
    assert "Not drawn, since training failed: sinusoidal-2d." in page
    assert "its grid of rows is resized bicubically" in page
    assert "the same" in page
    assert page == images.write_report(tmp_path, tmp_path / "again.html").read_text(encoding="utf-8")


def test_pages_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not a run folder"):
        classification.write_report(tmp_path)
    save_classes(tmp_path / "run", image_runs(1, ("none",)))
    with pytest.raises(ArgumentError, match="cannot be written"):
        images.write_report(tmp_path / "run", tmp_path)
