"""A VisionTransformer with any encoding can be copied, saved, and run or trained in threads."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from encoding_names import is_usual
from posembed.errors import ArgumentError
from posembed.layers.alibi import Alibi
from posembed.layers.base import PositionEncoding
from posembed.nn import ENCODINGS
from timm_peer import vision_transformer
from together import asked, together
from tolerance import assert_close, close

VISION = vision_transformer()
from posembed.integrations.timm import CURRENT, IMAGES, replace_positions  # noqa: E402 - timm needs the peer first


@cache
def accepted() -> list[str]:
    def is_accepted(name: str) -> bool:
        with suppress(ArgumentError):
            return bool(model_with(name))
        return False

    names = [name for name in ENCODINGS if is_accepted(name)]
    assert {"learned-2d", "rope", "alibi", "t5", "tupe", "pope", "none"} <= set(names)
    return [name for name in names if asked["whole"] or is_usual(name)]


def model_with(name: str, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    model = VISION.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=10, **settings
    )
    return replace_positions(model, name)


def saved_and_loaded(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


COPIES: tuple[Callable[[nn.Module], nn.Module], ...] = (
    copy.deepcopy,
    torch.optim.swa_utils.AveragedModel,
    lambda model: pickle.loads(pickle.dumps(model)),
    saved_and_loaded,
)


def test_copies_after_a_training_step_give_the_same_logits() -> None:
    images, before = torch.randn(2, 3, 32, 32), CURRENT.held[IMAGES]  # what another test's failed pass left
    for name in accepted():
        model = model_with(name)
        model(images).sum().backward()
        model.eval()
        for copied in COPIES:
            other = copied(model).eval()
            assert torch.equal(other(images), model(images)), (name, copied)
        assert CURRENT.held[IMAGES] == before, name


def test_an_exception_within_a_pass_does_not_change_the_next_one() -> None:
    images = torch.randn(2, 3, 32, 32)
    for name in accepted():
        model = model_with(name).eval()
        expected = model(images)

        def fail(*args: Any) -> None:
            raise KeyError("within a block")

        hook = model.blocks[1].register_forward_pre_hook(fail)
        with pytest.raises(KeyError):
            model(torch.randn(1, 3, 32, 32))
        hook.remove()
        assert torch.equal(model(images), expected), name


def test_two_threads_with_images_of_two_shapes_get_their_own_rows() -> None:
    for name in ("learned-2d", "sinusoidal-2d"):
        model = model_with(name, dynamic_img_size=True).eval()
        images = [torch.randn(1, 3, 32, 32), torch.randn(1, 3, 16, 64)]
        with torch.no_grad():
            expected = [model(x) for x in images]
        right: list[bool] = []

        def run(
            i: int,
            model: nn.Module = model,
            expected: list[Any] = expected,
            images: list[Any] = images,
            right: list[bool] = right,
        ) -> None:
            with torch.no_grad():
                right.extend(close(model(images[i]), expected[i], depth=2) for _ in range(30))

        threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert right == [True] * 60, name


WITHIN = {"learned-2d": ["learned-2d"], "sinusoidal-2d": ["rope"], "rope": ["learned-2d"], "tupe": ["rope"]}
"""Encodings, and those of the models that run within, without --whole."""


def of_one_block(model: nn.Module) -> list[nn.Module]:
    """The modules of a model, without those in its second block, which is like the first."""
    return [module for name, module in model.named_modules() if not name.startswith("blocks.1.")]


def test_a_pass_may_contain_passes_of_other_models_from_any_hook() -> None:
    """Also of models that fail, and of models of the same class with images of other shapes."""
    torch.manual_seed(1)
    images, other_images = torch.randn(1, 3, 16, 64), torch.randn(1, 3, 32, 32)
    for name, others in WITHIN.items():
        for other_name in ("learned-2d", "rope") if asked["whole"] else others:
            model, other = (model_with(each, dynamic_img_size=True).eval() for each in (name, other_name))
            failing = model_with(other_name, dynamic_img_size=True).eval()
            failing.blocks[0].register_forward_pre_hook(lambda module, args: 1 / 0)  # after its table was read
            want, others = model(images), other(other_images)
            calls = []

            def act(*args: Any, other: nn.Module = other, failing: nn.Module = failing, others: Any = others,
                    calls: list[None] = calls) -> None:  # fmt: skip
                with pytest.raises(ZeroDivisionError):
                    failing(other_images)
                assert close(other(other_images), others, depth=2)
                calls.append(None)

            for module in of_one_block(model):
                for add in (module.register_forward_pre_hook, module.register_forward_hook):
                    hook = add(act)
                    assert_close(model(images), want, depth=2, msg=f"{name} {other_name} {type(module).__name__}")
                    hook.remove()
            assert len(calls) > 30
            CURRENT.held[IMAGES] = None


def test_a_pass_within_the_pass_of_the_same_model_is_right_or_refused() -> None:
    torch.manual_seed(1)
    shapes = [torch.randn(1, 3, 16, 64), torch.randn(1, 3, 32, 32), torch.randn(1, 3, 16, 32)]
    for name in WITHIN if asked["whole"] else ("learned-2d", "tupe"):
        model, refused = model_with(name, dynamic_img_size=True).eval(), 0
        wants = [model(images) for images in shapes]
        modules = of_one_block(model)
        for module in modules:
            for inner, outer in ((0, 1), (1, 0), (2, 1), (1, 2)):
                running: list[None] = []

                def act(*args: Any, running: list[None] = running, inner: int = inner) -> None:
                    if not running:
                        running.append(None)
                        assert close(model(shapes[inner]), wants[inner], depth=2)  # noqa: B023 - called in this round

                hook = module.register_forward_hook(act)
                try:
                    assert_close(model(shapes[outer]), wants[outer], depth=2, msg=f"{name} {type(module).__name__}")
                except ArgumentError:
                    refused += 1
                hook.remove()
        assert refused < len(modules)


def test_gradient_checkpointing_works_in_another_thread_and_after_other_images() -> None:
    """On a GPU, autograd calls the layers again in a thread of its own."""
    torch.manual_seed(1)
    square, wide = torch.randn(2, 3, 32, 32), torch.randn(3, 3, 16, 48)
    for name in accepted():
        plain = model_with(name, dynamic_img_size=True)
        again = copy.deepcopy(plain)
        again.set_grad_checkpointing(True)
        batches = [square]
        if plain.positions.encoding.on_grid((2, 6)) is plain.positions.encoding:
            batches.append(wide)
        for images in batches:
            plain(images).square().sum().backward()
        errors: list[BaseException] = []
        losses = [again(images).square().sum() for images in batches]
        for loss in losses:
            run_in_a_thread(loss.backward, errors)
        assert not errors, (name, errors)
        gradients = [[p.grad for p in model.parameters() if p.grad is not None] for model in (again, plain)]
        assert_close(*gradients, depth=8, scale=gradients[1], msg=name)


def run_in_a_thread(call: Callable[[], object], errors: list[BaseException]) -> None:
    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def test_gradient_checkpointing_refuses_grids_that_the_number_of_tokens_does_not_tell() -> None:
    class ByRow(Alibi):
        """Acts in the attention, and depends on more than the number of patches."""

        def on_grid(self, grid: tuple[int, int]) -> PositionEncoding:
            return copy.copy(self)

    model = VISION.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=10, dynamic_img_size=True
    )
    replace_positions(model, ByRow(heads=2))
    same_number = torch.randn(1, 3, 16, 64)
    model(same_number).sum().backward()
    model.set_grad_checkpointing(True)
    with pytest.raises(ArgumentError, match="on_grid"):
        model(same_number)
    model(torch.randn(1, 3, 32, 32)).sum().backward()


def test_layers_refuse_tokens_that_were_added_after_the_table() -> None:
    model = model_with("rope")
    model.blocks[0].register_forward_pre_hook(lambda module, args: (args[0][:, 1:],))
    with pytest.raises(ArgumentError, match="tokens"):
        model(torch.randn(1, 3, 32, 32))


@together("checkpointing", [False, True])
@together("name", ["learned-2d", "rope", "t5"], usual=lambda name: name == "t5")
def test_torch_compile_records_the_model_without_a_graph_break(name: str, checkpointing: bool) -> None:
    torch.manual_seed(1)
    images = torch.randn(2, 3, 32, 32)
    torch.compiler.reset()
    model = model_with(name)
    model.set_grad_checkpointing(checkpointing)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_close(compiled(images), model(images), depth=2)


def test_compiled_code_reads_images_of_other_sizes() -> None:
    model = model_with("rope-axial", dynamic_img_size=True).eval()
    compiled = torch.compile(model, backend="eager")
    for size in ((32, 32), (64, 16), *[(40, 40)] * asked["whole"], (32, 32)):
        images = torch.randn(1, 3, *size)
        with torch.no_grad():
            assert_close(compiled(images), model(images), depth=2)
