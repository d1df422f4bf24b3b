"""One CPU worker beside two GPU workers that train on 128 rows together: how many rows the CPU worker takes.

    python -m examples.measured.mixed_shares                      exits 1 where the planner does not take 32 of them
    python -m examples.measured.mixed_shares --plot shares.svg    and a picture (needs placer-planner[plot])

Published (the talks placer was started from): a worker on two CPU sockets takes 32 rows and two GPU workers 96, so that
both need 1.9 s a batch on average; single batches took 1.9, 2.3 and 1.5 s on the CPUs, 2.5, 1.4 and 1.8 s on the GPUs,
and all wait for the last before they sum gradients. Here devices have the rates that these seconds say of the model.
The step is predicted for other shares too; the third column waits as the published batches do: the mean over all pairs
of them of the slower one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean

import placer
from placer.cluster.cluster import Cluster
from placer.cluster.cluster_file import parse_cluster
from placer.errors import require_extra
from placer.graph import Graph
from placer.plans.plan import Plan, Stage

ROWS, CPU_ROWS, GPUS, SECONDS = 128, 32, 2, 1.9
CPU_BATCHES, GPU_BATCHES = (1.9, 2.3, 1.5), (2.5, 1.4, 1.8)
SHARES = (4, 8, 16, 24, 28, 32, 36, 40, 48, 64)
# No model is named; one with as large gradients as VGG-16 has is better laid out as a pipeline on these links.
MODEL, PIXELS = "examples.convnet:small", 8

WORKERS = """
name: a CPU worker beside two GPU workers
devices:
  cpu-worker: {{backend: cpu, rates: {{float32: {cpu} FLOP/s}}, {rest}}}
  gpu-worker: {{backend: cuda, rates: {{float32: {gpu} FLOP/s}}, {rest}}}
nodes:
  - name: host
    devices: [{{kind: gpu-worker, count: 2}}, {{kind: cpu-worker, count: 1}}]
    link: pcie3
    host: {{link: pcie3, memory_bandwidth: 200 GB/s}}
    cores: 24
    memory: 256 GiB
"""
# What computes alone decides: rates are those of whole batches as they were measured.
REST = "memory: 60 GiB, memory_bandwidth: 100 TB/s, launch: 0, efficiency: {points: [[1 FLOP, 100%]]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Seconds of a step in which the CPU worker has so many rows: predicted, and waiting as published batches do."""

    cpu_rows: int
    predicted: float
    waiting: float


def workers(graph: Graph) -> Cluster:
    """The three, as fast as the published seconds say of this model."""
    flops = (graph.forward_flops + graph.backward_flops) / graph.rows
    cpu, gpu = flops * CPU_ROWS / SECONDS, flops * (ROWS - CPU_ROWS) / GPUS / SECONDS
    return parse_cluster(WORKERS.format(cpu=f"{cpu:.0f}", gpu=f"{gpu:.0f}", rest=REST))


def planned(model: str, pixels: int) -> Plan:
    """What the planner makes of the workers."""
    batch = {"images": ((ROWS, 3, pixels, pixels), "float32"), "labels": ((ROWS,), "int64")}
    return placer.plan(model, workers(placer.capture(model, batch=batch)), batch=batch)


def cpu_rows(plan: Plan) -> int:
    """The rows of the CPU worker, which is the last device; 0 where it has none, or only some of the model."""
    stage = plan.stages[0]
    if len(plan.stages) > 1 or 2 not in stage.devices:
        return 0
    shares = stage.shares or (1,) * len(stage.devices)
    return ROWS * shares[stage.devices.index(2)] // sum(shares)


def step(plan: Plan, rows: int) -> Share:
    """Where the CPU worker takes so many."""
    rest = ROWS - rows
    shares = (rest - rest // GPUS, rest // GPUS, rows)
    stage = Stage(first=0, last=len(plan.graph.blocks), devices=(0, 1, 2), shares=shares)
    predicted = placer.simulate(replace(plan, stages=(stage,))).ledger.step_seconds
    waiting = mean(
        max(cpu * rows / CPU_ROWS, gpu * rest / (ROWS - CPU_ROWS)) for cpu, gpu in product(CPU_BATCHES, GPU_BATCHES)
    )
    return Share(cpu_rows=rows, predicted=predicted, waiting=waiting)


def draw(found: Sequence[Share], taken: int, path: Path) -> None:
    """Both lines over the rows of the CPU worker. Raises UsageError where matplotlib is missing."""
    require_extra("plot", "matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes, rows = figure.subplots(), [one.cpu_rows for one in found]
    axes.plot(rows, [one.predicted for one in found], "-o", label="predicted step")
    axes.plot(rows, [one.waiting for one in found], "--", label="batches as unlike as published")
    axes.axvline(taken, color="grey", label=f"the planner: {taken} rows")
    axes.set_xlabel(f"rows of the CPU worker, of {ROWS}")
    axes.set_ylabel("seconds of a step")
    axes.legend()
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Plan, predict other shares, draw where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL, help="a convnet that takes images and labels")
    parser.add_argument("--pixels", type=int, default=PIXELS)
    parser.add_argument("--plot", type=Path, help="file to draw into: .svg, .png or .pdf")
    options = parser.parse_args(argv)
    plan = planned(options.model, options.pixels)
    taken, found = cpu_rows(plan), [step(plan, rows) for rows in SHARES]
    print(f"{'CPU rows':>8} {'predicted s':>12} {'with waiting s':>15}")
    for one in found:
        print(f"{one.cpu_rows:8d} {one.predicted:12.2f} {one.waiting:15.2f}")
    print(f"the planner gives the CPU worker {taken} of {ROWS} rows; published: {CPU_ROWS}")
    if options.plot:
        draw(found, taken, options.plot)
    return 0 if taken == CPU_ROWS else 1


if __name__ == "__main__":
    sys.exit(main())
