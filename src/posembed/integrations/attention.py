"""The attention that posembed registers with transformers, and a function for GPT-Neo, which does not use it.

A model finds the functions by the name in its config (``AttentionInterface``, ``AttentionMaskInterface``). The layers
get the ``ForwardPass``, which holds the tokens' positions, as a keyword argument that most models pass on to their
attention, or else as an attribute of the mask. Both ways also work if gradient checkpointing reruns a layer.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from posembed.errors import ArgumentError
from posembed.integrations.forward_pass import Current, ForwardPass, projection
from posembed.versions import check_version, names_versions

check_version("transformers")
with names_versions("transformers"):
    from transformers import AttentionInterface, AttentionMaskInterface, Cache, PreTrainedModel  # noqa: F401
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask
    from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoSelfAttention

NAME = "posembed"


CURRENT: Current[ForwardPass] = Current(NAME)
"""The pass of the model whose forward is running."""


def attention_with_positions(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    window: int | None = None,
    posembed: ForwardPass | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Applies an encoding to queries, keys and scores, then attends like "sdpa". Returns (B, Lq, H, d), None.

    Raises:
        ArgumentError: the layer got no ForwardPass.
    """
    tokens = posembed or getattr(attention_mask, NAME, None) or CURRENT.held[NAME]
    if tokens is None:
        raise ArgumentError(
            f"{type(module).__name__} did not get the positions of its tokens: the model was not prepared by "
            "posembed.integrations.transformers.replace_positions, or a layer runs again under gradient "
            'checkpointing with use_reentrant=True; pass {"use_reentrant": False}'
        )
    if posembed is None:
        tokens.carried_by_keyword = False
    if attention_mask is not None and attention_mask.numel() == 1 and tokens.image:
        attention_mask = None
    causal: bool = module.is_causal if is_causal is None else is_causal  # type: ignore[assignment]
    tokens.seen_as_causal.append(causal)
    project = projection(module)
    scaling = query.size(-1) ** -0.5 if scaling is None else scaling
    of_module = getattr(module, "scaling", scaling)  # OPT has already multiplied its queries by it
    applied = of_module / scaling if isinstance(of_module, float) else 1.0
    query, key, scaling = tokens.queries_and_keys(query, key, project, scaling, applied=applied, window=window)
    mask = tokens.mask(attention_mask, query, key, project, causal=causal, window=window)
    attended, _ = sdpa_attention_forward(
        module, query, key, value, mask, dropout=dropout, scaling=scaling, is_causal=causal, **kwargs
    )
    return attended, None


def mask_that_carries(*args: Any, **kwargs: Any) -> Tensor | None:
    """Returns the boolean mask (B, 1, Lq, Lk) of "sdpa". If no keyword carries the ForwardPass, the mask does."""
    tokens = CURRENT.held[NAME]
    carries = tokens is not None and not tokens.carried_by_keyword
    if carries:
        kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    mask = sdpa_mask(*args, **kwargs)
    return carrying(mask, tokens) if carries else mask


def carrying(mask: Tensor, tokens: ForwardPass | None) -> Tensor:
    """Sets the ForwardPass as an attribute of a mask. A mask of one element, made only for this, hides nothing."""
    setattr(mask, NAME, tokens)
    return mask


AttentionInterface.register(NAME, attention_with_positions)
AttentionMaskInterface.register(NAME, mask_that_carries)


def gpt_neo_attention(
    module: GPTNeoSelfAttention, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None
) -> tuple[Tensor, None]:
    """Replaces GPT-Neo's own ``_attn``. Scores are not divided by sqrt(d); local layers have a window."""
    window = module.config.window_size if module.attention_type == "local" else None
    dropout = module.attn_dropout.p if module.training else 0.0
    attended, _ = attention_with_positions(
        module, query, key, value, attention_mask, dropout=dropout, scaling=1.0, window=window
    )
    return attended.transpose(1, 2), None


def bind_attention(module: GPTNeoSelfAttention, *_: object) -> None:
    """Gives a module its ``_attn``, also before each pass: a replica of DataParallel has the original's ``_attn``."""
    bound = vars(module).get("_attn")
    if bound is None or bound.args[0] is not module:
        module._attn = partial(gpt_neo_attention, module)
