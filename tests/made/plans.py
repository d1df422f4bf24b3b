"""A small plan made by hand, for what reads plans."""

from __future__ import annotations

from graphs import gpt_graph
from placer.cluster.cluster import Cluster, Curve, Device, Link, Node
from placer.plans.ledger import Ledger, MemoryBytes, Seconds
from placer.plans.plan import Alternative, ModelRef, Plan, Stage
from placer.plans.settings import RunSettings


def small_cluster(devices: int = 2) -> Cluster:
    """One node of processors."""
    chip = Device(
        name="core",
        backend="cpu",
        memory_bytes=8 * 2**30,
        memory_bandwidth=10e9,
        rates=(("float32", 50e9),),
        launch_seconds=5e-6,
        curve=Curve(points=((1e6, 0.5), (1e9, 0.9))),
    )
    loopback = Link(name="loopback", latency_seconds=50e-6, bandwidth=2e9)
    return Cluster(name="two cores", groups=((Node(name="host", devices=((chip, devices),), link=loopback), 1),))


def two_stage_plan() -> Plan:
    """Two stages on two devices, 1F1B over two microbatches, with a prediction and a runner-up."""
    graph = gpt_graph(rows=8)
    cut = len(graph.blocks) // 2
    memory = MemoryBytes(parameters=3 * 2**20, gradients=3 * 2**20, activations=2**20)
    seconds = Seconds(forward=0.010, backward=0.020, communication=0.002, bubble=0.008, optimizer=0.001)
    return Plan(
        model=ModelRef(kind="factory", reference="examples.gpt:build", fingerprint="abc"),
        graph=graph,
        cluster=small_cluster(),
        settings=RunSettings(),
        stages=(Stage(first=0, last=cut, devices=(0,)), Stage(first=cut, last=len(graph.blocks), devices=(1,))),
        schedule="1f1b",
        microbatches=(4, 4),
        strategy="stages",
        ledger=Ledger(
            step_seconds=seconds.total,
            seconds=seconds,
            memory=(memory, memory),
            rows=8,
            flops=2_000_000_000,
            peak_flops=100e9,
            sent_bytes=65536,
        ),
        bound=0.040,
        alternatives=(Alternative(name="data parallel x2", step_seconds=0.050, reason="reduces 6 MiB each step"),),
        assumptions=("a batch of 8 rows, as the model's configuration implies",),
    )
