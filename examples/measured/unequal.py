"""Plans on unequal devices: what the whole mix gives, its fast part alone, and a plan that takes all devices for alike.

    python -m examples.measured.unequal                      every mix; a transformer, two convnets
    python -m examples.measured.unequal a100+v100 gpus+cpus  some mixes

Seconds of a step: `mix`, ours on all devices; `fast`, ours on the fast part alone; `alike`, the best plan in cluster
order with equal shares and even cuts; `one shape`, the best plan whose positions all have the same replicas and layout;
`bound`, below which no plan of the mix is. The last column says how many of the devices ours uses, how it shares rows,
and where positions differ how many replicas (of how many devices) each has.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import device, nn
from transformers import AutoModelForCausalLM, GPT2Config, ResNetConfig, ResNetForImageClassification

from examples.convnet import vgg16
from placer import tracer
from placer.cluster.cluster import Cluster
from placer.cluster.cluster_file import parse_cluster
from placer.costs.costs import Costs
from placer.errors import Infeasible, InfeasibleError
from placer.graph import Graph
from placer.plans.plan import Plan, Recompute
from placer.plans.settings import RunSettings
from placer.search.judge import judge, solve_with
from placer.search.problem import Problem
from placer.strategies.inter_op.bounds.outline import OutlineBounds
from placer.strategies.inter_op.equivalence import PositionClasses, RangeClasses
from placer.strategies.inter_op.partition.even import evenly_cut
from placer.strategies.inter_op.partition.stage_costs import OutlineCosts
from placer.strategies.inter_op.search import Stages
from placer.strategies.space.outline import Outline, outlines, plan_of

# A server's processor as a device: one socket, 32 cores at 2.5 GHz with two 512-bit FMA units, 8 channels of DDR4-3200.
CPU = """
name: {name}
devices:
  socket:
    backend: cpu
    memory: 256 GiB
    memory_bandwidth: 205 GB/s
    memory_share: 80%
    rates: {{float32: 5.1 TFLOP/s, float16: 5.1 TFLOP/s, bfloat16: 5.1 TFLOP/s}}
    launch: 2 us
    efficiency: {{points: [[1 MFLOP, 10%], [1 GFLOP, 60%], [100 GFLOP, 80%]], source: "assumed"}}
nodes:
  - {{name: gpus, devices: [{{kind: a10, count: 2}}], link: pcie4, nic: 25gbe}}
{more}network:
  - {{name: rack, link: 25gbe}}
