"""Random small placement problems, the same for the same seed: unequal blocks and devices, tight memory, pins."""

from __future__ import annotations

import random
from dataclasses import replace

from graphs import BlockSpec, chain_graph, with_ties
from placer.cluster.cluster import Cluster, Curve, Device, Level, Link, Node
from placer.graph import Graph
from placer.plans.plan import ModelRef
from placer.plans.settings import RunSettings
from placer.search.problem import Pins, Problem
from split_blocks import random_chain

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
    return drawn_problem(random.Random(seed), seed)


def unequal_problem(seed: int) -> Problem:
    """The same on unlike devices: in one node, or in nodes of their own sizes and ways out."""
    return drawn_problem(random.Random(seed), seed, unequal=True)


def light_problem(seed: int) -> Problem:
    """A problem whose blocks save most in an op that is cheap to run again, or recompute as the seed says."""
    rng = random.Random(seed)
    return drawn_problem(rng, seed, unequal=rng.random() < 0.4, light=True)


def tapered_problem(seed: int) -> Problem:
    """A problem as convnets pose it: early blocks compute much, late ones hold much, links are slow."""
    return drawn_taper(random.Random(seed), seed)


def split_problem(seed: int) -> Problem:
    """Models whose ops layouts cut, on one or two nodes of two devices."""
    rng = random.Random(seed)
    machines = nodes(device(rate=1e11, bandwidth=1e10), per_node=2, count=rng.choice((1, 2)))
    return problem(random_chain(rng), machines, rows=rng.randint(2, 6), seed=seed)


def tied_problem(seed: int) -> Problem:
    """A problem of blocks that share what they hold, most of which take longer to update than to compute."""
    rng = random.Random(seed)
    edge = BlockSpec(flops=10**4, parameters=10, output=10)
    inner = BlockSpec(
        flops=int(10 ** rng.uniform(4, 9)), parameters=int(10 ** rng.uniform(5, 7)), output=int(10 ** rng.uniform(1, 5))
    )
    graph = with_ties(rng, chain_graph([edge, *[inner] * rng.randint(2, 4), edge], rows=4))
    memory = int(_state(graph) * 10 ** rng.choice((rng.uniform(-0.5, 0.5), 3)))
    chips = [
        device(memory=memory, rate=10 ** rng.uniform(11, 13), bandwidth=10 ** rng.uniform(10, 12), name=f"kind{i}")
        for i in range(2)
    ]
    settings = RunSettings(recompute="none")
    return problem(graph, cluster(*chips), settings=settings, rows=rng.choice((1, 4)), seed=seed)


def drawn_taper(rng: random.Random, seed: int = 0) -> Problem:
    """Such a problem by the draws of `rng`: 3 or 4 devices of one or two kinds."""
    early = BlockSpec(
        flops=int(10 ** rng.uniform(8, 9)), parameters=int(10 ** rng.uniform(2, 4)), saved=1000,
        output=int(10 ** rng.uniform(1, 3)), traffic=1000,
    )  # fmt: skip
    late = BlockSpec(
        flops=int(10 ** rng.uniform(6.5, 8.5)), parameters=int(10 ** rng.uniform(5, 6.5)), saved=1000, output=10,
        traffic=1000,
    )  # fmt: skip
    graph = chain_graph([early] * rng.randint(1, 2) + [late] * rng.randint(1, 2), rows=4)
    memory = int(_state(graph) * 10 ** rng.uniform(0, 1))
    chips = [device(memory=memory, rate=10 ** rng.uniform(12, 12.5), name=f"kind{i}") for i in range(2)]
    count = rng.choice((3, 3, 4))
    kinds = rng.choice(((0,) * count, (0,) * (count - 1) + (1,)))
    link = Link(name="link", latency_seconds=1e-5, bandwidth=10 ** rng.uniform(8, 10))
    settings = RunSettings(optimizer=rng.choice(("adamw", "sgd")), clip_norm=None)
    rows = rng.randint(2, 4)
    return problem(graph, cluster(*(chips[k] for k in kinds), link=link), settings=settings, rows=rows, seed=seed)


