"""The objectives of language models: their own loss, on windows of the new length.

A tuning at the old length reads the same tokens in pieces of the old length. Each item's loss is the mean over its
predicted tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posembed.errors import CheckpointError
from posembed.evaluation.api import device_named, notes_on, planned_rows
from posembed.evaluation.counts import MASKED_SHARE
from posembed.evaluation.measures import MEASUREMENTS, METRICS
from posembed.evaluation.plan import Plan
from posembed.evaluation.runnable import Runnable
from posembed.evaluation.texts import Sample, special_tokens
from posembed.evaluation.ways import padded
from posembed.measure.jobs import Kept
from posembed.tuning.draws import pieces, seeded, window_of
from posembed.tuning.objectives import Objective, Setup

MOST_MEASURED = 100
"""The largest number of held-out windows: more would take long and add little precision."""
SLIDING = {"sliding windows": "sliding"}
"""The best way to read at the old length, as a baseline in addition to those of an evaluation."""
NOTE = "Sliding windows overlap by half. Each token counts once, in the window that gives it the more context."
NOT_PREDICTED = -100
SHARE_OF_MASK, SHARE_OF_RANDOM = 0.8, 0.1
"""The shares of a masked language model's predicted tokens that become the mask token, and a random token."""


class Language(Objective):
    """The objective of a kind of language model.

    ahead: how many positions a predicted token is after the logits that predict it.
    """

    ahead: ClassVar[int]

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.windows = setup.texts.windows
        self.before, self.after = special_tokens(setup.tokenizer)
        self.pad = setup.tokenizer.pad_token_id or 0

    def read_and_predicted(self, ids: Tensor, item: int, seed: int) -> tuple[Tensor, Tensor]:
        """Returns the tokens (W,) that an item reads, and the targets (W,): a token, or ``NOT_PREDICTED``."""
        raise NotImplementedError

    def loss(self, model: nn.Module, items: Sequence[int], *, length: int, seed: int) -> Tensor:
        read: list[Tensor] = []
        predicted: list[Tensor] = []
        front, back = (torch.tensor(tokens, dtype=torch.long) for tokens in (self.before, self.after))
        parts = pieces(self.setup.texts.width, length - len(front) - len(back))
        for item in items:
            ids = self.windows[window_of(item, len(self.windows), seed)].ids
            given, wanted = self.read_and_predicted(ids, item, seed)
            read += [torch.cat([front, given[part], back]) for part in parts]
            predicted += [F.pad(wanted[part], (len(front), len(back)), value=NOT_PREDICTED) for part in parts]
        device = next(model.parameters()).device
        rows, mask = padded(read, self.pad)
        answers, _ = padded(predicted, NOT_PREDICTED)
        answers = F.pad(answers[:, self.ahead :], (0, self.ahead), value=NOT_PREDICTED).to(device)
        logits = model(input_ids=rows.to(device), attention_mask=mask.to(device)).logits
        losses = F.cross_entropy(
            logits.flatten(0, 1).float(), answers.flatten(), reduction="none", ignore_index=NOT_PREDICTED
        )
        of_items, numbers = (each.view(len(items), -1).sum(dim=1) for each in (losses, answers != NOT_PREDICTED))
        return (of_items / numbers.clamp(min=1)).mean()

    @cached_property
    def held_out(self) -> tuple[list[int], Sample]:
        """The document number of each held-out window, and the windows: at most ``MOST_MEASURED``, evenly chosen."""
        width = self.setup.texts.width
        found = [
            (number, document.ids[start : start + width])
            for number, document in enumerate(self.setup.texts.held_out)
            for start in range(0, len(document.ids) - width + 1, width)
        ]
        step = max(1.0, len(found) / MOST_MEASURED)
        documents, ids = zip(*(found[int(at * step)] for at in range(min(len(found), MOST_MEASURED))), strict=True)
        sample = Sample(torch.stack(ids), self.before, self.after, self.setup.tokenizer.mask_token_id)
        return list(documents), sample

    def plan(self, tuned: Runnable, original: Runnable, old: Runnable | None, kept: Kept) -> Plan:
        (documents, sample), measurement = self.held_out, MEASUREMENTS[original.kind]
        lengths = (self.setup.old_length, self.settings.length)
        setting = measurement.setting(lengths[0], self.settings.seed)
        runnables = [each for each in (tuned, original, old) if each is not None]
        rows = planned_rows(
            runnables,
            {each.name: sample for each in runnables},
            lengths,
            setting,
            baselines={**measurement.baselines, **SLIDING},
            of=[*(each for each in runnables if each is not original), original],
        )
        how = (
            f"{len(sample.ids):,} windows of {lengths[-1]:,} tokens from {len(set(documents)):,} held-out documents; "
            f"{measurement.note.format(setting).replace('each text', 'each window')}."
        )
        notes = (how, *self.setup.texts.notes, NOTE, *notes_on(runnables, {}, rows, lengths))
        # The loss that is trained comes first, and so decides which row is recommended.
        measures = tuple(sorted(measurement.measures, key=lambda name: METRICS[name].kind != "log"))
        where = device_named(self.setup.device)
        given = (original.kind, measures, lengths, len(sample.ids), rows, notes, kept, where)
        return Plan(*given, unit="document", owners=documents)


class Causal(Language):
    """The next token of a causal language model."""

    ahead = 1

    def read_and_predicted(self, ids: Tensor, item: int, seed: int) -> tuple[Tensor, Tensor]:
        return ids, ids


class Masked(Language):
    """The masked tokens of a masked language model: 15% of a window, drawn again for each item (Devlin et al.,
    arXiv:1810.04805, 3.1). 80% of them become the mask token, 10% a random token, and 10% stay."""

    ahead = 0

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if setup.tokenizer.mask_token_id is None:
            expected = "expected a tokenizer with a mask token"
            raise CheckpointError(f"{setup.original.name}: {expected}; save the model's own tokenizer into that folder")
        special = {*setup.tokenizer.all_special_ids, *self.before, *self.after}
        self.ordinary = torch.tensor([each for each in range(len(setup.tokenizer)) if each not in special])

    def read_and_predicted(self, ids: Tensor, item: int, seed: int) -> tuple[Tensor, Tensor]:
        draw = seeded(seed, f"masks {item}")
        chosen = torch.rand(ids.shape, generator=draw) < MASKED_SHARE
        kind = torch.rand(ids.shape, generator=draw)
        others = self.ordinary[torch.randint(len(self.ordinary), ids.shape, generator=draw)]
        read = torch.where(chosen & (kind < SHARE_OF_RANDOM), others, ids)
        read = read.masked_fill(chosen & (kind >= 1 - SHARE_OF_MASK), self.setup.tokenizer.mask_token_id)
        return read, ids.masked_fill(~chosen, NOT_PREDICTED)
