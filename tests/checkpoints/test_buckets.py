"""Which distances read which bucket: what the models' own code says, compared with the formula."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import posembed
from posembed.report.checkpoint import facts, render
from posembed.tables.buckets import bucket_of
from tiny_models import TEXT, saved, tiny_model

T5 = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 1, "d_ff": 32}
FEW = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
SOUND = {
    **TEXT, "conv_dim": [8], "conv_kernel": [3], "conv_stride": [2], "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "num_buckets": 32, "max_bucket_distance": 100,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "settings", "farthest"),
    [("t5", T5, 128), ("t5", T5 | FEW, 20), ("mpnet", TEXT, 128), ("wavlm", SOUND, 100)],
)
def test_every_distance_reads_the_bucket_of_the_formula(
    family: str, settings: dict[str, Any], farthest: int, tmp_path: Path
) -> None:
    report = posembed.inspect_checkpoint(saved(tiny_model(family, settings), tmp_path / "source"))
    tables = [table for table in report.tables if table.table.fixed]
    assert tables
    steps = torch.arange(-1000, 1001)
    for table in tables:
        both = "decoder" not in table.table.key
        expected = bucket_of(steps, table.table.rows, farthest=farthest, both=both).tolist()
        read = [
            next(
                bucket.row
                for bucket in table.buckets
                if (bucket.first is None or step >= bucket.first) and (bucket.last is None or step <= bucket.last)
            )
            for step in steps.tolist()
        ]
        assert read == expected
        told = dict(facts(table))
        assert told["usable length"].startswith("any")
        unread = set(range(table.table.rows)) - set(expected)
        assert ("no distance reads" in told["buckets"]) == bool(unread)


def test_a_page_shows_buckets_as_a_staircase(tmp_path: Path) -> None:
    page = render(posembed.inspect_checkpoint(saved(tiny_model("t5", T5), tmp_path / "source")))
    assert page.count("Which distances share a bucket") == 2 * 2  # the title and the text for screen readers
    assert "Its rows are buckets of distances" in page
    assert "? " not in page
