"""Fine-tuning of image models: the loss and the tiles by hand, every family from end to end, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from evaluated_models import save_causal
from posembed.errors import ArgumentError, CheckpointError, DataError, PosEmbedError, RunFolderError
from posembed.evaluation.pictures import (
    Viewer,
    alike,
    details,
    features,
    open_image_model,
    pixels_of,
    preprocessing,
    read_pictures,
    thumbnail,
    tiles,
)
from posembed.measure.jobs import Store
from posembed.modelfiles.checkpoint import open_checkpoint
from posembed.modelfiles.safetensors import values_of
from posembed.report.tuning import answer, how, plan_words, render
from posembed.tuning.images import Images, Pictures, split_pictures
from posembed.tuning.plan import plan_tuning, tune_checkpoint
from posembed.tuning.run import TunePlan
from tiny_models import IMAGE, TEXT, tiny_model
from together import together
from tolerance import assert_close

SETTINGS: dict[str, Any] = {"image_size": 48, "steps": 2, "batch": 2}
TOWERS = {"text_config": TEXT, "vision_config": IMAGE}
FAMILIES: dict[str, dict[str, Any]] = {
    "vit": IMAGE,
    "dinov2": IMAGE,
    "clip": {**TOWERS, "projection_dim": 16},
    "clip_vision_model": IMAGE,
    "siglip": TOWERS,
    "siglip_vision_model": IMAGE,
    "ijepa": IMAGE,
}
KNOWN = [family for family in FAMILIES if family != "ijepa"]


def save_image_model(folder: Path, family: str = "vit") -> None:
    model, draw = tiny_model(family, FAMILIES[family]), torch.Generator().manual_seed(1)
    with torch.no_grad():  # so that the vectors depend on the pixels
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3, generator=draw)
    model.save_pretrained(folder)
    means = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4], "size": {"height": 32, "width": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(means))


def write_images(folder: Path, *, number: int = 22, side: int = 60, seed: int = 0) -> Path:
    """Images of smooth random colours, wider than high or higher than wide."""
    folder.mkdir(exist_ok=True)
    draw = np.random.default_rng(seed)
    for each in range(number):
        coarse = Image.fromarray(draw.integers(0, 256, (5, 4, 3), dtype=np.uint8))
        size = (side + each % 3, side) if each % 2 else (side, side + each)
        coarse.resize(size, Image.Resampling.BICUBIC).save(folder / f"{seed}-{each:02}.png")
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_image_model(Path("model"))
    write_images(Path("images"))
    return tmp_path


def planned(**settings: Any) -> TunePlan:
    settings = {**SETTINGS, **settings}
    return plan_tuning("model", "out", None, settings, images="images", device="cpu")


@together("family", KNOWN, usual=lambda family: family in ("vit", "clip", "siglip"))
def test_every_family_can_be_trained(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_image_model(Path("model"), family)
    write_images(Path("images"))
    plan = planned()
    plan.objective.prepare(Store(tmp_path, {}), lambda *done: None)
    trained = plan.trainable("old", plan.start("old"), 0)
    plan.objective.loss(trained.model, [0, 1], length=32, seed=0).backward()
    moved = {trained.keys[name] for name, value in trained.parameters.items() if value.grad is not None}
    assert any("position" in key for key in moved)
    assert not any(key.startswith("text_model") for key in moved)


def test_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_image_model(Path("model"), "clip")
    write_images(Path("images"))
    tuned = tune_checkpoint("model", "out", images="images", device="cpu", **SETTINGS)
    candidates = [row.name for row in tuned.candidates]
    mean = "tiles of 32, mean"
    assert candidates == ["model, scaled to 32", f"model, {mean}", f"out-at-32, {mean}", "out"]
    assert "model, resized, not fine-tuned" in [row.name for row in tuned.evaluation.rows]
    assert (tuned.evaluation.unit, tuned.evaluation.texts, tuned.evaluation.lengths) == ("image", 10, (48,))
    assert tuned.kept is not None
    assert -1 <= tuned.kept.value < 1
    sentences = [*answer(tuned), *how(tuned)]
    assert sentences[0].startswith("On these images, use ")
    assert not any("token" in sentence or "text" in sentence for sentence in sentences)
    model = open_image_model("out").model("cpu")
    assert features(model, torch.zeros(1, 3, 48, 48)).isfinite().all()
    assert json.loads(Path("out/preprocessor_config.json").read_text())["size"] == {"height": 48, "width": 48}
    for place, side in (("out", 48), ("out-at-32", 32)):
        card = Path(place, "README.md").read_text()
        assert f"## Fine-tuned at {side} x {side} pixels" in card
        assert "token" not in card.split("## Fine-tuned")[1]
    before, after = (open_checkpoint(place).tensors for place in ("model", "out-at-32"))
    changed = {key for key in before if not torch.equal(values_of(before[key]), values_of(after[key]))}
    assert changed
    assert not any(key.startswith("text_model") for key in changed)


@together("positions", [20, 40, 77], usual=lambda positions: positions == 77)
def test_the_table_of_texts_of_a_model_with_two_is_not_that_which_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, positions: int
) -> None:
    """Whether it has fewer rows than the image has pixels, or more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(TEXT, "max_position_embeddings", positions)
    save_image_model(Path("model"), "clip")
    write_images(Path("images"))
    tuned = tune_checkpoint("model", "out", images="images", device="cpu", **{**SETTINGS, "steps": 1})
    assert not any(tuned.moved)
    page = render(tuned)
    assert "row moved" not in page
    json.dumps(tuned.to_dict(), allow_nan=False)


