"""Why a choice is recommended, and what to mind with it, in words made from the needs."""

from __future__ import annotations

from posembed.lab.advice.choices import Choice, factor_of, window_of
from posembed.lab.advice.needs import Needs, shown

FINE_TUNED_TO = 32
"""YaRN's paper (arXiv:2309.00071) fine-tunes to 32 times the training length."""
RESIZED_TO = 8
"""Longformer (arXiv:2004.05150) tiles a table to 8 times its length."""

NOT_REACH = "low perplexity is not reach: nothing beyond the windows' reach is used"


def reason(choice: Choice, needs: Needs) -> str:
    trained = f"{needs.train_length:,}"
    grid = shown(needs.largest_grid) if needs.largest_grid is not None else ""
    longest = "any length" if needs.longest is None else f"{needs.longest:,}"
    further = f"it must go on to {longest} after training at {trained}"
    fixed = f"nothing longer than the training length of {trained} comes"
    return {
        "keep": f"the checkpoint's positions reach {grid or longest}, and everything in it was trained with them",
        "resize": "the checkpoint was trained with its table, so the table is what to lengthen, to "
        f"{grid or longest}; the other weights stay as they are",
        "learned": f"the length is fixed at {trained}, every row is trained, and {choice.parameters(needs):,} "
        "parameters are few beside the token table",
        "learned-grid": f"the grid is fixed at {grid}, and a row for each place is what image models take",
        "learned-grid, re-gridded": f"a table of the grid trained on can be interpolated to {grid}",
        "rolling": f"{further}; in a ring, under a window, no token ever meets what training did not show, and "
        "far tokens need not be fetched",
        "rope+window": f"{further}, and under a window no distance is new",
        "rope": f"{fixed}, it has no parameters, and it is what most new models take",
        "rope-scaled": f"{further} with all tokens in reach, which neither a window nor ALiBi gives, and past its "
        "training length plain RoPE gets worse",
        "alibi": f"{further}, and its bias knows every distance" if not needs.fixed else f"{fixed}, and it has none",
        "sinusoidal": f"{fixed}, and it has no parameters",
    }[choice.name]


def caveats(choice: Choice, needs: Needs) -> list[str]:
    held = needs.checkpoint
    notes = [f"of the checkpoint's table: {finding}" for finding in (held.findings if held else ())]
    notes += {
        "resize": [
            "new rows are only a start: fine-tune at the new length, and measure before and after"
            + (" (posembed evaluate, on your own text)" if needs.grid is None else "")
        ],
        "learned": [f"position {needs.train_length:,} (counted from 0) has no row, and gets none without a resize"],
        "rolling": [
            f"the model's attention must apply the window, here {window_of(needs)} with 12 layers, in training "
            "and after: its reach through all layers has to stay within the training length",
            NOT_REACH,
        ],
        "rope+window": [NOT_REACH],
        "rope-scaled": [
            "fine-tune at the longer length, and test with a passkey or copy task: low perplexity alone does not "
            "show that far tokens are found"
        ],
        "alibi": ["its penalty hides far tokens: low perplexity does not show that they are found"],
        "learned-grid, re-gridded": ["fine-tune at the larger size; interpolate bicubic with antialiasing, as timm"],
    }.get(choice.name, [])
    return [*notes, *_beyond_evidence(choice, needs), "data and tuning matter more than this choice"]


def _beyond_evidence(choice: Choice, needs: Needs) -> list[str]:
    """Where a choice is asked for more than papers show, or a checkpoint is left behind."""
    held, factor, notes = needs.checkpoint, factor_of(needs), []
    if choice.name == "rope-scaled":
        if factor is None:
            notes.append("no factor reaches without limit: choose one, and feed longer text in pieces")
        elif factor > FINE_TUNED_TO:
            notes.append(f"a factor of {factor:.0f} is more than the {FINE_TUNED_TO} that YaRN's paper shows")
        if held is not None and held.length is None:
            notes.append("only if the checkpoint has RoPE: with ALiBi or a relative bias there is nothing to scale")
    if held is None or held.length is None:
        return notes
    if choice.name == "resize" and needs.longest is not None and needs.longest > RESIZED_TO * held.length:
        times = needs.longest / held.length
        notes.append(f"{times:.0f} times its length is more than the {RESIZED_TO} times that Longformer shows")
    if choice.name not in ("keep", "resize"):
        notes.append(
            f"the checkpoint's table ends at {held.length:,}, so this means training anew; else feed it text in "
            f"pieces of {held.length:,}"
        )
    return notes
