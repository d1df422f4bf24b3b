"""Hand-made graphs for tests: chains with skips and tied parameters, a GPT-like model, random ones for Hypothesis, ties
of all sorts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from placer.graph import Affine, Block, BlockClass, Graph, Input, Loss, Op, Parameter, Product, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSpec:
    """What a block of `chain_graph` costs: FLOPs, traffic and saved bytes per row, parameter and output elements.

    inner: elements that its product makes for a pointwise op behind it, which saves them with what the block saves, and
    makes the output (0: the product makes the output and is all there is).
    """

    flops: int = 2_000_000
    parameters: int = 1_000
    saved: int = 4_000
    output: int = 100
    traffic: int = 8_000
    inner: int = 0


def chain_graph(
    blocks: Sequence[BlockSpec],
    *,
    rows: int = 8,
    skips: Sequence[tuple[int, int]] = (),
    tied: Sequence[tuple[int, int]] = (),
    dtype: str = "float32",
) -> Graph:
    """Blocks in a row, block i reading block i-1; `skips` (source, target) adds a second reader, `tied` shares weights.

    Tied blocks must have equally many parameters. Equal blocks with equal inputs share one class.
    """
    owner = {second: first for first, second in tied}
    classes: list[BlockClass] = []
    placed: list[Block] = []
    for index, spec in enumerate(blocks):
        inputs = [f"b{index - 1}.0" if index else "x:x"]
        inputs += [f"b{source}.0" for source, target in skips if target == index and source < index - 1]
        sizes = tuple(blocks[int(r[1:].split(".")[0])].output if r[0] == "b" else 16 for r in inputs)
        kind = _chain_class(spec, sizes, dtype)
        if kind not in classes:
            classes.append(kind)
        place = classes.index(kind)
        name = f"blocks.{owner.get(index, index)}.weight"
        placed.append(Block(name=f"blocks.{index}", kind=place, inputs=tuple(inputs), parameters=(name,)))
    return _graph("chain", rows, classes, placed, (Input(name="x", tensor=_rows_tensor(16, dtype, False)),))


def branching_graph(
    blocks: Sequence[BlockSpec], reads: Sequence[Sequence[int]], *, rows: int = 8, dtype: str = "float32"
) -> Graph:
    """Blocks that read the outputs of the earlier blocks `reads` gives for each; who reads of none reads the input."""
    classes: list[BlockClass] = []
    placed: list[Block] = []
    for index, (spec, makers) in enumerate(zip(blocks, reads, strict=True)):
        sizes = tuple(blocks[maker].output for maker in makers) or (16,)
        kind = _chain_class(spec, sizes, dtype)
        if kind not in classes:
            classes.append(kind)
        inputs = tuple(f"b{maker}.0" for maker in makers) or ("x:x",)
        name = f"blocks.{index}"
        placed.append(Block(name=name, kind=classes.index(kind), inputs=inputs, parameters=(f"{name}.weight",)))
    return _graph("branching", rows, classes, placed, (Input(name="x", tensor=_rows_tensor(16, dtype, False)),))


@st.composite
def branching_graphs(draw: st.DrawFn, *, least: int = 3, most: int = 9) -> Graph:
    """A random graph of blocks, each reading of one to three earlier ones or of the input; the last reads all ends."""
    blocks = draw(st.lists(block_specs(), min_size=least, max_size=most))
    reads: list[list[int]] = []
    for index in range(len(blocks) - 1):
        reads.append(sorted(draw(st.sets(st.integers(0, index - 1), max_size=3))) if index else [])
    read = {maker for makers in reads for maker in makers}
    reads.append([index for index in range(len(blocks) - 1) if index not in read])
    return branching_graph(blocks, reads)


def gpt_graph(
    *,
    layers: int = 4,
    hidden: int = 64,
    heads: int = 4,
    sequence: int = 32,
    vocabulary: int = 256,
    tied: bool = False,
    rows: int = 8,
    dtype: str = "float32",
) -> Graph:
    """A GPT: embedding block, `layers` equal layers (norm, attention, norm, feed-forward), head with the loss."""
    size = _Sizes(hidden=hidden, heads=heads, sequence=sequence, vocabulary=vocabulary, dtype=dtype)
    classes = [_embedding(size), _layer(size), _head(size)]
    head_weight = "embedding.weight" if tied else "head.weight"
    blocks = [Block(name="embedding", kind=0, inputs=("x:input_ids",), parameters=("embedding.weight",))]
    for index in range(layers):
        names = tuple(f"layers.{index}.p{k}" for k in range(len(classes[1].parameters)))
        blocks.append(Block(name=f"layers.{index}", kind=1, inputs=(f"b{index}.0",), parameters=names))
    blocks.append(
        Block(name="head", kind=2, inputs=(f"b{layers}.0", "x:labels"), parameters=("norm.p0", "norm.p1", head_weight))
    )
    ids = Tensor(shape=(Affine(0, 1), Affine(sequence)), dtype="int64")
    inputs = tuple(Input(name=name, tensor=ids, high=vocabulary) for name in ("input_ids", "labels"))
    return _graph("gpt", rows, classes, blocks, inputs)


@st.composite
def block_specs(draw: st.DrawFn) -> BlockSpec:
    """A random block, of sizes that differ by three orders of magnitude."""
    return BlockSpec(
        flops=draw(st.integers(10**4, 10**7)),
        parameters=draw(st.integers(10, 10**5)),
        saved=draw(st.integers(10**2, 10**5)),
        output=draw(st.integers(1, 10**4)),
        traffic=draw(st.integers(10**2, 10**6)),
    )


@st.composite
def chain_graphs(draw: st.DrawFn, *, least: int = 1, most: int = 8) -> Graph:
    """A random chain of `least` to `most` blocks, repeated blocks, sometimes with a skip and a tied pair."""
    pool = draw(st.lists(block_specs(), min_size=1, max_size=3))
    blocks = draw(st.lists(st.sampled_from(pool), min_size=least, max_size=most))
    count = len(blocks)
    skips: tuple[tuple[int, int], ...] = ()
    if count > 2 and draw(st.booleans()):
        source = draw(st.integers(0, count - 3))
        skips = ((source, draw(st.integers(source + 2, count - 1))),)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count) if blocks[i].parameters == blocks[j].parameters]
    shares = draw(st.booleans())
    tied = [draw(st.sampled_from(pairs))] if pairs and shares else []
    return chain_graph(blocks, skips=skips, tied=tied)


def with_ties(rng: random.Random, graph: Graph) -> Graph:
    """The graph with some parameters of some blocks, alike in shape, made one: within a class, across classes, of two
    blocks or of many; some frozen, some buffers."""
    if rng.random() < 0.4:
        graph = _with_buffers(rng, graph)
    if rng.random() < 0.2:
        graph = _frozen(rng, graph)
    for _ in range(rng.choice((1, 1, 2, 3))):
        graph = _with_tie(rng, graph)
    return graph


def _with_tie(rng: random.Random, graph: Graph) -> Graph:
    """One parameter for all of some blocks that have one like it."""
    alike: dict[Parameter, dict[int, list[int]]] = {}
    for index, block in enumerate(graph.blocks):
        for place, parameter in enumerate(graph.classes[block.kind].parameters):
            alike.setdefault(parameter, {}).setdefault(index, []).append(place)
    several = [found for found in alike.values() if len(found) > 1]
    if not several:
        return graph
    found = rng.choice(several)
    users = sorted(rng.sample(sorted(found), min(len(found), rng.choice((2, 2, 3, len(found))))))
    shared, blocks = graph.blocks[users[0]].parameters[found[users[0]][0]], list(graph.blocks)
    for user in users:
        blocks[user] = _renamed(blocks[user], rng.choice(found[user]), shared)
    return replace(graph, blocks=tuple(blocks))


def _renamed(block: Block, place: int, name: str) -> Block:
    """The block with another name of a parameter, unless it has that already."""
    names = block.parameters
    return block if name in names else replace(block, parameters=(*names[:place], name, *names[place + 1 :]))


def _with_buffers(rng: random.Random, graph: Graph) -> Graph:
    """Blocks of one class have a buffer too, as large as their parameters or ten times as large."""
    kind = rng.choice([block.kind for block in graph.blocks])
    size = rng.choice((1, 10)) * sum(one.elements for one in graph.classes[kind].parameters)
    classes, blocks = list(graph.classes), list(graph.blocks)
    buffer = Parameter(shape=(max(1, size),), dtype="float32", trainable=False, buffer=True)
    classes[kind] = replace(classes[kind], parameters=(*classes[kind].parameters, buffer))
    for index, block in enumerate(blocks):
        if block.kind == kind:
            blocks[index] = replace(block, parameters=(*block.parameters, f"blocks.{index}.buffer"))
    return replace(graph, classes=tuple(classes), blocks=tuple(blocks))


def _frozen(rng: random.Random, graph: Graph) -> Graph:
    """The graph with all parameters of some shapes frozen."""
    shapes = {one.shape for kind in graph.classes for one in kind.parameters}
    trained = {shape for shape in sorted(shapes, key=str) if rng.random() < 0.6}

    def frozen(kind: BlockClass) -> BlockClass:
        own = (replace(one, trainable=one.trainable and one.shape in trained) for one in kind.parameters)
        return replace(kind, parameters=tuple(own))

    return replace(graph, classes=tuple(map(frozen, graph.classes)))


def _rows_tensor(size: int, dtype: str, grad: bool = True) -> Tensor:
    return Tensor(shape=(Affine(0, 1), Affine(size)), dtype=dtype, requires_grad=grad, dims=("batch", None))


def _chain_class(spec: BlockSpec, inputs: tuple[int, ...], dtype: str) -> BlockClass:
    op = Op(
        name="product", target="test.product", kind="matmul",
        inputs=(*(f"i{k}" for k in range(len(inputs))), "p0"),
        outputs=(_rows_tensor(spec.output, dtype),),
        forward_flops=Affine(0, spec.flops), backward_flops=Affine(0, 2 * spec.flops),
        read_bytes=Affine(4 * spec.parameters, spec.traffic), written_bytes=Affine(0, 4 * spec.output),
        backward_read_bytes=Affine(4 * spec.parameters, 2 * spec.traffic),
        backward_written_bytes=Affine(4 * spec.parameters, 4 * sum(inputs)),
        saved_bytes=Affine(0, spec.saved),
    )  # fmt: skip
    ops: tuple[Op, ...] = (op,)
    if spec.inner:
        within = _rows_tensor(spec.inner, dtype)
        light = Op(
            name="gelu", target="aten.gelu.default", kind="pointwise", inputs=("o0.0",), outputs=op.outputs,
            read_bytes=Affine(0, 4 * spec.inner), written_bytes=op.written_bytes,
            backward_read_bytes=Affine(0, spec.traffic), backward_written_bytes=Affine(0, 4 * spec.inner),
            saved_bytes=Affine(0, spec.saved + 4 * spec.inner),
        )  # fmt: skip
        product = replace(op, outputs=(within,), written_bytes=Affine(0, 4 * spec.inner), saved_bytes=Affine())
        ops = (product, light)
    return BlockClass(
        inputs=tuple(_rows_tensor(size, dtype) for size in inputs),
        ops=ops,
        outputs=(f"o{len(ops) - 1}.0",),
        parameters=(Parameter(shape=(spec.parameters,), dtype=dtype),),
    )


def _graph(name: str, rows: int, classes: list[BlockClass], blocks: list[Block], inputs: tuple[Input, ...]) -> Graph:
    value = f"b{len(blocks) - 1}.0"
    return Graph(
        name=name,
        rows=rows,
        inputs=inputs,
        classes=(*classes, BlockClass()),
        blocks=tuple(blocks),
        prologue=Block(name="prologue", kind=len(classes)),
        outputs=(value,),
        loss=Loss(reduction="mean", value=value),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    dtype: str

    def activation(self, width: int) -> Tensor:
        shape = (Affine(0, 1), Affine(self.sequence), Affine(width))
        return Tensor(shape=shape, dtype=self.dtype, requires_grad=True, dims=("batch", "sequence", "hidden"))

    def bytes(self, width: int) -> Affine:
        return Affine(0, self.activation(width).bytes_at(1))

    def weights(self, *shape: int) -> Parameter:
        return Parameter(shape=shape, dtype=self.dtype)


def _linear(size: _Sizes, name: str, source: str, weight: str, wide: int, out: int) -> Op:
    tokens = Affine(0, size.sequence)
    flops = Affine(0, 2 * size.sequence * wide * out)
    held = size.weights(wide, out).bytes
    return Op(
        name=name, target="aten.linear.default", kind="matmul", inputs=(source, weight),
        outputs=(size.activation(out),), forward_flops=flops, backward_flops=Affine(0, 2 * flops.per_row),
        read_bytes=Affine(held, size.bytes(wide).per_row), written_bytes=size.bytes(out),
        backward_read_bytes=Affine(held, size.bytes(wide).per_row + 2 * size.bytes(out).per_row),
        backward_written_bytes=Affine(held, size.bytes(wide).per_row),
        saved_bytes=size.bytes(wide),
        products=(Product(m=tokens, n=Affine(out), k=Affine(wide)),),
        backward_products=(
            Product(m=tokens, n=Affine(wide), k=Affine(out)), Product(m=Affine(out), n=Affine(wide), k=tokens),
        ),
    )  # fmt: skip


def _pointwise(size: _Sizes, name: str, inputs: tuple[str, ...], width: int, saved: bool) -> Op:
    one = size.bytes(width)
    reads = Affine(0, len(inputs) * one.per_row)
    return Op(
        name=name, target=f"aten.{name}.default", kind="reduction" if name.startswith("norm") else "pointwise",
        inputs=inputs, outputs=(size.activation(width),), read_bytes=reads, written_bytes=one,
        backward_read_bytes=Affine(0, 2 * one.per_row), backward_written_bytes=reads,
        saved_bytes=one if saved else Affine(),
    )  # fmt: skip


def _attention(size: _Sizes, source: str) -> Op:
    inner, length = size.hidden // size.heads, Affine(size.sequence)
    scores = Product(batch=Affine(0, size.heads), m=length, n=length, k=Affine(inner))
    values = Product(batch=Affine(0, size.heads), m=length, n=Affine(inner), k=length)
    flops = 4 * size.sequence**2 * size.hidden
    kept = size.heads * size.bytes(size.sequence).per_row
    return Op(
        name="attention", target="aten.scaled_dot_product_attention.default", kind="attention", inputs=(source,),
        outputs=(size.activation(size.hidden),), forward_flops=Affine(0, flops), backward_flops=Affine(0, 2 * flops),
        read_bytes=size.bytes(3 * size.hidden), written_bytes=size.bytes(size.hidden),
        backward_read_bytes=Affine(0, size.bytes(5 * size.hidden).per_row + kept),
        backward_written_bytes=size.bytes(3 * size.hidden),
        saved_bytes=Affine(0, size.bytes(4 * size.hidden).per_row + kept),
        fused_saved_bytes=Affine(0, size.bytes(4 * size.hidden).per_row + 4 * size.heads * size.sequence),
        products=(scores, values), backward_products=(scores, values, scores, values),
    )  # fmt: skip


def _layer(size: _Sizes) -> BlockClass:
    h = size.hidden
    ops = (
        _pointwise(size, "norm_1", ("i0",), h, True),
        _linear(size, "qkv", "o0.0", "p2", h, 3 * h),
        _attention(size, "o1.0"),
        _linear(size, "out", "o2.0", "p3", h, h),
        _pointwise(size, "add_1", ("i0", "o3.0"), h, False),
        _pointwise(size, "norm_2", ("o4.0",), h, True),
        _linear(size, "up", "o5.0", "p6", h, 4 * h),
        _pointwise(size, "gelu", ("o6.0",), 4 * h, True),
        _linear(size, "down", "o7.0", "p7", 4 * h, h),
        _pointwise(size, "add_2", ("o4.0", "o8.0"), h, False),
    )
    shapes = ((h,), (h,), (h, 3 * h), (h, h), (h,), (h,), (h, 4 * h), (4 * h, h))
    return BlockClass(
        inputs=(size.activation(h),), ops=ops, outputs=("o9.0",),
        parameters=tuple(size.weights(*shape) for shape in shapes),
    )  # fmt: skip


def _embedding(size: _Sizes) -> BlockClass:
    ids = Tensor(shape=(Affine(0, 1), Affine(size.sequence)), dtype="int64")
    one = size.bytes(size.hidden)
    table = size.weights(size.vocabulary, size.hidden)
    op = Op(
        name="embedding", target="aten.embedding.default", kind="gather", inputs=("p0", "i0"),
        outputs=(size.activation(size.hidden),), read_bytes=one, written_bytes=one, backward_read_bytes=one,
        backward_written_bytes=Affine(table.bytes), saved_bytes=Affine(0, 8 * size.sequence),
    )  # fmt: skip
    return BlockClass(inputs=(ids,), ops=(op,), outputs=("o0.0",), parameters=(table,))


def _head(size: _Sizes) -> BlockClass:
    h, v = size.hidden, size.vocabulary
    loss = Op(
        name="loss", target="aten.cross_entropy_loss.default", kind="reduction", inputs=("o1.0", "i1"),
        outputs=(Tensor(shape=(), dtype=size.dtype, requires_grad=True),), read_bytes=size.bytes(v),
        written_bytes=size.bytes(v), backward_read_bytes=size.bytes(v), backward_written_bytes=size.bytes(v),
        saved_bytes=size.bytes(v),
    )  # fmt: skip
    ids = Tensor(shape=(Affine(0, 1), Affine(size.sequence)), dtype="int64")
    ops = (_pointwise(size, "norm", ("i0",), h, True), _linear(size, "logits", "o0.0", "p2", h, v), loss)
    parameters = (size.weights(h), size.weights(h), size.weights(v, h))
    return BlockClass(inputs=(size.activation(h), ids), ops=ops, outputs=("o2.0",), parameters=parameters)