def test_a_length_is_not_the_size_of_images(folder: Path) -> None:
    with pytest.raises(ArgumentError, match="length: only for models of texts; this is an image model"):
        tune_checkpoint("model", "out", images="images", device="cpu", length=48, steps=1)
    assert sorted(path.name for path in folder.iterdir()) == ["images", "model"]


def test_the_loss_by_hand(folder: Path) -> None:
    plan = planned()
    objective = plan.objective
    assert isinstance(objective, Images)
    objective.prepare(Store(folder, {}), lambda *done: None)
    model = plan.original.model("cpu").double()

    def embed(pixels: torch.Tensor) -> torch.Tensor:
        normal = (pixels.double() - torch.tensor([0.5, 0.4, 0.3])[:, None, None]) / torch.tensor([0.2, 0.3, 0.4])[
            :, None, None
        ]
        state = model(pixel_values=normal[None]).last_hidden_state[0, 0]
        return state / state.norm()

    losses = []
    for picture in objective.pictures:
        whole = pixels_of(picture, 48)
        small = torch.nn.functional.interpolate(whole[None], size=(32, 32), mode="bicubic", antialias=True)[0]
        corners = [(0, 0), (0, 16), (16, 0), (16, 16)]
        mean = torch.stack([embed(whole[:, top : top + 32, left : left + 32]) for top, left in corners]).mean(dim=0)
        losses.append(1 - torch.nn.functional.cosine_similarity(embed(small.clamp(0, 1)), mean, dim=0).item())
    found = objective.loss(plan.original.model("cpu"), range(len(losses)), length=32, seed=0)
    assert_close(found.item(), sum(losses) / len(losses), dtype=torch.float32, scale=1)
    assert found.item() > 1e-3


@pytest.mark.parametrize("side", [16, 20, 31, 48])
def test_tiles_cover_an_image(side: int) -> None:
    pixels = torch.arange(48 * 48.0).view(1, 1, 48, 48).expand(1, 3, 48, 48)
    found = tiles(pixels, side)
    assert found.shape == (1, math.ceil(48 / side) ** 2, 3, side, side)
    assert torch.equal(found[0, :, 0].unique(), pixels[0, 0].flatten())
    parts = details(pixels)
    assert parts.shape == (1, 3, 3, 16, 16)
    assert torch.equal(parts[0, 0, 0].flip(-1), pixels[0, 0, :16, :16])
    assert torch.equal(parts[0, 2, 0].flip(-1), pixels[0, 0, -16:, -16:])


def test_pixels_are_those_of_the_models_own_processor(folder: Path) -> None:
    """Up to the rounding of PIL, of the image and of its middle."""
    transformers = pytest.importorskip("transformers")
    size = {"size": {"shortest_edge": 48}, "crop_size": {"height": 48, "width": 48}, "resample": 3}
    means = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}
    processor = transformers.CLIPImageProcessor(**size, **means)
    picture = next(each for each in read_pictures("images") if each.path.name == "0-04.png")
    theirs = processor(Image.open(picture.path).convert("RGB"), return_tensors="pt")["pixel_values"][0]
    ours = (pixels_of(picture, 48) - torch.tensor(means["image_mean"])[:, None, None]) / torch.tensor(
        means["image_std"]
    )[:, None, None]
    assert (ours - torch.as_tensor(np.asarray(theirs))).abs().mean() < 0.05


