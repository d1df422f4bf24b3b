"""What pins and skewed expert loads change: a table of cases with the plan before and after.

    python -m examples.measured.pins_table                 all cases
    python -m examples.measured.pins_table pipeline skew   those whose name holds a word

A pinned case shows the free plan and the pinned one. A skewed case says how many times the tokens of another the first
two of 16 experts get: before is the plan made for even loads, as slow as the skew makes it; after is the plan made for
the skew. Seconds are predicted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import transformers
from torch import device, nn
from transformers import AutoModelForCausalLM

import placer
from placer import tracer
from placer.api import solve
from placer.cluster.cluster import Cluster
from placer.errors import InfeasibleError
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.report.experts import expert_placement, experts_text
from placer.search.asked import parse_pins
from placer.search.problem import Problem

LENGTH = 512
EXPERTS, HOT = 16, 2
SKEWS = (1, 2, 8, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A model, the machines and the batch that a case is about."""

    build: Callable[[], nn.Module]
    cluster: str
    batch: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Pins on a problem, or a skew of its experts' loads; 1 is even."""

    given: Given
    pins: tuple[str, ...] = ()
    skew: int = 0

    @property
    def name(self) -> str:
        """As the table calls it."""
        return " ".join((*self.pins, *([f"skew {self.skew}:1"] if self.skew else [])))


def dense() -> nn.Module:
    """GPT-2 of 6 layers of width 1,024."""
    sizes = {"n_layer": 6, "n_embd": 1024, "n_head": 16, "n_positions": LENGTH, "vocab_size": 32000}
    with device("meta"):
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, use_cache=False))


def experts() -> nn.Module:
    """Mixtral of 2 layers of width 2,048 with 16 experts: more gradients to sum than tokens to send."""
    sizes = {"hidden_size": 2048, "intermediate_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 8}
    more = {"num_hidden_layers": 2, "num_local_experts": EXPERTS, "vocab_size": 4096, "use_cache": False}
    config = transformers.MixtralConfig(**sizes, **more, max_position_embeddings=LENGTH)
    with device("meta"):
        return AutoModelForCausalLM.from_config(config)


def images() -> nn.Module:
    """ResNet-18 on images of 512 x 512."""
    sizes = {"layer_type": "basic", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512], "num_labels": 1000}
    with device("meta"):
        return transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes))


TOKENS = (("input_ids", (16, LENGTH)), ("labels", (16, LENGTH)))


DENSE = Given(build=dense, cluster="a100-80gb-sxm4x4", batch=TOKENS)
MIXTURE = Given(build=experts, cluster="a100-80gb-pciex4", batch=TOKENS)
IMAGES = Given(build=images, cluster="a100-80gb-sxm4x4", batch=(("pixel_values", (8, 3, 512, 512)), ("labels", (8,))))
CASES = (
    Case(given=DENSE, pins=("data=2",)),
    Case(given=DENSE, pins=("shard=parameters",)),
    Case(given=DENSE, pins=("pipeline=2",)),
    Case(given=DENSE, pins=("microbatches=8",)),
    Case(given=DENSE, pins=("schedule=gpipe", "pipeline=2")),
    Case(given=DENSE, pins=("recompute=yes",)),
    Case(given=DENSE, pins=("transformer.h.1@stage=1",)),
    Case(given=DENSE, pins=("tensor=2",)),
    Case(given=DENSE, pins=("sequence=2",)),
    Case(given=IMAGES, pins=("height=2",)),
    Case(given=IMAGES, pins=("width=2",)),
    Case(given=MIXTURE, pins=("expert=2",)),
    *(Case(given=MIXTURE, pins=("expert=4",), skew=skew) for skew in SKEWS),
    *(Case(given=MIXTURE, skew=skew) for skew in SKEWS),
)


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="cases whose name holds one of them")
    words = parser.parse_args(argv).words
    for case in CASES:
        if not words or any(word in case.name for word in words):
            for line in _lines(case):
                print(line, flush=True)
    return 0


def _lines(case: Case) -> Iterator[str]:
    yield f"{case.name}  ({case.given.build.__name__} on {case.given.cluster})"
    before = planned(case.given, case.pins if case.skew else (), ())
    loads = skewed(case.skew)
    after = planned(case.given, case.pins, loads)
    if isinstance(before, Plan) and loads:
        before = replace(before, settings=replace(before.settings, expert_loads=loads))
        before = replace(before, ledger=placer.estimate(before))
    yield f"  before  {described(before)}"
    yield f"  after   {described(after)}"


def skewed(times: int) -> tuple[float, ...]:
    """Loads of which the first two experts have so many times the others'; none for 0."""
    return (*(float(times),) * HOT, *(1.0,) * (EXPERTS - HOT)) if times else ()


@cache
def planned(given: Given, pins: tuple[str, ...], loads: tuple[float, ...]) -> Plan | str:
    """The plan, or what binds where there is none."""
    problem = _problem(given)
    settings = replace(problem.settings, expert_loads=loads)
    try:
        return solve(replace(problem, settings=settings, pins=parse_pins(pins, problem.graph)))
    except InfeasibleError as error:
        return str(error)


@cache
def _problem(given: Given) -> Problem:
    resolved, cluster = tracer.resolve(given.build()), Cluster.load(given.cluster)
    graph = tracer.capture(resolved, batch=dict(given.batch))
    settings = RunSettings(precision="bfloat16", batch_norm="microbatch")
    return Problem(graph=graph, cluster=cluster, settings=settings, model=resolved.ref, rows=graph.rows)


def described(plan: Plan | str) -> str:
    """A plan in a line: degrees, microbatches, schedule, state, recompute, predicted seconds, where experts live."""
    if isinstance(plan, str) or plan.ledger is None:
        return str(plan)
    stage = plan.stages[0]
    layout = None if stage.layout is None else plan.layouts[stage.layout]
    parts = [
        f"pipeline {plan.positions} x data {stage.replicas}" + (f" x {layout.shape}" if layout else ""),
        f"stages of {' '.join(str(each.last - each.first) for each in plan.stages)} blocks",
        f"{len(plan.microbatches)} x {plan.microbatches[0]} rows",
        f"{plan.schedule}, state {stage.sharding}",
        f"recompute in {sum(each.recompute is not False for each in plan.stages)}",
        f"{plan.ledger.step_seconds * 1e3:.2f} ms",
    ]
    placement = expert_placement(plan)
    return ", ".join(parts) + (f"; {experts_text(placement)}" if placement else "")


if __name__ == "__main__":
    sys.exit(main())
