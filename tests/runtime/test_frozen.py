"""Frozen parameters: they stay as they are and cost nothing, and the others train as on one device."""

from __future__ import annotations

from dataclasses import replace

import pytest

import weight_ranks
from pool import on_ranks
from weight_plans import WORDS, layouts, split_and_sharded

ADAPTED = replace(WORDS, model="examples.parity.models:adapted_words")
PLANS = {**layouts(ADAPTED), "TP2 x FSDP2": split_and_sharded(ADAPTED)}


@pytest.mark.parametrize("name", PLANS)
def test_adapters_train_as_on_one_device_and_nothing_else_changes(name: str) -> None:
    plan = PLANS[name]
    for report, changed, touched, differences in on_ranks(plan.world_size, weight_ranks.frozen, plan):
        assert report.passed, str(report)
        assert changed == touched == ()
        assert differences == 0
