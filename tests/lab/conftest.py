from __future__ import annotations

import pytest
from accelerate import Accelerator

from posembed.lab.data import Corpus, load_corpus
from posembed.lab.presets import settings
from posembed.lab.tasks.language import LanguageModelling, LanguageSpec


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
    return Accelerator(cpu=True)


@pytest.fixture
def spec(corpus: Corpus) -> LanguageSpec:
    return settings(
        "quick",
        data="text.txt",
        data_sha256=corpus.sha256,
        train_length=16,
        test_lengths=(8, 16, 40),
        layers=2,
        width=16,
        heads=2,
        steps=12,
        batch=4,
        warmup=3,
        test_tokens=400,
        dropout=0.1,
    )
