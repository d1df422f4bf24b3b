"""Plans of a small Llama on eight devices, drawn by pins, for what takes layouts elsewhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from transformers import LlamaConfig

from placer.api import problem
from placer.errors import InfeasibleError, UsageError
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.search.asked import parse_pins
from placer.search.judge import solve_with
from placer.search.problem import Problem

LAYERS = 8
CONFIG = LlamaConfig(
    hidden_size=64, intermediate_size=128, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=4,
    vocab_size=256, max_position_embeddings=64, use_cache=False,
)  # fmt: skip
ROWS, LENGTH = 32, 64
CHOICES: dict[str, tuple[object, ...]] = {
    "pipeline": (1, 2, 4),
    "tensor": (1, 1, 2),
    "shard": ("none", "optimizer", "gradients", "parameters"),
    "recompute": ("yes", "no"),
    "microbatches": (1, 2, 4, 8),
    "schedule": ("gpipe", "1f1b", "interleaved"),
}


@cache
def asked(cluster: str = "h100x8", precision: str = "bfloat16-autocast") -> Problem:
    """The Llama on a cluster, nothing pinned."""
    settings = RunSettings(precision=precision)  # type: ignore[arg-type]
    return problem(CONFIG, cluster, batch=f"{ROWS}x{LENGTH}", settings=settings)


def pinned(*pins: str, **kinds: str) -> Plan:
    """The plan under pins."""
    given = asked(**kinds)
    return solve_with(replace(given, pins=parse_pins(pins, given.graph)), "auto").plan


@cache
def drawn(count: int, seed: int = 5, precision: str = "bfloat16-autocast") -> tuple[Plan, ...]:
    """So many unlike plans."""
    found: dict[str, Plan] = {}
    for plan in _drawn(random.Random(seed), precision):
        found.setdefault(str((plan.stages, plan.schedule, plan.microbatches)), plan)
        if len(found) == count:
            break
    return tuple(found.values())


def _drawn(rng: random.Random, precision: str) -> Iterator[Plan]:
    while True:
        pins = {name: rng.choice(values) for name, values in CHOICES.items()}
        if pins["pipeline"] == 1:
            pins["schedule"] = "1f1b"
        try:
            yield pinned(*(f"{name}={value}" for name, value in pins.items()), precision=precision)
        except (InfeasibleError, UsageError):
            continue
