from __future__ import annotations

import numpy as np
import pytest
import torch

from posembed import RotaryEmbedding
from posembed.layers import rotary
from posembed.layers.rotary import Pairing, rotate
from together import together
from tolerance import assert_close

PAIRINGS: list[Pairing] = ["half_split", "interleaved"]


@together("pairing", PAIRINGS)
@together("dtype", [torch.float64, torch.bfloat16])
@together("by_row", [False, True])
def test_pieces_equal_the_whole(
    monkeypatch: pytest.MonkeyPatch, pairing: Pairing, dtype: torch.dtype, by_row: bool
) -> None:
    x = torch.randn(2, 3, 11, 6).to(dtype)
    ids = torch.stack((torch.arange(11), torch.arange(11) * 7)) if by_row else torch.arange(11)
    cos, sin = RotaryEmbedding(6).cos_sin(ids)
    whole = rotate(x, cos, sin, pairing)
    monkeypatch.setattr(rotary, "PIECE", 4 * x[..., 0, :].numel())
    assert torch.equal(rotate(x, cos, sin, pairing), whole)


@pytest.mark.filterwarnings("ignore:`torch.jit")  # by which PyTorch loads its own forward mode
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_gradients_are_those_of_the_formula_in_every_mode(pairing: Pairing) -> None:
    x = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    cos, sin = (t.double() for t in RotaryEmbedding(4).cos_sin(torch.arange(3)))

    def turned(x: torch.Tensor) -> torch.Tensor:
        return rotate(x, cos, sin, pairing)

    assert torch.autograd.gradcheck(turned, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(turned, x)
    # Angles that are learned have gradients too.
    learned = [t.clone().requires_grad_() for t in (cos, sin)]
    assert torch.autograd.gradcheck(lambda x, cos, sin: rotate(x, cos, sin, pairing), (x, *learned))


@pytest.mark.parametrize(("x_dim", "angles_dim"), [(0, None), (3, None), (None, 0), (None, 1), (0, 0), (2, 1)])
def test_it_maps_over_a_further_dimension(x_dim: int | None, angles_dim: int | None) -> None:
    xs, angles = torch.randn(4, 2, 3, 7, 6), torch.randn(4, 7, 3)
    mapped = torch.func.vmap(lambda x, a: rotate(x, a.cos(), a.sin()), in_dims=(x_dim, angles_dim))(
        xs[0] if x_dim is None else xs.movedim(0, x_dim),
        angles[0] if angles_dim is None else angles.movedim(0, angles_dim),
    )
    for n in range(4):
        a = angles[0 if angles_dim is None else n]
        expected = rotate(xs[0 if x_dim is None else n], a.cos(), a.sin())
        assert_close(mapped[n], expected)


def test_half_split_equals_transformers_llama() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(hidden_size=32, num_attention_heads=4, num_key_value_heads=4)
    q, k = torch.randn(2, 2, 4, 11, 8)
    ids = torch.arange(11).expand(2, 11)
    cos, sin = llama.LlamaRotaryEmbedding(config)(q, ids)
    expected_q, expected_k = llama.apply_rotary_pos_emb(q, k, cos, sin)
    turned_q, turned_k = RotaryEmbedding(8)(q, k)
    assert_close(turned_q, expected_q)
    assert_close(turned_k, expected_k)


def test_interleaved_equals_transformers_gptj() -> None:
    gptj = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    q = torch.randn(2, 4, 11, 8)
    sin, cos = gptj.create_sinusoidal_positions(11, 8).chunk(2, dim=-1)
    # GPT-J keeps heads behind the length.
    expected = gptj.apply_rotary_pos_emb(q.transpose(1, 2), sin[None], cos[None]).transpose(1, 2)
    turned, _ = RotaryEmbedding(8, pairing="interleaved")(q, q)
    assert_close(turned, expected)


@together("share", [0.25, 0.5, 0.75, 1.0])
@together("head_dim", [10, 16, 64])
def test_p_rope_is_the_proportional_rope_of_transformers(head_dim: int, share: float) -> None:
    """That of Gemma, from the authors' laboratory."""
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    if "proportional" not in utils.ROPE_INIT_FUNCTIONS:
        pytest.skip("this version of transformers has no proportional RoPE")
    from transformers import LlamaConfig

    rope = {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": share}
    config = LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, rope_parameters=rope)
    theirs, factor = utils.ROPE_INIT_FUNCTIONS["proportional"](config)
    assert factor == 1
    layer, ids = RotaryEmbedding(head_dim, pairs=int(share * head_dim / 2)), torch.arange(50)
    cos, _ = layer.cos_sin(ids)
    assert_close(cos, torch.cos(ids[:, None].float() * theirs), scale=50, terms=1)


@together("length", [1, 6, 7, 64, 512, 100_000])
def test_hope_rotates_what_turns_once_within_the_training_length(length: int) -> None:
    """Chen et al. 2024: components with theta_j < 2 pi / L have no position."""
    theta = 10000.0 ** (-np.arange(0, 32, 2) / 32)
    kept = theta >= 2 * np.pi / length
    layer = RotaryEmbedding(32, pairing="interleaved", pairs=rotary.pairs_within(length, 32))
    assert layer.pairs == kept.sum()
    x = torch.randn(1, 1, 1, 32)
    turned, _ = layer(x, x, torch.tensor([9]))
    pairs = x.double().view(16, 2).numpy() @ [1, 1j] * np.exp(9j * theta * kept)
    expected = np.stack((pairs.real, pairs.imag), axis=-1).flatten()
    assert_close(turned.flatten().numpy(), expected, dtype=torch.float32, scale=9 * x.abs().max().item(), terms=1)
