"""One model under nine layouts, for what must not depend on the layout: weights, checkpoints, frozen parameters."""

from __future__ import annotations

from dataclasses import replace

from examples.parity import models as parity_models
from examples.parity.cases import Case, plan_of
from examples.parity.named_splits import split_plan
from placer.plans.plan import Plan
from split_pickers import columns_and_rows, nothing, rows_of_the_sequence

WORDS = Case(model="examples.parity.models:words", shapes=parity_models.TEXT, microbatches=(4, 4))


def layouts(words: Case = WORDS) -> dict[str, Plan]:
    """The plans by name; at most four ranks."""
    return {
        "one device": plan_of(words),
        "DP2": plan_of(replace(words, replicas=2)),
        "FSDP2": plan_of(replace(words, replicas=2, sharding="parameters")),
        "ZeRO2 of unequal shares": plan_of(replace(words, replicas=2, sharding="gradients", shares=(3, 1))),
        "PP2": plan_of(replace(words, positions=2)),
        "TP2": split_plan(words, 2, columns_and_rows),
        "PP2 x ZeRO1": plan_of(replace(words, positions=2, replicas=2, sharding="optimizer")),
        "PP2 x FSDP2": plan_of(replace(words, positions=2, replicas=2, sharding="parameters")),
        "SP2 x PP2": split_plan(replace(words, positions=2), 2, rows_of_the_sequence(nothing), "cut 1"),
    }


def split_and_sharded(words: Case = WORDS) -> Plan:
    """Columns and rows cut over two devices, and what each has sharded over two replicas."""
    return split_plan(replace(words, replicas=2, sharding="parameters"), 2, columns_and_rows)
