"""The base classes of encodings. Position can enter a Transformer at the input, the queries and keys, or the scores.

Shapes, here and everywhere in posembed: B batch, H heads, L length, D width of the model, N rows of a table.

A model calls an encoding's methods one by one. Called on its own, an encoding follows one of three contracts, or none:

    input       x (B, L, D), position_ids=None, *, offset=0     -> (B, L, D)          InputEncoding
    rotation    q, k (B, H, L, d), position_ids=None, *, offset=0, text_length=None -> q, k    RotationEncoding
    bias        q_length, k_length=None                         -> (H, Lq, Lk)        ScoreBias (score_bias.py)
    none        cannot be called on its own, because it acts in several places, or differently in each layer. The
                ArgumentError names the methods to use instead
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.arguments import ChecksCalls, Float, Integer
from posembed.errors import ArgumentError, CallError
from posembed.positions.checks import require_floats
from posembed.positions.from_layout import given_or_consecutive, require_heads_fit, require_text_length
from posembed.settings import Amount, Count, Pair, Probability
from posembed.tables.rows import table_rows

LayerT = TypeVar("LayerT", bound=nn.Module)
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""FlexAttention's type: (score, batch, head, query index, key index), all scalar tensors -> the new score."""


class Content(NamedTuple):
    """What ``at_content`` reads about a layer's tokens, besides their queries and keys.

    of_tokens: the result of the method ``of_tokens``, (B, Lk, S), or None. q_positions: (Lq,) or (B, Lq). k_positions:
    (Lk,) or (B, Lk). seen: returns a mask that broadcasts to (B, H, Lq, Lk), True where a query sees a key, or None for
    all True. before: returns the index of the token before each of the Lk tokens in its text, (1, Lk) or (B, Lk), -1
    for a text's first token, or None if nothing is packed or padded. At padding the index is arbitrary.
    """

    of_tokens: Tensor | None
    q_positions: Tensor
    k_positions: Tensor
    seen: Callable[[], Tensor | None]
    before: Callable[[], Tensor | None]

    def one_before(self, values: Tensor) -> Tensor:
        """Returns for each of the Lk tokens the values (B, Lk, S) of the token before it in its text, or zeros."""
        index, behind_zeros = self.before(), F.pad(values, (0, 0, 1, 0))
        if index is None:
            return behind_zeros[:, :-1]
        return behind_zeros.gather(1, (index + 1).unsqueeze(-1).expand(values.shape))


