"""Small models of other projects, built with each project's own package, and saved and loaded by its own code.

``python tests/projects/models.py`` writes ``files/``, which the tests of every run resize. Loading the resized files
needs the packages, of which ``requirements.txt`` names the versions.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from timm_peer import imported

FILES = Path(__file__).parent / "files"
Loaded = tuple[nn.Module, Tensor]


@dataclass(frozen=True)
class Project:
    """A project whose files are resized.

    name: of the project. package: what is imported to load its files. file: its name in ``files/``. write: saves a
    small model there. load: loads a resized file with the project's own code, which checks all names and shapes, and
    runs the model at its full size; returns the model and what it computed. sizes: the new sizes that are asked for,
    one after the other. tables: the keys of the tensors that change with them. loader: the code that loads it, in
    words.
    """

    name: str
    package: str
    file: str
    write: Callable[[Path], None]
    load: Callable[[Path], Loaded]
    sizes: tuple[dict[str, Any], ...]
    tables: tuple[str, ...]
    loader: str


def drawn(model: nn.Module) -> nn.Module:
    """Gives all parameters small values that differ: some projects leave theirs empty or begin with zeros."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.05)
    return model.eval()


def whisper_model(dims: dict[str, int]) -> nn.Module:
    whisper: Any = imported("whisper", "whisper.model")
    return whisper.Whisper(whisper.ModelDimensions(**dims))


def write_whisper(path: Path) -> None:
    audio = {"n_mels": 8, "n_audio_ctx": 12, "n_audio_state": 16, "n_audio_head": 2, "n_audio_layer": 1}
    text = {"n_vocab": 40, "n_text_ctx": 16, "n_text_state": 16, "n_text_head": 2, "n_text_layer": 1}
    state = drawn(whisper_model(audio | text)).state_dict()
    torch.save({"dims": audio | text, "model_state_dict": state}, path)


def load_whisper(path: Path) -> Loaded:
    model: Any = imported("whisper").load_model(str(path), device="cpu").eval()
    text = torch.arange(model.dims.n_text_ctx)[None] % 40
    return model, model(torch.randn(1, model.dims.n_mels, 2 * model.dims.n_audio_ctx), text)


CLIP = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 16, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 16, "vocab_size": 50, "width": 16, "heads": 1, "layers": 1},
}
POOL = {"attentional_pool": True, "attn_pooler_heads": 2, "attn_pooler_queries": 4}
COCA = {
    "embed_dim": 16,
    "vision_cfg": CLIP["vision_cfg"] | POOL | {"output_tokens": True},
    "text_cfg": CLIP["text_cfg"] | {"embed_cls": True, "output_tokens": True},
    "multimodal_cfg": CLIP["text_cfg"],
    "custom_text": True,
}


def timm_tower(name: str, image_size: int) -> dict[str, Any]:
    tower = {"image_size": image_size, "timm_model_name": name, "timm_pool": "token", "timm_proj": "linear"}
    return CLIP | {"vision_cfg": tower, "custom_text": True}