def drawn_problem(rng: random.Random, seed: int = 0, *, unequal: bool = False, light: bool = False) -> Problem:
    """A small problem by the draws of `rng`; `light`: blocks save much that is cheap to make again."""
    heavy = unequal and rng.random() < 0.6
    graph = _graph(rng, heavy=heavy, light=light)
    machines = (_unequal_cluster if unequal else _cluster)(rng, _state(graph))
    settings = RunSettings(
        recompute=rng.choice(("auto", "none", "full")) if len(graph.blocks) > 3 else "auto",
        optimizer=rng.choice(("adamw", "sgd")),
        overlap=rng.random() < 0.7,
        fusion=rng.random() < 0.3,
        clip_norm=rng.choice((None, 1.0)),
    )
    bucket = rng.choice((2**12, None))
    rows = rng.randint(3, 6) if heavy else rng.randint(1, 4)
    pins = replace(_pins(rng), bucket=bucket)
    return problem(graph, machines, settings=settings, rows=rows, pins=pins, seed=seed)


def _graph(rng: random.Random, *, heavy: bool, light: bool) -> Graph:
    """Some blocks; `heavy` ones compute much and hold little."""
    count = rng.choice((1, 2, 3, 3) if heavy else (1, 2, 3, 3, 4, 4, 5))
    pool = [(_heavy_block if heavy else _block)(rng) for _ in range(rng.randint(2, 4))]
    if light:
        pool = [
            replace(spec, inner=int(10 ** rng.uniform(2, 4.5)), saved=int(10 ** rng.uniform(4, 6))) for spec in pool
        ]
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


def _heavy_block(rng: random.Random) -> BlockSpec:
    return BlockSpec(
        flops=int(10 ** rng.uniform(8, 9)), parameters=int(10 ** rng.uniform(2, 5)), saved=int(10 ** rng.uniform(3, 5)),
        output=int(10 ** rng.uniform(1, 4.5)), traffic=int(10 ** rng.uniform(3, 5)),
    )  # fmt: skip


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


def _unequal_cluster(rng: random.Random, needed: int) -> Cluster:
    """Two or three kinds of device, or one kind in two kinds of node; 2 to 4 devices."""
    memory = int(needed * 10 ** rng.uniform(*TIGHTNESS))
    chips = [
        device(memory=max(1, int(memory * rng.uniform(0.5, 2))), rate=10 ** rng.uniform(11.3, 12.7), name=f"kind{i}")
        for i in range(rng.choice((2, 2, 3)))
    ]
    shape = rng.choice((1, 2, 3))
    if shape == 1:
        others = [rng.choice(chips) for _ in range(rng.choice((0, 1, 2)))]
        return cluster(*rng.sample([chips[0], chips[1], *others], 2 + len(others)), link=_link(rng, (9, 11)))
    if shape == 2:
        chips = chips[:1]
    fabric = Level(name="fabric", link=_link(rng, (9, 10.5)))
    made = tuple(
        Node(
            name=f"node{i}", devices=((chips[i % len(chips)], size),), link=_link(rng, (9.5, 11)),
            nic=_link(rng, (8.5, 10.5)),
        )
        for i, size in enumerate(rng.choice(((1, 1), (2, 1), (1, 2), (3, 1), (2, 2), (1, 1, 1))))
    )  # fmt: skip
    return Cluster(name="unequal", groups=tuple((node, 1) for node in made), levels=(fabric,))


def _link(rng: random.Random, powers: tuple[float, float]) -> Link:
    return Link(name="link", latency_seconds=10 ** rng.uniform(-6, -4.5), bandwidth=10 ** rng.uniform(*powers))


def _pins(rng: random.Random) -> Pins:
    if rng.random() < 0.8:
        return Pins()
    return rng.choice((Pins(data=1), Pins(pipeline=1), Pins(schedule="gpipe"), Pins(shard="none")))