class PositionEncoding(ChecksCalls, nn.Module):
    """The base class of all encodings. An encoding overrides the methods it uses; the others do nothing.

    A model that supports all methods works with any encoding. Position enters queries and keys in two ways:
    ``before_queries_keys`` adds rows to the input of W_q and W_k, and ``at_queries_keys`` changes the projected heads.
    It enters the scores as a bias: ``at_scores`` returns a dense tensor, and ``score_mod`` returns the same bias as a
    function for FlexAttention. A model calls only one of these two.

    Raises:
        ArgumentError: ``forward`` is called on an encoding whose methods only a model can call.

    Examples:
        >>> import torch
        >>> from posembed import PositionEncoding
        >>> class LastToken(PositionEncoding):
        ...     "Marks the last token of each sequence."
        ...     def at_input(self, x, position_ids, *, text_length=None):
        ...         return x + (position_ids == position_ids.max())[..., None]
        >>> LastToken().at_input(torch.zeros(1, 3, 2), torch.arange(3))[0].tolist()
        [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    """

    window: int | None = None
    """The causal window that the model applies: token i attends to i - window + 1 .. i. None means all tokens."""

    log_length: int | None = None
    """The model multiplies a query that sees n > log_length tokens by ln n / ln log_length. None means no factor."""

    causal_only: bool = False
    """Whether the formula assumes that no token sees a later one, so that encoders cannot use it."""

    per_layer: bool = False
    """Whether each layer needs its own parameters. A model that gets the encoding by name then builds one per layer."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raises ArgumentError unless a subclass follows the contract of an input, a rotation or a bias."""
        raise ArgumentError(
            f"{type(self).__name__} cannot be called on its own: a model calls at_input, before_queries_keys, "
            "at_queries_keys and, on the result of in_layer, at_scores, each in its place (docs/layers.md)"
        )

    def in_layer(self, project: Callable[[Tensor], Tensor]) -> PositionEncoding:
        """Returns the encoding for one layer: this encoding, unless its scores depend on the layer's own W_q and W_k.

        ``project`` is as in ``before_queries_keys``. A model calls this method once per layer. If the result is another
        encoding, the model uses that encoding for the layer's bias.
        """
        return self

    def training_positions(self, batch: Amount, length: Amount, generator: torch.Generator) -> Tensor:
        """Returns position ids for training, int64 on the CPU: (L,), or (B, L) if they are drawn per sequence.

        The ids count from 0 unless the encoding trains on random positions.
        """
        return torch.arange(length, device="cpu")

    def auxiliary_loss(self, length: Count, generator: torch.Generator) -> Tensor | None:
        """Returns a scalar that training on texts of ``length`` tokens adds to the model's loss, or None for nothing.

        Random positions are drawn from the generator, on the CPU.
        """
        return None

    def table(self) -> Tensor | None:
        """Returns the learned rows (N, D), with their gradient, or None for an encoding that has no rows."""
        return None

    def on_grid(self, grid: Pair, *, shared: bool = False) -> PositionEncoding:
        """Returns this encoding for images of ``grid``, (height, width) in patches, with one token before the patches.

        The result is a copy, or this encoding if nothing depends on the grid; this encoding stays unchanged. With
        ``shared``, the copy is computed from this encoding's parameters, so that training on several grids trains them.
        """
        return self

    def at_input(
        self,
        x: Float[Tensor, "B L D"],
        position_ids: Integer[Tensor, "... L"],
        *,
        text_length: int | Tensor | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Returns x (B, L, D) with position information added. ``position_ids`` are (L,) or (B, L).

        ``text_length`` is as in ``at_queries_keys``.
        """
        return x

    def before_queries_keys(
        self, project: Callable[[Tensor], Tensor], position_ids: Integer[Tensor, "... L"]
    ) -> Float[Tensor, "... L E"] | None:
        """Returns how queries and keys change if rows P are added to the input h of W_q and W_k, but not of W_v.

        Since W(h + P) = W h + W P, it is enough to project the rows: ``project`` maps (N, D) to (N, 2 D), the products
        with W_q and W_k side by side, without their biases. Returns (L, 2 D) or (B, L, 2 D), or None for no change.
        """
        return None

    def at_queries_keys(
        self,
        q: Float[Tensor, "... H Lq d"],
        k: Float[Tensor, "... Hk Lk d"],
        q_positions: Integer[Tensor, "... Lq"],
        k_positions: Integer[Tensor, "... Lk"],
        *,
        text_length: int | Tensor | None = None,
    ) -> tuple[Float[Tensor, "... H Lq e"], Float[Tensor, "... Hk Lk e"]]:
        """Applies the positions (L,) or (B, L) to q (B, H, Lq, D/H) and k (B, H, Lk, D/H). Called in each layer.

        The returned q and k have the same width: usually D/H, but 2 D/H for PoPE. The scores are their products
        divided by the square root of that width, as in scaled_dot_product_attention; values keep their own width.

        ``text_length`` is the number of tokens in each token's text: a number, (B,), or (B, L) for packed texts. None
        means the largest position of each sequence plus one. A model may pass it to any encoding. Every rotation checks
        the text length, but only a RoPE with a scaling computes its angles from this length.
        """
        return q, k

    def at_scores(
        self, q_positions: Integer[Tensor, "... Lq"], k_positions: Integer[Tensor, "... Lk"]
    ) -> Float[Tensor, "... H Lq Lk"] | None:
        """Returns the bias to add to each layer's scores, (H, Lq, Lk) or (B, H, Lq, Lk), or None for no bias."""
        return None

    def of_tokens(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L S"] | None:
        """Returns what ``at_content`` needs of each token besides queries and keys, such as gates, or None for nothing.

        ``x`` (B, L, D) is the input of a layer's attention. The values are float32 or wider. The model sets the values
        at padding to 0, and keeps the values of earlier tokens in its cache.
        """
        return None

    def at_content(
        self, q: Float[Tensor, "B H Lq d"], k: Float[Tensor, "B Hk Lk d"], content: Content
    ) -> tuple[Float[Tensor, "B H Lq e"], Float[Tensor, "B Hk Lk e"], Float[Tensor, "B H Lq Lk"] | None]:
        """Returns q, k and a bias whose scores, q k / sqrt(e) + bias, depend on the tokens' content.

        Called in each layer, after ``at_queries_keys`` and the log-length factor, and instead of ``at_scores``. The
        queries are the last Lq of the Lk tokens. If e is 0, the bias is the scores.
        """
        return q, k, None

    def score_mod(self, q_positions: Tensor, k_positions: Tensor) -> ScoreMod | None:
        """Returns the bias of ``at_scores`` as a FlexAttention ``score_mod``, or None for no bias.

        This avoids the (H, Lq, Lk) tensor. Positions, (L,) or (B, L), are looked up by query and key index.
        """
        return None

    def extra_repr(self) -> str:
        """Formats the constructor's arguments, read from the attributes of the same names."""
        shown = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name, inspect.Parameter.empty)
            if value is not inspect.Parameter.empty and not isinstance(value, Tensor):
                text = repr(value) if isinstance(value, str) else str(value)
                shown.append(f"{name}={text}" if parameter.kind is parameter.KEYWORD_ONLY else text)
        return ", ".join(shown)


class InputEncoding(PositionEncoding):
    """An encoding that adds rows of width ``dim`` to the input, then applies dropout: the contract "input"."""

    rows: Callable[..., Tensor]
    """Maps position ids of any shape (...) to their rows (..., D)."""

    def __init__(self, dim: Count, dropout: Probability) -> None:
        super().__init__()
        self.dim, self.dropout = dim, dropout

    def forward(
        self,
        x: Float[Tensor, "B L D"] | Integer[Tensor, "B L"],
        position_ids: Integer[Tensor, "... L"] | None = None,
        *,
        offset: int | Tensor = 0,
    ) -> Float[Tensor, "B L D"]:
        """Adds the rows of the positions to x (B, L, D), then applies dropout in training.

        A learned table also takes integer x (B, L), such as token ids, and returns the rows alone, without dropout.
        Only the shape of x is then used.

        Args:
            position_ids: (L,), (1, L) or (B, L), any integer dtype. None means consecutive positions.
            offset: the number of earlier tokens, if positions are consecutive: a number, or (B,).

        Raises:
            ArgumentError: ids or offsets that are not integers, or shapes that do not fit.
            PositionError: a position without a row.
        """
        return self._added(x, self._rows_of(x, position_ids, offset))

    def at_input(self, x: Tensor, position_ids: Tensor, *, text_length: int | Tensor | None = None) -> Tensor:
        """Calls ``forward`` with explicit ids: x (B, L, D), position_ids (L,), (1, L) or (B, L) -> (B, L, D)."""
        return self(x, position_ids)

    def _rows_of(self, x: Tensor, position_ids: Tensor | None, offset: int | Tensor) -> Tensor:
        """Returns the rows to add to x, (L, D) or (B, L, D), after checking that the arguments fit."""
        return self.rows(self._ids(x, position_ids, offset))

    def _require_input(self, x: Tensor) -> None:
        require_floats(x, "x")
        if x.dim() != 3 or x.shape[-1] != self.dim:
            remedy = ". For the rows alone call .rows(position_ids)" if x.dim() == 2 else ""
            raise ArgumentError(f"x must be (B, L, D={self.dim}); got {tuple(x.shape)}{remedy}")

    def _ids(self, x: Tensor, position_ids: Tensor | None, offset: int | Tensor) -> Tensor:
        """Returns the position ids of x, (L,), (1, L) or (B, L), after checking that the arguments fit."""
        self._require_input(x)
        return given_or_consecutive(position_ids, offset, batch=x.shape[0], length=x.shape[1], device=x.device)

    def _added(self, x: Tensor, rows: Tensor) -> Tensor:
        return F.dropout(x + rows, self.dropout, self.training)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, strict: bool, *lists: list[str]
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *lists)
        missing = lists[0]
        if (key := f"{prefix}weight") in missing and hasattr(self, "from_state_dict"):
            missing[missing.index(key)] = _MissingTable(key)