"""
CPU_NODES = "  - {name: cpus, count: 2, devices: [{kind: socket, count: 1}], nic: 25gbe}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Unequal machines and the fast part of them."""

    whole: Cluster
    fast: Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Seconds of a step; `alike` and `one_shape` are None where no such plan fits."""

    plan: Plan
    mix: float
    fast: float
    alike: float | None
    one_shape: float | None
    bound: float


MIXES: dict[str, Callable[[], Mix]] = {
    "a100+v100": lambda: Mix(whole=Cluster.load("a100x4+v100x4"), fast=Cluster.load("a100x4")),
    "h100+a100": lambda: Mix(whole=Cluster.load("h100x4+a100x4"), fast=Cluster.load("h100x4")),
    "gpus+cpus": lambda: Mix(
        whole=parse_cluster(CPU.format(name="gpus+cpus", more=CPU_NODES)),
        fast=parse_cluster(CPU.format(name="gpus", more="")),
    ),
    "8+4": lambda: Mix(whole=Cluster.load("a100x8+a100x4"), fast=Cluster.load("a100x8")),
    "links": lambda: Mix(
        whole=Cluster.load("a100x2*2@ib-hdr+a100x2*2@10gbe"), fast=Cluster.load("a100x2*2@ib-hdr")
    ),
    # Alike, and far from each other: the fast part is what needs no link.
    "thin": lambda: Mix(whole=Cluster.load("a100*4@10gbe"), fast=Cluster.load("a100")),
}  # fmt: skip


def transformer() -> Graph:
    """GPT-2 of 124 M parameters, 32 rows of 1,024 tokens."""
    with device("meta"):
        model = AutoModelForCausalLM.from_config(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    return _captured(model, {"input_ids": (32, 1024), "labels": (32, 1024)})


def convnet() -> Graph:
    """ResNet-50, 64 images of 224 x 224."""
    with device("meta"):
        model = ResNetForImageClassification(ResNetConfig(num_labels=1000))
    return _captured(model, {"pixel_values": (64, 3, 224, 224), "labels": (64,)})


def early_work() -> Graph:
    """VGG-16, 64 images of 224 x 224: the last layers hold nine tenths of the weights."""
    with device("meta"):
        model = vgg16()
    return _captured(model, {"images": (64, 3, 224, 224), "labels": (64,)})


def _captured(model: nn.Module, batch: dict[str, tuple[int, ...]]) -> Graph:
    return tracer.capture(tracer.resolve(model), batch=batch)


MODELS: dict[str, Callable[[], Graph]] = {"gpt2": transformer, "resnet50": convnet, "vgg16": early_work}


def compared(mix: Mix, problem: Problem) -> Row:
    """Ours on the mix and on its fast part, and the plan that takes all devices for alike, for a problem on the mix."""
    found, fast = solve_with(problem, "auto"), solve_with(_on(problem, mix.fast), "auto")
    alike = best_alike(problem)
    assert found.bound is not None
    return Row(
        plan=found.plan, mix=_seconds(found.plan), fast=_seconds(fast.plan),
        alike=None if alike is None else _seconds(alike), one_shape=best_of_one_shape(problem, found.plan),
        bound=found.bound,
    )  # fmt: skip


def best_of_one_shape(problem: Problem, best: Plan) -> float | None:
    """Seconds of the fastest plan whose positions are all alike, which `best` may be; None where none fits."""
    if len({(stage.replicas, stage.layout) for stage in best.stages}) == 1:
        return _seconds(best)
    found = Stages(shapes=False).solve(problem)
    return None if isinstance(found, Infeasible) else _seconds(found.plan)


def best_alike(problem: Problem) -> Plan | None:
    """The fastest legal plan in cluster order with equal shares and even cuts; None where none fits."""
    costs = Costs(problem.graph, problem.cluster, problem.settings)
    bounds = OutlineBounds(problem, RangeClasses(problem, costs))
    values = sorted(_even_values(problem, bounds), key=lambda entry: entry[0])
    plans = (judge(problem.costs, plan_of(problem, outline, cuts, recompute)) for _, outline, cuts, recompute in values)
    return next((verdict.plan for verdict in plans if verdict.legal), None)


def _even_values(
    problem: Problem, bounds: OutlineBounds
) -> Iterator[tuple[float, Outline, tuple[int, ...], tuple[Recompute, ...]]]:
    """Every outline in cluster order with the seconds of its even cuts."""
    for outline in outlines(problem):
        pricing = OutlineCosts(bounds, PositionClasses(problem, bounds.ranges.costs, outline), outline)
        even = evenly_cut(pricing) if pricing.rests.reached[0] == 0 else None
        if even is not None:
            yield even.value + pricing.places.fixed, outline, even.cuts, even.recompute


def _on(problem: Problem, cluster: Cluster) -> Problem:
    return Problem(
        graph=problem.graph, cluster=cluster, settings=problem.settings, model=problem.model, rows=problem.rows
    )


def _seconds(plan: Plan) -> float:
    assert plan.ledger is not None
    return plan.ledger.step_seconds


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mixes", nargs="*", help=f"mixes: {', '.join(MIXES)}")
    parser.add_argument("--model", action="append", choices=tuple(MODELS), help="models; all by default")
    options = parser.parse_args(argv)
    print(f"{'mix':10} {'model':9} {'mix ms':>9} {'fast ms':>9} {'alike ms':>9} {'one shape':>9} {'bound ms':>9}  ours")
    for model in options.model or MODELS:
        graph = MODELS[model]()
        for name in options.mixes or MIXES:
            _print(name, model, graph)
    return 0


def _print(name: str, model: str, graph: Graph) -> None:
    mix = MIXES[name]()
    settings = RunSettings(precision="float16", batch_norm="microbatch")
    reference = tracer.resolve(nn.Linear(1, 1)).ref  # plans of this table are not run
    problem = Problem(graph=graph, cluster=mix.whole, settings=settings, model=reference, rows=graph.rows)
    try:
        row = compared(mix, problem)
    except InfeasibleError as error:
        print(f"{name:10} {model:9} {error}", flush=True)
        return
    columns = (row.mix, row.fast, row.alike, row.one_shape, row.bound)
    cells = " ".join(f"{'-':>9}" if seconds is None else f"{seconds * 1e3:9.2f}" for seconds in columns)
    print(f"{name:10} {model:9} {cells}  {shown(row.plan)}", flush=True)


def shown(plan: Plan) -> str:
    """A plan in a few words."""
    first = plan.stages[0]
    shares = f", shares {':'.join(map(str, first.shares))}" if first.shares else ""
    cuts = ":".join(str(stage.last - stage.first) for stage in plan.stages)
    return (
        f"{plan.world_size} of {plan.cluster.size} devices, {_shapes(plan)}, "
        f"blocks {cuts}{shares}, {len(plan.microbatches)} microbatches"
    )


def _shapes(plan: Plan) -> str:
    """Positions x replicas x devices of each; position by position where they differ."""
    found = [(mesh.replicas, mesh.degree) for mesh in plan.meshes]
    if len(set(found)) == 1:
        return f"{plan.positions} x {found[0][0]} x {found[0][1]}"
    return ", then ".join(f"{replicas} x {degree}" for replicas, degree in found)


if __name__ == "__main__":
    sys.exit(main())
