"""Random draws: equal for every encoding, different for every seed, step and process."""

from __future__ import annotations

import dataclasses

import torch

from posembed.lab.tasks.classification import TextClassification
from posembed.lab.tasks.classification_specs import TextSpec
from posembed.lab.tasks.language import LanguageModelling
from posembed.lab.tasks.task import torch_seed
from posembed.lab.tasks.text_specs import LengthSpec


def test_seeds_steps_and_processes_draw_from_different_generators(spec: LengthSpec) -> None:
    made = {
        torch.Generator()
        .manual_seed(torch_seed(dataclasses.replace(spec, seed=seed), step, process))
        .get_state()[:64]
        .numpy()
        .tobytes()
        for seed in range(8)
        for step in (0, 1, 2, 999, 20_000)
        for process in range(4)
    }
    assert len(made) == 8 * 5 * 4


def test_each_seed_reads_other_text_and_each_encoding_the_same(
    task: LanguageModelling, spec: LengthSpec, text_task: TextClassification, text_spec: TextSpec
) -> None:
    for each, settings in ((task, spec), (text_task, text_spec)):
        drawn = {}
        for name in ("learned", "rope"):
            for seed in range(3):
                run = dataclasses.replace(settings, encoding=name, seed=seed)
                inputs, *_ = each.draw(run, each.build(run), 5)
                drawn[name, seed] = inputs.tolist()
        for seed in range(3):
            assert drawn["learned", seed] == drawn["rope", seed]
        assert len({str(batch) for batch in drawn.values()}) == 3