def test_a_detail_finds_its_image(folder: Path) -> None:
    """A model whose vectors are the mean colours finds plain images by their details, whichever way they are read."""

    class Colours(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = torch.nn.Parameter(torch.ones(()))

        def get_image_features(self, pixel_values: torch.Tensor) -> torch.Tensor:
            return self.one * pixel_values.mean(dim=(2, 3))

    pixels = torch.rand(7, 3, 1, 1).expand(7, 3, 48, 48)
    viewer = Viewer(Colours(), 1.0, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), 32)
    queries = viewer.vectors(details(pixels).flatten(0, 1))
    for view in ("scaled", "tiles"):
        best = (queries @ viewer.views(pixels, view).mean(dim=1).T).argmax(dim=1)
        assert best.tolist() == [number for number in range(7) for _ in range(3)]


def test_the_split_does_not_depend_on_other_files(folder: Path) -> None:
    before = split_pictures("images", size=48, held_out=0.5, seed=0)
    assert (len(before.training), len(before.held_out), len(before.short)) == (11, 11, 0)
    (folder / "images" / "copy.png").write_bytes((folder / "images" / "0-00.png").read_bytes())
    (folder / "images" / "notes.txt").write_text("not an image")
    write_images(Path("images/small"), number=3, side=40, seed=1)
    after = split_pictures("images", size=48, held_out=0.5, seed=0)

    def shas(pictures: Pictures) -> list[str]:
        return [each.sha256 for each in (*pictures.training, *pictures.held_out)]

    assert shas(after) == shas(before)
    assert len(after.short) == 3
    words = plan_words(planned())
    assert words[0] == "model: from 32 to 48 pixels. Trained: all weights."
    assert words[1].startswith("To train on: 12 images of 48 pixels or more, in 12 windows; 2 steps of 2 windows")
    assert words[2] == "To measure the result: 10 other images, which are held out. Smaller images, not used: 3."


@pytest.mark.whole  # as with texts, of which test_tune.py asks it always
def test_the_same_call_continues(folder: Path) -> None:
    def stop(name: str, done: int, total: int) -> None:
        if (name, done) == ("fine-tuning at 48", 1):
            raise KeyboardInterrupt

    def tune(out: str, **others: Any) -> None:
        tune_checkpoint("model", out, images="images", device="cpu", **SETTINGS, **others)

    with pytest.raises(KeyboardInterrupt):
        tune("out", progress=stop)
    tune("out")
    tune("whole")
    weights = [Path(out, "model.safetensors").read_bytes() for out in ("out", "whole")]
    assert weights[0] == weights[1]


@pytest.fixture
def refusing(folder: Path) -> Path:
    """The folder, with models and images that are refused."""
    write_images(Path("few"), number=5)
    write_images(Path("few"), number=3, side=40, seed=1)
    Path("broken").mkdir()
    Path("broken/a.png").write_bytes(b"\x89PNG no image")
    save_causal(Path("causal"))
    save_image_model(Path("bare"))
    Path("bare/preprocessor_config.json").unlink()
    save_image_model(Path("other"), "ijepa")  # its first token is a patch
    return folder


