"""Position ids, counted from 0, on the device of their input.

    from the layout        consecutive, from_mask, from_token_ids, from_cu_seqlens, from_segment_ids,
                           from_separators
    for one shard          contiguous_shard, zigzag_shard
    for overlong inputs    keep_head_and_tail, sliding
    drawn for training     shifted, randomized, skipped, abacus, coupled

Ids are int64 and denote positions, not rows: the table's layout says which row
holds position 0. All functions work under torch.compile, where the random functions take no torch.Generator.
"""

from posembed.positions.checks import check_positions as check_positions
from posembed.positions.from_layout import consecutive as consecutive
from posembed.positions.from_layout import contiguous_shard as contiguous_shard
from posembed.positions.from_layout import from_cu_seqlens as from_cu_seqlens
from posembed.positions.from_layout import from_mask as from_mask
from posembed.positions.from_layout import from_segment_ids as from_segment_ids
from posembed.positions.from_layout import from_separators as from_separators
from posembed.positions.from_layout import from_token_ids as from_token_ids
from posembed.positions.from_layout import zigzag_shard as zigzag_shard
from posembed.positions.overlong import keep_head_and_tail as keep_head_and_tail
from posembed.positions.overlong import sliding as sliding
from posembed.positions.samplers import abacus as abacus
from posembed.positions.samplers import coupled as coupled
from posembed.positions.samplers import randomized as randomized
from posembed.positions.samplers import shifted as shifted
from posembed.positions.samplers import skipped as skipped