class _MissingTable(str):
    """The key of a table that a state dict lacks. It adds a remedy to PyTorch's error for strict loading."""

    def __format__(self, _: str) -> str:
        return f"{self!s}: if the table has another name, from_state_dict or from_module of the layer's class finds it"


class RotationEncoding(PositionEncoding):
    """An encoding that rotates queries and keys: the contract "rotation". A subclass defines ``turned``."""

    head_dim: int

    @property
    def turns_are_final(self) -> bool:
        """Whether a key's rotation depends only on its own position, so that a cache can hold rotated keys."""
        return False

    def turned(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, text_length: int | Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Rotates q and k for ``at_queries_keys``, which has checked the arguments."""
        raise NotImplementedError

    def at_queries_keys(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, *, text_length: int | Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        for x, position_ids, name in ((q, q_positions, "q_positions"), (k, k_positions, "k_positions")):
            require_heads_fit(x, position_ids, name)
            if x.shape[-1] != self.head_dim:
                raise ArgumentError(f"q and k must be (B, H, L, d={self.head_dim}); got {tuple(x.shape)}")
            require_text_length(text_length, x.shape[-2], batch=x.shape[0] if x.dim() == 4 else 1)
        return self.turned(q, k, q_positions, k_positions, text_length)

    def forward(
        self,
        q: Float[Tensor, "... H L d"],
        k: Float[Tensor, "... Hk L d"],
        position_ids: Integer[Tensor, "... L"] | None = None,
        *,
        offset: int | Tensor = 0,
        text_length: int | Tensor | None = None,
    ) -> tuple[Float[Tensor, "... H L e"], Float[Tensor, "... Hk L e"]]:
        """Rotates q (B, H, L, d) and k (B, Hk, L, d) by their positions.

        Args:
            position_ids: (L,), (1, L) or (B, L), any integer dtype. None means consecutive positions.
            offset: the number of earlier tokens, if positions are consecutive: a number, or (B,).
            text_length: as in ``at_queries_keys``. Pass it if the RoPE scaling has no fixed factor and a sequence
                of this input is not one whole text: a shard, packed texts, padded texts that share position ids
                (L,), or new tokens after a cache.

        Raises:
            ArgumentError: ids or offsets that are not integers, or shapes that do not fit.
        """
        if q.shape[-1] != self.head_dim or k.shape[-1] != self.head_dim or q.shape[-2] != k.shape[-2]:
            raise ArgumentError(
                f"q and k must be (B, H, L, d={self.head_dim}) with the same L, got {tuple(q.shape)} and "
                f"{tuple(k.shape)}; for different lengths call at_queries_keys with both positions"
            )
        batch = q.shape[0] if q.dim() == 4 else 1
        ids = given_or_consecutive(position_ids, offset, batch=batch, length=q.shape[-2], device=q.device)
        return self.at_queries_keys(q, k, ids, ids, text_length=text_length)


def overrides(encoding: PositionEncoding, *names: str) -> bool:
    """Returns whether an encoding's class defines any of these methods of PositionEncoding itself."""
    return any(getattr(type(encoding), name) is not getattr(PositionEncoding, name) for name in names)


def reads_content(encoding: PositionEncoding) -> bool:
    """Returns whether the scores of an encoding depend on the tokens' content: it defines ``at_content``."""
    # A module that wraps an encoding, as torch.compile's does, has its methods, but not its type's.
    return encoding.at_content.__func__ is not PositionEncoding.at_content  # type: ignore[attr-defined]


def projected(project: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Returns the rows (N, D) projected to (N, 2 D). Raises ArgumentError for a projection of another width."""
    both: Tensor = project(rows)
    if both.shape != (rows.shape[0], 2 * rows.shape[1]):
        raise ArgumentError(
            f"project must map rows {tuple(rows.shape)} to {(rows.shape[0], 2 * rows.shape[1])}, W_q and W_k "
            f"side by side without W_v; got {tuple(both.shape)}"
        )
    return both


@torch.no_grad()
def fill_(parameter: Tensor, values: Tensor) -> None:
    """Copies values of the unsharded shape into a parameter. Each process keeps its own shard of a sharded parameter.

    Every process computes all values, and the first process's values are used, so that random values agree.
    """
    values = values.to(parameter.device, parameter.dtype)
    data = parameter.data
    if type(data) is not Tensor:
        from torch.distributed.tensor import DTensor, distribute_tensor

        if isinstance(data, DTensor):
            values = distribute_tensor(values.contiguous(), data.device_mesh, data.placements)
    parameter.copy_(values)


def copy_with(layer: LayerT, *, shared: bool = False, **parameters: Tensor) -> LayerT:
    """Returns a copy of a layer in which these parameters have new values, of any shape.

    With ``shared``, the new values stay in their autograd graph, and the copy shares all other parameters.
    """
    if shared:
        changed = copy.copy(layer)
        changed._parameters = {name: old for name, old in layer._parameters.items() if name not in parameters}
        for name, values in parameters.items():
            setattr(changed, name, values)
        return changed
    changed = copy.deepcopy(layer)
    for name, values in parameters.items():
        old = getattr(layer, name)
        values = values.detach().to(old.device, old.dtype)
        setattr(changed, name, nn.Parameter(values, requires_grad=old.requires_grad))
    return changed


def refuse_given(arguments: Mapping[str, Any], *decided: str) -> None:
    """Raises CallError if an argument in ``decided`` is given, because an existing table decides these arguments."""
    if given := [name for name in decided if name in arguments]:
        raise CallError(
            f"the table decides {', '.join(decided)}: leave out {', '.join(given)}. For another length, pass the table "
            "through posembed.resize_table"
        )


def adopted(layer: LayerT, table: Tensor) -> LayerT:
    """Gives a new layer the values, dtype, device and ``requires_grad`` of an existing table, and returns the layer.

    Raises:
        ArgumentError: a table with another shape than the layer's ``weight``.
    """
    rows, held = table_rows(table), layer.get_parameter("weight")
    if rows.shape != held.shape:
        raise ArgumentError(
            f"expected a table of {tuple(held.shape)} for {layer}; got {tuple(rows.shape)}. Pass the grid and the "
            "layout that the table has"
        )
    layer.to(table)
    values = rows.detach().clone(memory_format=torch.contiguous_format)
    layer.weight, layer.init = nn.Parameter(values, requires_grad=table.requires_grad), "given"  # type: ignore
    return layer
