"""Random small placement problems, the same for the same seed: unequal blocks and devices, tight memory, pins."""

from __future__ import annotations

import random

from graphs import BlockSpec, chain_graph
from placer.cluster import Cluster, Curve, Device, Level, Link, Node
from placer.graph import Graph
from placer.plans import ModelRef
from placer.search import Pins, Problem
from placer.settings import RunSettings

SETTINGS = RunSettings()
FREE = Pins()
MODEL = ModelRef(kind="module", reference="made by a test", fingerprint="0")

# Powers of ten between which a device's share of the whole model's state lies.
TIGHTNESS = (-0.4, 0.5)


def device(*, memory: int = 2**34, rate: float = 1e12, bandwidth: float = 1e11, name: str = "chip") -> Device:
    """A chip of about a hundredth of a real one."""
    return Device(
        name=name, backend="cpu", memory_bytes=memory, memory_bandwidth=bandwidth, rates=(("float32", rate),),
        launch_seconds=1e-6, curve=Curve(points=((1e4, 0.1), (1e9, 0.8))),
    )  # fmt: skip


def cluster(*devices: Device, link: Link | None = None) -> Cluster:
    """One node with these devices in order."""
    inside = link or Link(name="link", latency_seconds=1e-6, bandwidth=1e10)
    node = Node(name="node", devices=tuple((chip, 1) for chip in devices), link=inside)
    return Cluster(name="made", groups=((node, 1),))


def nodes(chip: Device, *, per_node: int, count: int) -> Cluster:
    """`count` nodes of `per_node` equal devices on a slower network."""
    node = Node(
        name="node", devices=((chip, per_node),), link=Link(name="link", latency_seconds=1e-6, bandwidth=1e11),
        nic=Link(name="nic", latency_seconds=5e-6, bandwidth=1e10),
    )  # fmt: skip
    network = Level(name="network", link=Link(name="network", latency_seconds=5e-6, bandwidth=1e10))
    return Cluster(name="nodes", groups=((node, count),), levels=(network,))


def problem(
    graph: Graph,
    machines: Cluster,
    *,
    settings: RunSettings = SETTINGS,
    rows: int | None = None,
    pins: Pins = FREE,
    seed: int = 0,
) -> Problem:
    """A problem with the graph's own batch where `rows` says nothing else."""
    return Problem(
        graph=graph, cluster=machines, settings=settings, model=MODEL, rows=rows or graph.rows, pins=pins, seed=seed
    )


def random_problem(seed: int) -> Problem:
    """One of a family of small problems: at most 5 blocks, 4 devices, 4 rows."""
    rng = random.Random(seed)
    graph = _graph(rng)
    machines = _cluster(rng, _state(graph))
    settings = RunSettings(
        recompute=rng.choice(("auto", "none", "full")) if len(graph.blocks) > 3 else "auto",
        optimizer=rng.choice(("adamw", "sgd")),
        overlap=rng.random() < 0.7,
        fusion=rng.random() < 0.3,
        clip_norm=rng.choice((None, 1.0)),
        bucket_bytes=rng.choice((2**12, 2**20)),
    )
    return problem(graph, machines, settings=settings, rows=rng.randint(1, 4), pins=_pins(rng), seed=seed)


def _graph(rng: random.Random) -> Graph:
    count = rng.choice((1, 2, 3, 3, 4, 4, 5))
    pool = [_block(rng) for _ in range(rng.randint(2, 4))]
    blocks = [rng.choice(pool) for _ in range(count)]
    pairs = [(i, j) for i in range(count) for j in range(i + 2, count)]
    alike = [(i, j) for i in range(count) for j in range(i + 1, count) if blocks[i].parameters == blocks[j].parameters]
    skips = [rng.choice(pairs)] if pairs and rng.random() < 0.3 else []
    tied = [rng.choice(alike)] if alike and rng.random() < 0.3 else []
    return chain_graph(blocks, rows=4, skips=skips, tied=tied)


def _block(rng: random.Random) -> BlockSpec:
    return BlockSpec(
        flops=int(10 ** rng.uniform(5, 8)),
        parameters=int(10 ** rng.uniform(2, 6)),
        saved=int(10 ** rng.uniform(3, 6)),
        output=int(10 ** rng.uniform(1, 4.5)),
        traffic=int(10 ** rng.uniform(3, 6)),
    )


def _state(graph: Graph) -> int:
    """Bytes of weights, gradients and two moments, and of what one row keeps."""
    return 4 * graph.parameter_bytes + graph.saved_bytes // graph.rows


def _cluster(rng: random.Random, needed: int) -> Cluster:
    """Machines whose memory lies around what one device of a few would need."""
    memory = int(needed * 10 ** rng.uniform(*TIGHTNESS))
    chips = [
        device(memory=int(memory * rng.uniform(0.5, 2)), rate=10 ** rng.uniform(11, 13), name=f"chip{i}")
        for i in range(2)
    ]
    count = rng.choice((1, 2, 3, 3, 4))
    if rng.random() < 0.5:
        link = Link(name="link", latency_seconds=10 ** rng.uniform(-6, -4), bandwidth=10 ** rng.uniform(9, 11))
        return cluster(*(rng.choice(chips) for _ in range(count)), link=link)
    return nodes(chips[0], per_node=2 if count > 3 else 1, count=2 if count > 3 else count)


def _pins(rng: random.Random) -> Pins:
    if rng.random() < 0.8:
        return Pins()
    return rng.choice((Pins(data=1), Pins(pipeline=1), Pins(schedule="gpipe"), Pins(shard="none")))
