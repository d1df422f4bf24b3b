"""Hand-made plans for tests of execution."""

from __future__ import annotations

from placer.cluster import Cluster, Curve, Device, Link, Node
from placer.plans import ModelRef, Plan, Stage
from placer.settings import RunSettings
from tests.graphs import BlockSpec, chain_graph


def cpu_cluster(devices: int) -> Cluster:
    """One node of `devices` processes on a CPU."""
    cpu = Device(
        name="cpu", backend="cpu", memory_bytes=2**33, memory_bandwidth=1e10, rates=(("float32", 1e10),),
        launch_seconds=1e-6, curve=Curve(points=((1.0, 1.0),)),
    )  # fmt: skip
    link = Link(name="loopback", latency_seconds=1e-5, bandwidth=1e9)
    return Cluster(name="cpus", groups=((Node(name="here", devices=((cpu, devices),), link=link), 1),))


def two_rank_plan() -> Plan:
    """Two blocks on two processes, one microbatch."""
    return Plan(
        model=ModelRef(kind="module", reference="", fingerprint=""),
        graph=chain_graph((BlockSpec(), BlockSpec())),
        cluster=cpu_cluster(2),
        settings=RunSettings(),
        stages=(Stage(first=0, last=1, devices=(0,)), Stage(first=1, last=2, devices=(1,))),
        schedule="1f1b",
        microbatches=(8,),
    )
