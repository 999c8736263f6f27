from __future__ import annotations

import pytest
from accelerate import Accelerator

from posembed.lab.data.labelled import Example, Examples, load_labelled
from posembed.lab.data.text import Corpus, load_corpus
from posembed.lab.questions.classification import Images, Text
from posembed.lab.questions.lengths import Lengths
from posembed.lab.runs.environment import make_accelerator
from posembed.lab.runs.spec import with_default_window
from posembed.lab.tasks.classification import ImageClassification, TextClassification
from posembed.lab.tasks.classification_specs import ImageSpec, TextSpec
from posembed.lab.tasks.language import LanguageModelling
from posembed.lab.tasks.text_specs import LengthSpec


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A few thousand bytes of text that a small model can learn something from."""
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("".join(f"{i} plus {i % 7} makes {i + i % 7}.\n" for i in range(1500)), encoding="utf-8")
    return load_corpus(str(file))


@pytest.fixture(scope="session")
def task(corpus: Corpus) -> LanguageModelling:
    return LanguageModelling(corpus)


@pytest.fixture(scope="session")
def accelerator() -> Accelerator:
    return make_accelerator("no", "cpu")


@pytest.fixture
def spec(corpus: Corpus) -> LengthSpec:
    small = {"train_length": 16, "test_lengths": (8, 16, 40), "layers": 2, "width": 16, "heads": 2, "steps": 12}
    small |= {"batch": 4, "warmup": 3, "test_tokens": 400, "dropout": 0.1, "data": "text.txt"}
    settings = with_default_window(Lengths.presets["quick"] | small)
    return LengthSpec(question="lengths", encoding="", seed=0, data_sha256=corpus.sha256, **settings)


@pytest.fixture(scope="session")
def ordered(tmp_path_factory: pytest.TempPathFactory) -> Examples[Example]:
    """Texts whose class is their order alone: a bag of their letters says nothing."""
    file = tmp_path_factory.mktemp("labelled") / "ordered.csv"
    lines = []
    for i in (i for i in range(120) if i % 13):  # else all its letters are the same
        letters = "".join(sorted(chr(97 + (i * step) % 26) for step in (1, 3, 7, 9, 11)))
        lines += [f"{letters}{i % 5 * '.'},up", f"{letters[::-1]}{i % 5 * '.'},down"]
    file.write_text("text,label\n" + "\n".join(dict.fromkeys(lines)) + "\n", encoding="utf-8")
    return load_labelled(str(file))


@pytest.fixture(scope="session")
def text_task(ordered: Examples[Example]) -> TextClassification:
    return TextClassification(ordered, "bytes")


@pytest.fixture
def text_spec(text_task: TextClassification) -> TextSpec:
    small = {"train_length": 16, "layers": 2, "width": 16, "heads": 2, "steps": 12, "batch": 8, "warmup": 3}
    settings = Text.presets["default"] | {"data": "ordered.csv", "tokenizer": "bytes"} | small
    return TextSpec(question="text", encoding="learned", seed=0, data_sha256=text_task.sha256, **settings)


@pytest.fixture(scope="session")
def image_task() -> ImageClassification:
    return ImageClassification()


@pytest.fixture
def image_spec(image_task: ImageClassification) -> ImageSpec:
    small = {"test_sizes": (8, 12), "layers": 1, "width": 16, "heads": 2, "steps": 12, "batch": 8, "warmup": 3}
    settings = Images.presets["default"] | small | {"train_size": 8, "train_length": 17}
    data_sha256 = image_task.sha256
    return ImageSpec(question="images", encoding="learned-2d", seed=0, data_sha256=data_sha256, **settings)
