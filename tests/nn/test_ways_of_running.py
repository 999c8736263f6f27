"""Every encoding in a model that is compiled, exported, in bfloat16, sharded over two gloo processes (FSDP2), or saved.

The sharded test starts this file as two processes; each checks what it sees and ends with 0.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.func import functional_call, jacrev, stack_module_state, vmap

import small_models
from encoding_names import is_usual
from posembed.nn import Decoder, Encoder
from posembed.nn.encodings import names_for
from small_models import DIM, LENGTH
from together import asked, together
from tolerance import assert_close
from two_processes import WORLD_SIZE, be_both, is_whole, start_both

DECODERS = names_for("decoder")
ENCODERS = [f"encoder {name}" for name in names_for("encoder")]


def model_of(name: str, layers: int = 1, **options: object) -> Encoder | Decoder:
    return small_models.model_of(name, layers=layers, kv_heads=2, feed_forward="swiglu", **options).float()


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


ALL_WAYS = "rope/t5/tupe/pope/bipe-rope/seqpe/fox/cope/dape/path/learned-averaged"
"""One encoding of each way into a layer, in a layer each: rotations, biases, rows, scores of content.
matrix/test_ways_of_calling.py compiles layers that go the same way."""


@torch.no_grad()
@together("name", [*DECODERS, ALL_WAYS, "encoder t5"], usual=lambda name: name in ("learned", ALL_WAYS, "encoder t5"))
def test_compiled_without_a_break(name: str) -> None:
    """Packed sequences, which a graph masks, have the numbers that they have one after the other."""
    torch.compiler.reset()  # each encoding is another graph
    model = model_of(name, layers=1 + name.count("/")).double()
    x = torch.randn(2, 11, DIM, dtype=torch.float64)
    segment_ids = torch.tensor([[0] * 4 + [1] * 7, [5] * 11])
    backend = "aot_eager" if asked["whole"] else "eager"
    y = torch.compile(model, backend=backend, fullgraph=True)(x, segment_ids=segment_ids)
    assert_close(y, model(x, segment_ids=segment_ids))


@torch.no_grad()
def test_compiled_for_any_length() -> None:
    """A graph that was made for other lengths reads those that PaTH's chunks divide."""
    torch.compiler.reset()
    model = model_of("path").double()
    compiled = torch.compile(model, backend="aot_eager")
    for length in (70, 71, 64, 129) if asked["whole"] else (70,):
        x = torch.randn(2, length, DIM, dtype=torch.float64)
        torch._dynamo.mark_dynamic(x, 1)
        assert_close(compiled(x), model(x), msg=str(length))


@torch.no_grad()
def test_compiled_steps_with_a_cache() -> None:
    """Each step has the numbers of the whole text, and the number of steps is not the number of graphs."""
    torch.compiler.reset()
    model, x = model_of("rope").double(), torch.randn(2, 14, DIM, dtype=torch.float64)
    compiled, cache, before = (
        torch.compile(model, backend="aot_eager", fullgraph=True),
        model.new_cache(2, 16),
        graphs(),
    )
    steps = [compiled(part, cache=cache) for part in x.split([4] + [1] * 10, dim=1)]
    assert_close(torch.cat(steps, dim=1), model(x))
    assert graphs() - before <= 4


@torch.no_grad()
@together("name", ENCODERS, usual=lambda name: name in ("encoder rope", "encoder t5"))
def test_an_exported_encoder_reads_other_batches_and_lengths(name: str) -> None:
    model = model_of(name)
    shapes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=LENGTH)}
    x, others = torch.randn(3, 7, DIM), {}
    given, dynamic = {}, {"x": shapes}
    if name in ("encoder t5", "encoder rope"):
        others = {"mask": torch.tensor([[1] * 7, [0] * 3 + [1] * 4, [1] * 6 + [0]])}
        given, dynamic = {"mask": torch.ones(2, 12, dtype=torch.int64)}, {"x": shapes, "mask": shapes}
    program = torch.export.export(model, (torch.randn(2, 12, DIM),), given, dynamic_shapes=dynamic).module()
    assert_close(program(x, **others), model(x, **others))


@torch.no_grad()
@together("name", ["fox", "cope", "path", "rope"])
def test_an_exported_decoder_reads_padded_batches_of_other_sizes(name: str) -> None:
    model, batch = model_of(name), {0: torch.export.Dim("batch")}
    dynamic = {"x": batch, "mask": batch}
    x, mask = torch.randn(2, 7, DIM), torch.tensor([[1] * 7, [0] * 3 + [1] * 4])
    program = torch.export.export(model, (x,), {"mask": mask}, dynamic_shapes=dynamic).module()
    x, mask = torch.randn(3, 7, DIM), torch.tensor([[1, 0] * 3 + [1], [0] * 3 + [1] * 4, [1] * 6 + [0]])
    assert_close(program(x, mask=mask), model(x, mask=mask))