@together(
    ("given", "error", "message"),
    [
        ({"images": None}, ArgumentError, "expected text, retrieval or both"),
        (
            {"images": None, "text": "images"},
            CheckpointError,
            "config.json names ViTModel; for an image model, give --im",
        ),
        ({"text": "images"}, ArgumentError, "images: an image model is trained and measured on images only"),
        ({"images": "none"}, DataError, "none: expected a folder of images; found nothing"),
        ({"images": "model"}, DataError, "model: expected images .* it holds none"),
        ({"images": "few"}, DataError, "at least 20 images whose short side has 48 pixels.* 5 of 8 .* largest has 60"),
        ({"images": "broken"}, DataError, "broken.a.png: cannot be read as an image"),
        ({"image_size": 32}, ArgumentError, "image_size: expected more than 32 pixels"),
        ({"length": 48}, ArgumentError, "length: only for models of texts; this is an image model"),
        ({"train": "rows"}, ArgumentError, "train: rows keeps the existing rows, and this resize"),
        ({"source": "causal"}, CheckpointError, "causal: expected an image model that cuts square images"),
        ({"source": "other"}, CheckpointError, "got ijepa with image_size 32; resize it with posembed resize"),
        (
            {"source": "bare"},
            CheckpointError,
            r"bare: expected preprocessor_config.json \(or processor_config.json\) next",
        ),
    ],
)
def test_refusals(refusing: Path, given: dict[str, Any], error: type[PosEmbedError], message: str) -> None:
    before = sorted(path.name for path in refusing.iterdir())
    arguments = {"source": "model", "text": None, "images": "images", **SETTINGS, **given}
    with pytest.raises(error, match=message):
        tune_checkpoint(arguments.pop("source"), "out", arguments.pop("text"), device="cpu", **arguments)
    assert sorted(path.name for path in refusing.iterdir()) == before


def sixteen_bits(image: Image.Image) -> Image.Image:
    return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)


def turned(image: Image.Image, path: Path, orientation: int) -> None:
    """Saves an image whose EXIF orientation turns it back to what it was."""
    back = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Image.Transpose
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = image.transpose(Image.Transpose(back[orientation])) if orientation in back else image
    stored.save(path, exif=exif)


GREY = ("L", "LA", "I;16", "I")
WAYS: dict[str, Any] = {
    **{mode: lambda image, path, mode=mode: image.convert(mode).save(path) for mode in ("RGB", "RGBA", "L", "LA")},
    "palette": lambda image, path: image.quantize(256).save(path),
    "transparent palette": lambda image, path: image.quantize(256).save(path, transparency=bytes(range(256))),
    "CMYK": lambda image, path: image.convert("CMYK").save(path.with_suffix(".tif")),
    "I;16": lambda image, path: sixteen_bits(image).save(path),
    "I": lambda image, path: Image.fromarray(np.asarray(sixteen_bits(image)).astype(np.int32)).save(
        path.with_suffix(".tif")
    ),
    "two frames": lambda image, path: image.save(
        path.with_suffix(".gif"), save_all=True, append_images=[image.rotate(90)]
    ),
    **{f"EXIF {n}": lambda image, path, n=n: turned(image, path, n) for n in range(1, 9)},
}


@together("way", WAYS)
def test_an_image_is_the_same_in_every_format(tmp_path: Path, way: str) -> None:
    coarse = Image.fromarray(np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8))
    image = coarse.resize((80, 60), Image.Resampling.BICUBIC)
    for name, save in (("one", WAYS["L" if way in GREY else "RGB"]), ("other", WAYS[way])):
        (tmp_path / name).mkdir()
        save(image, tmp_path / name / "image.png")
    one, other = (pixels_of(read_pictures(tmp_path / name)[0], 48) for name in ("one", "other"))
    assert one.std() > 0.05
    assert (one - other).abs().mean() < 0.02


@pytest.mark.parametrize(
    "values",
    [
        np.full((60, 60), 0.5, np.float32),
        np.full((60, 60), 1 << 20, np.int32),
        np.full((60, 60), 200, np.int32),  # 8 bits in a wider type, or a dark image of 16
    ],
)
def test_values_of_unknown_range_are_refused(folder: Path, values: Any) -> None:
    Image.fromarray(values).save(folder / "images" / "strange.tif")
    with pytest.raises(DataError, match=r"strange.tif: expected an image of 8 or 16 bits"):
        planned()


@together("share", [0.0, 0.01, 0.3, 0.9], usual=lambda share: share in (0.0, 0.9))
@together("suffix", ["jpg", "png", "gif", "bmp", "ppm", "tif", "webp"])
def test_a_broken_image_is_refused_before_anything_is_trained(folder: Path, suffix: str, share: float) -> None:
    path = folder / "images" / f"broken.{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (70, 70, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match=rf"broken.{suffix}: cannot be read as an image"):
        planned()
    path.unlink()


COPIES: dict[str, Any] = {
    "another format": lambda image, path: image.save(path.with_suffix(".jpg"), quality=70),
    "mirrored": lambda image, path: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(path),
    "larger": lambda image, path: image.resize((2 * image.width, 2 * image.height), Image.Resampling.BICUBIC).save(
        path
    ),
    "other metadata": lambda image, path: turned(image, path, 6),
}