def write_open_clip(config: dict[str, Any]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.mkdir(parents=True)
        said = {"model_cfg": config, "preprocess_cfg": {"size": [config["vision_cfg"]["image_size"]] * 2}}
        (path / "open_clip_config.json").write_text(json.dumps(said, indent=2) + "\n")
        model = imported("open_clip").create_model(f"local-dir:{path}", load_weights=False, pretrained_text=False)
        torch.save(drawn(model).state_dict(), path / "open_clip_pytorch_model.bin")

    return write


def load_open_clip(path: Path) -> Loaded:
    model: Any = imported("open_clip").create_model(f"local-dir:{path}", require_pretrained=True).eval()
    config = json.loads((path / "open_clip_config.json").read_text())["model_cfg"]
    text = torch.arange(config["text_cfg"]["context_length"])[None] % 50
    side = config["vision_cfg"]["image_size"]
    image = torch.randn(1, 3, side, side)
    model(image, text)  # with CoCa's decoder, whose answer has another width
    return model, torch.cat([model.encode_text(text), model.encode_image(image)])


def write_clip(path: Path) -> None:
    model = imported("clip", "clip.model").CLIP(16, 32, 0, 64, 8, 16, 50, 64, 1, 1)
    sizes = {"input_resolution": torch.tensor(32), "context_length": torch.tensor(16), "vocab_size": torch.tensor(50)}
    torch.save({**drawn(model).half().state_dict(), **sizes}, path)  # in half precision, as OpenAI's files


def load_clip(path: Path) -> Loaded:
    state = torch.load(path, weights_only=True)
    model: Any = imported("clip", "clip.model").build_model(state).float()
    text, side = torch.arange(model.context_length)[None] % 50, model.visual.input_resolution
    return model, torch.cat([model.encode_text(text), model.encode_image(torch.randn(1, 3, side, side))])


def write_esm(path: Path) -> None:
    esm: Any = imported("esm")
    sizes = {"layers": 1, "embed_dim": 16, "ffn_embed_dim": 16, "attention_heads": 2, "max_positions": 30}
    flags = {"emb_layer_norm_before": True, "token_dropout": True, "final_bias": True, "logit_bias": False}
    args = Namespace(arch="roberta_large", **sizes, **flags)
    alphabet = esm.Alphabet.from_architecture("roberta_large")
    state = drawn(esm.ProteinBertModel(args, alphabet)).state_dict()
    names = {key: key if key.startswith("lm_head") else f"sentence_encoder.{key}" for key in state}
    model = {f"encoder.{names[key]}": value for key, value in state.items() if not key.startswith("contact_head")}
    torch.save({"args": args, "model": model}, path)


def load_esm(path: Path) -> Loaded:
    esm: Any = imported("esm")
    with torch.serialization.safe_globals([Namespace]):  # its code is older than the default of weights_only
        model, alphabet = esm.pretrained.load_model_and_alphabet_local(path)
    length = model.args.max_positions
    tokens = torch.full((1, length), alphabet.get_idx("A"))
    return model.eval(), model(tokens)["logits"]


def sam_model(image_size: int) -> nn.Module:
    sam: Any = imported("segment_anything", "segment_anything.modeling")
    grid = (image_size // 16,) * 2
    sizes = {"img_size": image_size, "patch_size": 16, "embed_dim": 16, "depth": 2, "num_heads": 2, "out_chans": 16}
    encoder = sam.ImageEncoderViT(**sizes, use_rel_pos=True, window_size=3, global_attn_indexes=(1,))
    prompts = sam.PromptEncoder(16, grid, (image_size, image_size), mask_in_chans=4)
    transformer = sam.TwoWayTransformer(depth=1, embedding_dim=16, num_heads=1, mlp_dim=16)
    decoder = sam.MaskDecoder(transformer_dim=16, transformer=transformer, iou_head_depth=2, iou_head_hidden_dim=16)
    return sam.Sam(encoder, prompts, decoder)


def write_sam(path: Path) -> None:
    torch.save(drawn(sam_model(64)).state_dict(), path)


def load_sam(path: Path) -> Loaded:
    state = torch.load(path, weights_only=True)
    model: Any = sam_model(16 * state["image_encoder.pos_embed"].shape[1]).eval()
    model.load_state_dict(state)
    side = model.image_encoder.img_size
    image = {"image": torch.randn(3, side, side), "original_size": (side, side)}
    return model, model([image], multimask_output=True)[0]["low_res_logits"]


def timm_model(image_size: int) -> nn.Module:
    few = {"embed_dim": 16, "depth": 1, "num_heads": 1, "patch_size": 8, "num_classes": 5}
    return imported("timm").create_model("vit_tiny_patch16_224", img_size=image_size, **few)


def write_timm(path: Path) -> None:
    """As timm's training script: its saver, with an optimizer that has made a step and an average of the weights."""
    utils: Any = imported("timm", "timm.utils")
    model = drawn(timm_model(64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(1, 3, 64, 64)).sum().backward()
    optimizer.step()
    args = Namespace(model="vit_tiny_patch16_224", img_size=64, input_size=None, batch_size=64)
    where = {"checkpoint_dir": str(path.parent), "recovery_dir": str(path.parent)}
    saver = utils.CheckpointSaver(model, optimizer, args=args, model_ema=utils.ModelEmaV3(model), **where)
    saver._save(str(path), 3)


def load_timm(path: Path) -> Loaded:
    with torch.serialization.safe_globals([Namespace]):
        saved = torch.load(path, weights_only=True)
        model: Any = timm_model(saved["args"].img_size)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        assert imported("timm", "timm.models").resume_checkpoint(model, str(path), optimizer, log_info=False) == 4
    model(torch.randn(1, 3, *(saved["args"].img_size,) * 2)).sum().backward()
    optimizer.step()
    return model.eval(), model(torch.randn(1, 3, *(saved["args"].img_size,) * 2))


class Tiny(nn.Module):
    """A language model of one layer, whose names are those of nanoGPT."""

    def __init__(self, block_size: int) -> None:
        super().__init__()
        self.block_size = block_size
        held = {"wte": nn.Embedding(40, 16), "wpe": nn.Embedding(block_size, 16), "ln_f": nn.LayerNorm(16)}
        self.transformer = nn.ModuleDict(held)
        self.lm_head = nn.Linear(16, 40, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.transformer["wte"](ids) + self.transformer["wpe"](torch.arange(ids.shape[1]))
        return self.lm_head(self.transformer["ln_f"](x))


def write_nanogpt(path: Path) -> None:
    """As train.py of nanoGPT writes ckpt.pt, of a compiled model."""
    model = drawn(Tiny(16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.arange(16)[None]).sum().backward()
    optimizer.step()
    sizes = {"n_layer": 1, "n_head": 1, "n_embd": 16, "block_size": 16, "bias": False, "vocab_size": 40, "dropout": 0.0}
    checkpoint = {
        "model": {f"_orig_mod.{key}": value for key, value in model.state_dict().items()},
        "optimizer": optimizer.state_dict(),
        "model_args": sizes,
        "iter_num": 10,
        "best_val_loss": torch.tensor(2.5),
        "config": {**sizes, "out_dir": "out", "batch_size": 16, "learning_rate": 1e-3},
    }
    torch.save(checkpoint, path)


def load_nanogpt(path: Path) -> Loaded:
    """As train.py loads it with init_from='resume'."""
    checkpoint = torch.load(path, weights_only=True)
    model = Tiny(checkpoint["model_args"]["block_size"])
    state = checkpoint["model"]
    model.load_state_dict({key.removeprefix("_orig_mod."): value for key, value in state.items()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer.load_state_dict(checkpoint["optimizer"])
    model(torch.arange(model.block_size)[None] % 40).sum().backward()
    optimizer.step()
    return model.eval(), model(torch.arange(model.block_size)[None] % 40)


def lit_class() -> Any:
    lightning: Any = imported("lightning")

    class Lit(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self, block_size: int) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = Tiny(block_size)

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            return self.net(batch[0]).logsumexp(-1).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    return Lit


def lit_trainer(**settings: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return imported("lightning").Trainer(
        **quiet, **settings, accelerator="cpu", enable_checkpointing=False, limit_train_batches=1
    )


def lit_batches(length: int) -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(length)[None] % 40))


def write_lightning(path: Path) -> None:
    trainer, model = lit_trainer(max_epochs=1), lit_class()(block_size=16)
    trainer.fit(model, lit_batches(16))
    trainer.save_checkpoint(path)


def load_lightning(path: Path) -> Loaded:
    model = lit_class().load_from_checkpoint(path, weights_only=True)
    length = model.hparams.block_size
    lit_trainer(max_epochs=2).fit(model, lit_batches(length), ckpt_path=path)  # the optimizer goes on
    return model.eval(), model.net(torch.arange(length)[None] % 40)


def x_transformer(length: int) -> nn.Module:
    package: Any = imported("x_transformers")
    layers = package.Decoder(dim=16, depth=1, heads=1, attn_dim_head=16)
    return package.TransformerWrapper(num_tokens=40, max_seq_len=length, attn_layers=layers)


def write_x_transformers(path: Path) -> None:
    torch.save({"net": drawn(x_transformer(16)).state_dict(), "config": {"max_seq_len": 16}}, path)


def load_x_transformers(path: Path) -> Loaded:
    saved = torch.load(path, weights_only=True)
    length = saved["config"]["max_seq_len"]
    model = x_transformer(length).eval()
    model.load_state_dict(saved["net"])
    return model, model(torch.arange(length)[None] % 40)


LONGER, LARGER = {"length": 24}, {"image_size": 48}
BOTH = ("positional_embedding", "visual.positional_embedding")
SAM_TABLES = ("pos_embed", "blocks.1.attn.rel_pos_h", "blocks.1.attn.rel_pos_w")
PROJECTS = (
    Project(
        "openai-whisper", "whisper", "whisper.pt", write_whisper, load_whisper, ({"length": 32},),
        ("decoder.positional_embedding",), "`load_model`",
    ),
    Project(
        "open_clip", "open_clip", "open_clip", write_open_clip(CLIP), load_open_clip, (LONGER, LARGER), BOTH,
        "`create_model`",
    ),
    Project(
        "open_clip, CoCa", "open_clip", "open_clip-coca", write_open_clip(COCA), load_open_clip, (LONGER, LARGER),
        ("text.positional_embedding", "visual.positional_embedding"), "`create_model`",
    ),
    Project(
        "OpenAI's CLIP", "clip", "clip.pt", write_clip, load_clip, (LONGER, LARGER), BOTH, "`build_model`",
    ),
    Project(
        "ESM-1v and ESM-1b", "esm", "esm1v.pt", write_esm, load_esm, ({"length": 50},),
        ("encoder.sentence_encoder.embed_positions.weight",), "`load_model_and_alphabet_local`",
    ),
    Project(
        "Segment Anything", "segment_anything", "sam.pth", write_sam, load_sam, ({"image_size": 96},),
        tuple(f"image_encoder.{key}" for key in SAM_TABLES), "`load_state_dict`",
    ),
    Project(
        "timm's training", "timm", "timm.pth.tar", write_timm, load_timm, ({"image_size": 96},), ("pos_embed",),
        "`resume_checkpoint`, with the optimizer",
    ),
    Project(
        "Lightning", "lightning", "lightning.ckpt", write_lightning, load_lightning, (LONGER,),
        ("net.transformer.wpe.weight",), "`load_from_checkpoint`, and `Trainer.fit`, with the optimizer",
    ),
    Project(
        "nanoGPT", "torch", "nanogpt.pt", write_nanogpt, load_nanogpt, (LONGER,),
        ("_orig_mod.transformer.wpe.weight",), "`load_state_dict` as in its train.py, with the optimizer",
    ),
    Project(
        "x-transformers", "x_transformers", "x.pt", write_x_transformers, load_x_transformers, (LONGER,),
        ("pos_emb.emb.weight",), "`load_state_dict`",
    ),
)  # fmt: skip


def contents(project: Project) -> str:
    """Returns the formats and the entries of a project's file, in words."""
    path = FILES / project.file
    if path.is_dir():
        return ", ".join(f"`{each.name}`" for each in sorted(path.iterdir()))
    with torch.serialization.safe_globals([Namespace]):
        entries = [str(name) for name in torch.load(path, weights_only=True)]
    nested = not any("." in name for name in entries)
    return f"`{''.join(path.suffixes)}` with {', '.join(f'`{name}`' for name in entries)}" if nested else "a state dict"


def table() -> str:
    """Returns the table of docs/native-files.md."""
    lines = ["| project | its file | resized with | loaded by |", "|---|---|---|---|"]
    for project in PROJECTS:
        options = ", ".join(f"`--{name.replace('_', '-')}`" for size in project.sizes for name in size)
        lines.append(f"| {project.name} | {contents(project)} | {options} | {project.loader} |")
    return "\n".join(lines)


def main(names: list[str]) -> None:
    for project in PROJECTS:
        if not names or project.file in names:
            project.write(FILES / project.file)


if __name__ == "__main__":
    main(sys.argv[1:])
