"""Problems drawn by seed, to learn from and to be judged on: small graphs on equal and on unequal machines.

    chain        blocks of a few kinds whose sizes differ by orders of magnitude, some with skips or a tied weight
    transformer  a wide first block, equal layers of real products (so that there are tensor layouts), a head
    convnet      early blocks compute much and send much, late ones hold much

A device's memory is drawn around what its share of the whole needs, so that some problems are tight.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from placer.cluster.cluster import Cluster, Curve, Device, Level, Link, Node
from placer.graph import Affine, Block, BlockClass, Graph, Input, Loss, Op, OpKind, Parameter, Tensor
from placer.plans.plan import ModelRef
from placer.plans.settings import RunSettings
from placer.search.problem import Problem

MODEL = ModelRef(kind="module", reference="drawn by placer.strategies.policy", fingerprint="0")
ITEM = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large problems are: from the least to the most blocks, devices and rows."""

    blocks: tuple[int, int]
    devices: tuple[int, int]
    rows: tuple[int, int]


# What the shipped policy has seen, and what it is judged on: every number of blocks and of devices is larger there.
SEEN = Sizes(blocks=(4, 20), devices=(2, 8), rows=(4, 32))
LARGER = Sizes(blocks=(24, 64), devices=(9, 24), rows=(16, 64))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What a block costs: FLOPs and kept bytes of a row, elements of parameters and of a row's output."""

    flops: int
    saved: int
    parameters: int
    output: int