@together("seed", range(3), usual=lambda seed: seed == 0)
@together("copy", COPIES, usual=lambda copy: copy in ("larger", "other metadata"))
def test_no_held_out_image_is_trained_on_under_another_form(folder: Path, copy: str, seed: int) -> None:
    alone = split_pictures("images", size=48, held_out=0.5, seed=seed)
    assert alone.alike == 0
    for each in (*alone.training, *alone.held_out):
        COPIES[copy](Image.open(each.path), folder / "images" / f"copy of {each.path.name}")
    both = split_pictures("images", size=48, held_out=0.5, seed=seed)
    names = [
        {picture.path.stem.removeprefix("copy of ") for picture in part} for part in (both.training, both.held_out)
    ]
    assert not names[0] & names[1]
    assert len(names[1]) == len(both.held_out)
    assert len(both.training) + len(both.held_out) + both.alike == 44
    looks = torch.stack([thumbnail(picture) for picture in both.training])
    assert not any(alike(thumbnail(picture), looks).any() for picture in both.held_out)
    for path in Path("images").glob("copy of *"):
        path.unlink()


def test_very_many_images_are_not_all_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posembed.tuning.images.MOST_WINDOWS", 11)
    few = split_pictures("images", size=48, held_out=0.1, seed=0)
    assert (len(few.training), len(few.held_out)) == (11, 10)


@pytest.mark.parametrize(
    "settings",
    [
        {"do_rescale": True, "rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [1.0, 0.5, 0.25]},
        {"do_rescale": False, "image_mean": [120.0, 130.0, 110.0], "image_std": [60.0, 50.0, 70.0]},
        {"do_normalize": False},
        {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]},
    ],
)
@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=pytest.mark.whole)])
def test_pixels_are_prepared_as_the_models_processor_does(folder: Path, settings: dict[str, Any], shared: bool) -> None:
    """At the model's own size nothing is resized, and the vectors are the same."""
    transformers = pytest.importorskip("transformers")
    processor = transformers.ViTImageProcessor(**{"size": {"height": 32, "width": 32}, **settings})
    processor.save_pretrained("model")
    if shared:
        inner = json.loads(Path("model/preprocessor_config.json").read_text())
        Path("model/preprocessor_config.json").unlink()
        Path("model/processor_config.json").write_text(json.dumps({"image_processor": inner}))
    runnable, image = (
        open_image_model("model"),
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)),
    )
    image.save("images/own.png")
    (picture,) = [each for each in read_pictures("images") if each.path.name == "own.png"]
    model = runnable.model("cpu")
    theirs = features(model, torch.as_tensor(np.asarray(processor(image, return_tensors="np")["pixel_values"])))
    ours = Viewer.of(runnable, model).vectors(pixels_of(picture, 32)[None])
    assert_close(ours, torch.nn.functional.normalize(theirs, dim=1))


def test_a_processor_without_numbers_is_refused(folder: Path) -> None:
    means: dict[str, Any] = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    wrong = ({"image_mean": None}, {"image_std": [0, 0, 0]}, {"image_std": 1e400}, {"rescale_factor": None})
    for settings in ({}, *({**means, **each} for each in wrong)):
        Path("model/preprocessor_config.json").write_text(json.dumps({"size": {"height": 32, "width": 32}, **settings}))
        with pytest.raises(
            CheckpointError, match=r"model: expected numbers in preprocessor_config.json: .* image_mean"
        ):
            planned()


def test_of_two_processors_it_is_that_which_transformers_takes(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    inner = json.loads(Path("model/preprocessor_config.json").read_text())
    other = {**inner, "image_mean": [0.1, 0.2, 0.3]}
    Path("model/processor_config.json").write_text(json.dumps({"image_processor": other}))
    mean = preprocessing(open_checkpoint("model"))[1]
    assert list(mean) == list(transformers.AutoImageProcessor.from_pretrained("model").image_mean)


def test_another_processor_is_not_continued(folder: Path) -> None:
    def stop(name: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        planned().run(stop)
    path = Path("model/preprocessor_config.json")
    path.write_text(path.read_text().replace("0.4", "0.45"))
    with pytest.raises(RunFolderError, match=r"tokenizer or the other settings of the checkpoint: .* there, .* now"):
        planned()
