"""Where each token stands: integer position ids, counted from 0, on the device of what they are made from.

    from a layout      consecutive, from_mask, from_token_ids, from_cu_seqlens, from_segment_ids
    for a shard        contiguous_shard, zigzag_shard
    for training       shifted, randomized, skipped, augmented, abacus, coupled
    an over-long input keep_first, keep_last, keep_head_and_tail, sliding

Ids are positions, not rows: which row of a table holds position 0 is the table's layout's business.
"""

from posembed.positions.checks import check_positions as check_positions
from posembed.positions.from_layout import consecutive as consecutive
from posembed.positions.from_layout import from_cu_seqlens as from_cu_seqlens
from posembed.positions.from_layout import from_mask as from_mask
from posembed.positions.from_layout import from_segment_ids as from_segment_ids
from posembed.positions.from_layout import from_token_ids as from_token_ids