def drawn_problem(seed: int, sizes: Sizes = SEEN) -> Problem:
    """The problem of a seed."""
    rng = random.Random(f"policy {seed}")
    blocks, devices, rows = (rng.randint(*span) for span in (sizes.blocks, sizes.devices, sizes.rows))
    graph = rng.choice((_chain, _chain, _transformer, _convnet))(rng, blocks)
    needed = 4 * graph.parameter_bytes + rows * (graph.saved_bytes // graph.rows)
    settings = RunSettings(
        optimizer=rng.choice(("adamw", "sgd")),
        recompute=rng.choice(("auto", "auto", "auto", "none", "full")),
        overlap=rng.random() < 0.7,
        clip_norm=rng.choice((None, 1.0)),
    )
    machines = _machines(rng, devices, needed)
    return Problem(graph=graph, cluster=machines, settings=settings, model=MODEL, rows=rows, seed=seed)


def _power(rng: random.Random, low: float, high: float) -> int:
    return int(10 ** rng.uniform(low, high))


def _chain(rng: random.Random, count: int) -> Graph:
    scale = rng.uniform(9, 11)
    pool = [
        _Kind(
            flops=_power(rng, scale - 1, scale + 0.5), saved=_power(rng, 5, 7.5), parameters=_power(rng, 4, 7.5),
            output=_power(rng, 3, 6),
        )
        for _ in range(rng.randint(1, 5))
    ]  # fmt: skip
    kinds = [rng.choice(pool) for _ in range(count)]
    skips = [tuple(sorted(rng.sample(range(count), 2))) for _ in range(rng.choice((0, 0, 1, 3)))]
    alike = [i for i in range(1, count) if kinds[i] == kinds[0]]
    tied = rng.choice(alike) if alike and rng.random() < 0.3 else 0
    return _chain_graph("chain", kinds, skips=[(a, b) for a, b in skips if b > a + 1], tied=tied)


def _convnet(rng: random.Random, count: int) -> Graph:
    """Every few blocks images halve: fewer bytes and FLOPs a row, more parameters."""
    flops, output, parameters = _power(rng, 9, 10.5), _power(rng, 5, 6.3), _power(rng, 3.5, 4.5)
    stages, fall = rng.randint(3, 5), rng.uniform(0.5, 1.0)
    kinds = []
    for block in range(count):
        depth = block * stages // count
        kinds.append(
            _Kind(
                flops=max(1, int(flops * fall**depth)), output=max(1, output >> depth),
                saved=max(1, 3 * ITEM * output >> depth), parameters=parameters << 2 * depth,
            )
        )  # fmt: skip
    return _chain_graph("convnet", kinds, skips=[], tied=0)


def _chain_graph(name: str, kinds: Sequence[_Kind], *, skips: Sequence[tuple[int, int]], tied: int) -> Graph:
    """Block i reads block i - 1, a skip's target also its source; with `tied` that block has the first's weight."""
    classes: list[BlockClass] = []
    blocks = []
    for index, kind in enumerate(kinds):
        sources = [index - 1, *(source for source, target in skips if target == index)] if index else []
        inputs = tuple(f"b{source}.0" for source in sources) or ("x:x",)
        made = _product(kind, tuple(kinds[source].output for source in sources) or (16,))
        if made not in classes:
            classes.append(made)
        owner = 0 if tied and index == tied else index
        blocks.append(
            Block(
                name=f"blocks.{index}", kind=classes.index(made), inputs=inputs, parameters=(f"blocks.{owner}.weight",)
            )
        )
    return _graph(name, classes, blocks, _row(16))


def _row(*sizes: int) -> Tensor:
    return Tensor(shape=(Affine(0, 1), *map(Affine, sizes)), dtype="float32", requires_grad=True)


def _product(kind: _Kind, inputs: tuple[int, ...]) -> BlockClass:
    """A block of one product that no rule knows: it is computed whole."""
    held, read, written = ITEM * kind.parameters, ITEM * sum(inputs), ITEM * kind.output
    op = Op(
        name="product", target="drawn.product", kind="matmul", inputs=(*(f"i{k}" for k in range(len(inputs))), "p0"),
        outputs=(_row(kind.output),),
        forward_flops=Affine(0, kind.flops), backward_flops=Affine(0, 2 * kind.flops),
        read_bytes=Affine(held, read), written_bytes=Affine(0, written),
        backward_read_bytes=Affine(held, read + written), backward_written_bytes=Affine(held, read),
        saved_bytes=Affine(0, kind.saved),
    )  # fmt: skip
    weight = Parameter(shape=(kind.parameters,), dtype="float32")
    return BlockClass(inputs=tuple(map(_row, inputs)), ops=(op,), outputs=("o0.0",), parameters=(weight,))


def _transformer(rng: random.Random, count: int) -> Graph:
    length, width = rng.choice((64, 128, 256)), 64 * rng.randint(4, 24)
    table, x = _power(rng, 6, 7.5), _row(length, width)
    ends = _Kind(flops=2 * length * width * 64, saved=ITEM * length * width, parameters=table, output=length * width)
    first, head = (_with_rows(_product(ends, (size,)), x) for size in (16, length * width))
    head = BlockClass(inputs=(x,), ops=head.ops, outputs=head.outputs, parameters=head.parameters)
    classes = [first, _layer(length, width), head]
    kinds = [0, *[1] * (count - 2), 2]
    blocks = [
        Block(
            name=f"layers.{index}", kind=kind, inputs=(f"b{index - 1}.0" if index else "x:x",),
            parameters=tuple(f"layers.{index}.p{k}" for k in range(len(classes[kind].parameters))),
        )
        for index, kind in enumerate(kinds)
    ]  # fmt: skip
    return _graph("transformer", classes, blocks, _row(16))


def _with_rows(kind: BlockClass, output: Tensor) -> BlockClass:
    """The same, whose result has these dims."""
    (op,) = kind.ops
    made = Op(
        name=op.name, target=op.target, kind=op.kind, inputs=op.inputs, outputs=(output,),
        forward_flops=op.forward_flops, backward_flops=op.backward_flops, read_bytes=op.read_bytes,
        written_bytes=op.written_bytes, backward_read_bytes=op.backward_read_bytes,
        backward_written_bytes=op.backward_written_bytes, saved_bytes=op.saved_bytes,
    )  # fmt: skip
    return BlockClass(inputs=kind.inputs, ops=(made,), outputs=kind.outputs, parameters=kind.parameters)


def _layer(length: int, width: int) -> BlockClass:
    """norm, four products with the weights of a layer's twelve times width squared elements, gelu, sum."""
    x, wide = _row(length, width), _row(length, 6 * width)
    flops = 2 * length * width * 6 * width
    ops = (
        _op("layer_norm", "reduction", ("i0", "p0"), x, arguments=f"t0, [{width}], t1"),
        _op("linear", "matmul", ("o0.0", "p1"), wide, arguments="t0, t1", flops=flops),
        _op("gelu", "pointwise", ("o1.0",), wide, arguments="t0"),
        _op("linear", "matmul", ("o2.0", "p2"), x, arguments="t0, t1", flops=flops),
        _op("add", "pointwise", ("i0", "o3.0"), x, arguments="t0, t1", overload="Tensor"),
    )
    shapes = ((width,), (6 * width, width), (width, 6 * width))
    return BlockClass(
        inputs=(x,), ops=ops, outputs=("o4.0",),
        parameters=tuple(Parameter(shape=shape, dtype="float32") for shape in shapes),
    )  # fmt: skip


def _op(
    name: str, kind: OpKind, inputs: tuple[str, ...], output: Tensor, *, arguments: str, flops: int = 0,
    overload: str = "default",
) -> Op:  # fmt: skip
    size = output.bytes_at(1)
    return Op(
        name=name, target=f"aten.{name}.{overload}", kind=kind, inputs=inputs, outputs=(output,), arguments=arguments,
        forward_flops=Affine(0, flops), backward_flops=Affine(0, 2 * flops),
        read_bytes=Affine(0, size), written_bytes=Affine(0, size), backward_read_bytes=Affine(0, 2 * size),
        backward_written_bytes=Affine(0, size), saved_bytes=Affine(0, 0 if name == "add" else size),
    )  # fmt: skip


def _graph(name: str, classes: Sequence[BlockClass], blocks: Sequence[Block], given: Tensor) -> Graph:
    last = f"b{len(blocks) - 1}.0"
    return Graph(
        name=name, rows=8, inputs=(Input(name="x", tensor=given),), classes=(*classes, BlockClass()),
        blocks=tuple(blocks), prologue=Block(name="prologue", kind=len(classes)), outputs=(last,),
        loss=Loss(reduction="mean", value=last),
    )  # fmt: skip


def _machines(rng: random.Random, devices: int, needed: int) -> Cluster:
    """One node or several, of equal chips or of two or three kinds."""
    memory = needed / devices * 10 ** rng.uniform(0.2, 1.6)
    rate = 10 ** rng.uniform(12.5, 14)
    chips = [_chip(rng, f"chip{k}", memory, rate, apart=k > 0) for k in range(rng.choice((1, 1, 2, 3)))]
    inside, outside = rng.uniform(9.5, 11.5), rng.uniform(8.5, 10.5)
    if rng.random() < 0.4:
        counts = _parts(rng, devices, len(chips))
        held = tuple(zip(chips, counts, strict=False))
        return Cluster(name="drawn", groups=((Node(name="node", devices=held, link=_link(rng, inside)), 1),))
    per_node = rng.choice([size for size in (1, 2, 4, 8) if size <= devices])
    nodes = [
        Node(
            name=f"node{index}", devices=((chips[index % len(chips)], min(per_node, devices - first)),),
            link=_link(rng, inside), nic=_link(rng, outside),
        )
        for index, first in enumerate(range(0, devices, per_node))
    ]  # fmt: skip
    groups = tuple((node, 1) for node in nodes)
    if len(chips) == 1 and devices % per_node == 0:
        groups = ((nodes[0], len(nodes)),)
    return Cluster(name="drawn", groups=groups, levels=(Level(name="network", link=_link(rng, outside)),))


def _parts(rng: random.Random, total: int, parts: int) -> list[int]:
    """`total` in so many positive parts, fewer where it is small."""
    cuts = sorted(rng.sample(range(1, total), min(parts, total) - 1))
    ends = [0, *cuts, total]
    return [b - a for a, b in pairwise(ends)]


def _chip(rng: random.Random, name: str, memory: float, rate: float, *, apart: bool) -> Device:
    """A chip; `apart`: up to four times as fast or slow, and as large or small, as the first."""
    rate *= 10 ** rng.uniform(-0.6, 0.6) if apart else 1.0
    memory *= 10 ** rng.uniform(-0.4, 0.4) if apart else 1.0
    return Device(
        name=name, backend="cuda", memory_bytes=max(1, int(memory)),
        memory_bandwidth=rate / 10 ** rng.uniform(1.5, 2.2),
        rates=(("float32", rate),), launch_seconds=10 ** rng.uniform(-6, -5),
        curve=Curve(points=((1e6, 0.05), (1e9, 0.5), (1e11, 0.85))),
    )  # fmt: skip


def _link(rng: random.Random, power: float) -> Link:
    return Link(
        name="link", latency_seconds=10 ** rng.uniform(-5.5, -4.5), bandwidth=10 ** (power + rng.uniform(-0.2, 0.2))
    )
