"""The machine of plans made by hand: as many processes on a CPU as they have ranks.

A file of its own: ranks of tests import it, and not the models, solvers and libraries of `cases`.
"""

from __future__ import annotations

from placer.cluster.cluster import Cluster, Curve, Device, Link, Node


def processes(count: int) -> Cluster:
    """One node of `count` processes on a CPU; its rates are made up and decide nothing here."""
    cpu = Device(
        name="process", backend="cpu", memory_bytes=2**33, memory_bandwidth=1e10, rates=(("float32", 1e10),),
        launch_seconds=1e-6, curve=Curve(points=((1.0, 1.0),)),
    )  # fmt: skip
    link = Link(name="loopback", latency_seconds=1e-5, bandwidth=1e9)
    return Cluster(name="processes", groups=((Node(name="here", devices=((cpu, count),), link=link), 1),))