@torch.no_grad()
@together("name", ENCODERS, usual=lambda name: name.split()[-1] in ("tupe", "bipe-alibi"))
def test_an_exported_encoder_reads_packed_sequences_of_other_lengths(name: str) -> None:
    """Down to a single token."""
    model, ids = model_of(name), torch.zeros(2, 12, dtype=torch.int64)
    shapes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=LENGTH)}
    dynamic = {"x": shapes, "segment_ids": shapes}
    x = torch.randn(2, 12, DIM)
    program = torch.export.export(model, (x,), {"segment_ids": ids}, dynamic_shapes=dynamic).module()
    for batch, length in ((1, 1), (3, 2), (2, 13)):
        x, ids = torch.randn(batch, length, DIM), torch.arange(length).expand(batch, -1) // 4
        assert_close(program(x, segment_ids=ids), model(x, segment_ids=ids))


@together("name", [*DECODERS, *ENCODERS], usual=is_usual)
def test_gradients_per_sequence(name: str) -> None:
    """With torch.func, with recomputed activations and without."""
    model, x = model_of(name).double(), torch.randn(3, 7, DIM, dtype=torch.float64)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7, [1] * 6 + [0]])
    parameters = {key: value.detach() for key, value in model.named_parameters()}

    def loss(values: dict[str, Tensor], x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = functional_call(model, values, (x[None],), {"mask": mask[None]})
        return y.square().sum()

    alone = [torch.func.grad(loss)(parameters, *each) for each in zip(x, mask, strict=True)]
    model.checkpoint_activations = True
    together = vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, x, mask)
    dtype = torch.float32 if "pope" in name else None  # of the gradients of its angles
    for key, values in together.items():
        assert_close(values, torch.stack([each[key] for each in alone]), depth=4, scale=alone, dtype=dtype)


@together("name", [*DECODERS, *ENCODERS], usual=is_usual)
def test_transforms_of_a_model_that_trains(name: str) -> None:
    """An ensemble and a padded batch under vmap, and a Jacobian, while the parameters require gradients."""
    models = [model_of(name).double() for _ in range(2)]
    model, x = models[0], torch.randn(2, 7, DIM, dtype=torch.float64)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    ensemble = vmap(lambda *state: functional_call(model, state, (x,)))(*stack_module_state(models))
    assert_close(ensemble, torch.stack([each(x) for each in models]))
    padded = vmap(lambda x, mask: model(x[None], mask=mask[None])[0])(x, mask)
    assert_close(padded[mask == 1], model(x, mask=mask)[mask == 1])
    jacobian = jacrev(lambda x: model(x[None])[0].sum(-1))(x[0])
    (gradient,) = torch.autograd.grad(model(leaf := x[:1].clone().requires_grad_()).sum(), leaf)
    assert_close(jacobian.sum(0), gradient[0], depth=4)


@torch.no_grad()
@together("name", [*DECODERS, *ENCODERS], usual=is_usual)
def test_bfloat16(name: str) -> None:
    """Rounding is all that changes, and in bfloat16 too padded is packed is alone, to a few roundings of a layer."""
    model = model_of(name)
    x = torch.randn(1, 13, DIM)
    exact = model(x)
    model, x = model.bfloat16(), x.bfloat16()
    y = model(x)
    assert y.dtype == torch.bfloat16
    assert (y - exact).square().mean() < 1e-3 * exact.square().mean()
    padded = nn.functional.pad(x, (0, 0, 5, 0))
    mask = nn.functional.pad(torch.ones(1, 13), (5, 0))
    packed = model(torch.cat((x, x), dim=1), segment_ids=torch.arange(26)[None] // 13)
    for other in (model(padded, mask=mask)[:, 5:], packed[:, :13], packed[:, 13:]):
        assert (other - y).square().mean() < 1e-4 * y.float().square().mean()


SHARDED = ("learned", "t5/tupe/fire/pope/seqpe/fox/cope/dape/path/learned-averaged/rope", "encoder tupe")
"""One encoding of each kind of parameters, and one without any; most of them in a layer each of one model."""


def main(rank: int) -> None:
    warnings.simplefilter("error")
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    for name in (*DECODERS, *ENCODERS) if is_whole() else SHARDED:
        torch.manual_seed(0)
        whole = model_of(name, layers=max(2, 1 + name.count("/")), checkpoint_activations=True)
        sharded = copy.deepcopy(whole)
        for layer in sharded.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        x, segment_ids = torch.randn(2, 13, DIM), torch.tensor([[0] * 5 + [1] * 8] * 2)
        for arguments in ({}, {"segment_ids": segment_ids}):
            alone, together = whole(x, **arguments), sharded(x, **arguments)
            assert_close(together, alone, msg=name)
        alone.square().mean().backward()
        together.square().mean().backward()
        for (key, ours), (_, theirs) in zip(sharded.named_parameters(), whole.named_parameters(), strict=True):
            if theirs.grad is not None:
                gradient: Tensor = ours.grad.full_tensor()  # type: ignore[union-attr]
                assert_close(gradient, theirs.grad, msg=f"{name} {key}")
        if isinstance(whole, Decoder):
            with torch.no_grad():
                cache = sharded.new_cache(2, 13)
                steps = [sharded(part, cache=cache, text_length=13) for part in x.split([11, 1, 1], dim=1)]
                assert_close(torch.cat(steps, 1), whole(x), msg=f"{name} cached")


def test_sharded_it_is_whole(tmp_path: Path) -> None:
    start_both(__file__, tmp_path / "store")


if __name__ == "__main__":
    be_both(main)
