"""The plans that are compared: two replicas, two stages, or one replica cut over two devices as Megatron cuts it."""

from __future__ import annotations

from placer import tracer
from placer.cluster.cluster import Cluster, Curve, Device, Link, Node
from placer.graph import BlockClass, Graph
from placer.plans.plan import Layout, Plan, Split, Stage
from placer.plans.settings import RunSettings
from placer.runtime.bench.model import Decoder, Size
from placer.spmd.propagation import Wishes, followed

RANKS = 2
SETTINGS = RunSettings(precision="float32", clip_norm=1.0)
COLUMNS, ROWS = ("q", "k", "v", "up", "head"), ("o", "down")


def plan_of(kind: str, model: Decoder, size: Size) -> Plan:
    """The plan of `data`, `pipeline` or `tensor` on two processes."""
    shapes = dict.fromkeys(("tokens", "labels"), ((size.rows, size.length), "int64"))
    graph = tracer.capture(model, batch=shapes)
    blocks = len(graph.blocks)
    half = 1 + size.layers // 2  # the embeddings are a block of their own
    stages = {
        "data": (Stage(first=0, last=blocks, devices=(0, 1)),),
        "pipeline": (Stage(first=0, last=half, devices=(0,)), Stage(first=half, last=blocks, devices=(1,))),
        "tensor": (Stage(first=0, last=blocks, devices=(0, 1), layout=0, degree=2),),
    }[kind]
    each = size.rows // size.microbatches
    return Plan(
        model=tracer.resolve(model).ref,
        graph=graph,
        cluster=_processes(),
        settings=SETTINGS,
        stages=stages,
        schedule="1f1b",
        microbatches=(each,) * size.microbatches if kind == "pipeline" else (size.rows,),
        layouts=(_megatron(graph),) if kind == "tensor" else (),
    )


def _megatron(graph: Graph) -> Layout:
    """Columns then rows, heads, and a head and a loss cut by words; what lies between follows."""
    return Layout(degree=RANKS, splits=tuple(_split(graph, number) for number in range(len(graph.classes))))


def _split(graph: Graph, number: int) -> Split | None:
    block_class = graph.classes[number]
    block = next((block for block in graph.blocks if block.kind == number), None)
    wishes = {} if block is None else _wishes(block_class, block.parameters)
    if set(wishes.values()) <= {"whole"}:  # such as the embeddings, which each has whole, as by hand
        return None
    return followed(
        block_class, RANKS, wishes, ("whole",) * len(block_class.inputs), ("whole",) * len(block_class.outputs)
    )


def _wishes(block_class: BlockClass, parameters: tuple[str, ...]) -> Wishes:
    found = {}
    for op in block_class.ops:
        weights = [parameters[int(name[1:])] for name in op.inputs if name.startswith("p")]
        layer = weights[0].split(".")[-2] if weights else ""
        if layer in (*COLUMNS, *ROWS):
            found[op.name] = "n" if layer in COLUMNS else "k"
        elif op.target.startswith("aten.add."):
            found[op.name] = "whole"  # sums of rows are made before a residual is added
    if "head" in {name.split(".")[-2] for name in parameters}:
        found |= {op.name: "classes" for op in block_class.ops if "cross_entropy" in op.target}
    return found


def _processes() -> Cluster:
    """This machine as processes; the rates are made up and decide nothing here."""
    cpu = Device(
        name="process", backend="cpu", memory_bytes=2**36, memory_bandwidth=1e10, rates=(("float32", 1e10),),
        launch_seconds=1e-6, curve=Curve(points=((1.0, 1.0),)),
    )  # fmt: skip
    link = Link(name="loopback", latency_seconds=1e-5, bandwidth=1e9)
    return Cluster(name="processes", groups=((Node(name="here", devices=((cpu, RANKS),), link=link), 1),))
