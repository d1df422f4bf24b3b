"""The plans that faults are planted into, by name: each a tiny model in a layout that needs what the fault breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

from examples.parity import models as parity_models
from examples.parity.cases import Case, plan_of
from examples.parity.faults import models
from examples.parity.named_splits import split_plan
from placer.graph import BlockClass
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.spmd.propagation import Wishes

WORDS = Case(model="examples.parity.models:words", shapes=parity_models.TEXT)
DROPPING = replace(WORDS, model="examples.parity.models:dropping_words")
ADAPTED = replace(WORDS, model="examples.parity.models:adapted_words")
WEIGHTED = replace(WORDS, model="examples.parity.faults.models:weighted_words", microbatches=(8,))
SMOOTHED = replace(WORDS, model="examples.parity.faults.models:smoothed_words")
DISTANCE = Case(model="examples.parity.faults.models:distance", shapes=models.NUMBERS)
NOISING = replace(DISTANCE, model="examples.parity.faults.models:noising")
FORKED = replace(DISTANCE, model="examples.parity.faults.models:forked")
IMAGES = Case(model="examples.parity.models:images", shapes=parity_models.IMAGES, microbatches=(8,))
TALL = replace(IMAGES, model="examples.parity.faults.models:tall")
ATTENDING = replace(WORDS, model="examples.parity.faults.models:attending", axis="sequence", degree=2)
EXPERTS = Case(
    model="examples.models:tiny_mixtral", precision="float32", axis="expert", degree=2, microbatches=(4, 4),
    optimizer="sgd",
)  # fmt: skip
PIPELINE, REPLICAS = replace(WORDS, positions=2), replace(WORDS, replicas=2)
GRID = replace(WORDS, positions=2, replicas=2)
CLIPPED, UNCLIPPED = 0.05, 100.0
SGD = RunSettings(precision="float64", optimizer="sgd", learning_rate=0.05, momentum=0.9)
#: Each step shrinks weights by 0.0015 of themselves: less than half of what separates neighbours in bfloat16.
MASTERED = replace(SGD, precision="bfloat16", learning_rate=0.01, momentum=0.0, weight_decay=0.15, clip_norm=None)


def _with(case: Case, **settings: object) -> Plan:
    plan = plan_of(case)
    return replace(plan, settings=replace(plan.settings, **settings))  # type: ignore[arg-type]  # fields by name


def _cut_words(kind: BlockClass) -> Wishes | None:
    """A feed-forward layer by columns, then rows; norms and activations by rows; embedding and loss by vocabulary."""
    names = {op.name for op in kind.ops}
    if "linear_2" in names:
        rows = {op.name: "dim 1" for op in kind.ops if op.name.startswith(("layer_norm", "gelu", "dropout"))}
        return {**rows, "linear_1": "n", "linear_2": "k"}
    ends = {"embedding_1": "vocabulary", "linear_1": "n", "cross_entropy_loss_1": "classes"}
    found = {name: how for name, how in ends.items() if name in names}
    return found or None


def _dropped_rows(kind: BlockClass) -> Wishes | None:
    names = ("layer_norm", "dropout", "gelu")
    return {op.name: "dim 1" for op in kind.ops if op.name.startswith(names)} if kind.parameters else None


def _queries(kind: BlockClass) -> Wishes | None:
    wishes = {op.name: "query" for op in kind.ops if op.name.startswith("scaled_dot_product")}
    return wishes or None


def _halves(kind: BlockClass) -> Wishes | None:
    return {op.name: "space 0" for op in kind.ops if op.name.startswith("conv2d")}


SUBJECTS: Mapping[str, Callable[[], Plan]] = {
    "pipeline": lambda: plan_of(PIPELINE),
    "pipeline, sgd": lambda: replace(plan_of(PIPELINE), settings=replace(SGD, clip_norm=None)),
    "pipeline, equal microbatches": lambda: plan_of(replace(PIPELINE, microbatches=(4, 4))),
    "zero-bubble": lambda: plan_of(replace(PIPELINE, schedule="zero-bubble")),
    "forked, interleaved": lambda: plan_of(replace(FORKED, positions=2, schedule="interleaved", turns=2)),
    "replicas": lambda: plan_of(REPLICAS),
    "replicas, equal microbatches": lambda: plan_of(replace(REPLICAS, microbatches=(4, 4))),
    "replicas, unequal shares": lambda: plan_of(replace(REPLICAS, shares=(3, 1), microbatches=(4, 4))),
    "pipeline x replicas": lambda: plan_of(GRID),
    "pipeline x replicas, clipped": lambda: _with(GRID, clip_norm=CLIPPED),
    "pipeline, clipped": lambda: replace(plan_of(PIPELINE), settings=replace(SGD, clip_norm=CLIPPED)),
    "pipeline, below the limit": lambda: replace(plan_of(PIPELINE), settings=replace(SGD, clip_norm=UNCLIPPED)),
    "ZeRO 1": lambda: plan_of(replace(REPLICAS, sharding="optimizer")),
    "FSDP": lambda: plan_of(replace(REPLICAS, sharding="parameters")),
    "adapters": lambda: plan_of(replace(ADAPTED, positions=2)),
    "class weights": lambda: plan_of(replace(WEIGHTED, positions=2)),
    "smoothed labels": lambda: plan_of(replace(SMOOTHED, positions=2)),
    "mean squares": lambda: plan_of(replace(DISTANCE, replicas=2)),
    "dropout": lambda: plan_of(replace(DROPPING, replicas=2)),
    "dropout, run again": lambda: plan_of(replace(DROPPING, positions=2, recompute=True)),
    "dropout by rows of the sequence": lambda: split_plan(DROPPING, 2, _dropped_rows),
    "random numbers": lambda: plan_of(replace(NOISING, replicas=2)),
    "random numbers, run again": lambda: plan_of(replace(NOISING, positions=2, recompute=True)),
    "attention by heads": lambda: plan_of(replace(ATTENDING, optimizer="sgd")),
    "batch norm": lambda: plan_of(replace(IMAGES, positions=2)),
    "batch norm, run again": lambda: plan_of(replace(IMAGES, positions=2, recompute=True)),
    "cut products": lambda: split_plan(WORDS, 2, _cut_words),
    "attention by queries": lambda: split_plan(replace(ATTENDING, degree=1, optimizer="sgd"), 2, _queries),
    "halves of images": lambda: split_plan(TALL, 2, _halves, "cut 2"),
    "experts": lambda: plan_of(EXPERTS),
    "float32": lambda: plan_of(replace(PIPELINE, precision="float32")),
    "bfloat16": lambda: replace(plan_of(replace(PIPELINE, precision="bfloat16")), settings=MASTERED),
}


@cache
def subject(name: str) -> Plan:
    """The plan of that name, made once."""
    return SUBJECTS[name]()
