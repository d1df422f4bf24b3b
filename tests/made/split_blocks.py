"""Small block classes of real ops, with what each was called with, for tests of splits and of the search over them."""

from __future__ import annotations

import random

from placer.graph import Affine, Block, BlockClass, Graph, Input, Loss, Op, Parameter, Tensor
from placer.plans.plan import Split
from placer.rules import Work, call_of, rule_for
from placer.spmd.layout_conversions import edges
from placer.strategies.intra_op.split_costs import SplitCosts

ROWS = Affine(0, 1)


def tensor(*sizes: int, grad: bool = True) -> Tensor:
    """A batch of rows of these sizes."""
    return Tensor(shape=(ROWS, *map(Affine, sizes)), dtype="float32", requires_grad=grad)


def finished(kind: BlockClass) -> BlockClass:
    """The class with FLOPs, products and bytes of its ops filled in by their rules."""
    ops = []
    for op in kind.ops:
        works = []
        for rows in (1, 2):
            rule = rule_for("::".join(op.target.split(".")[:2]))
            works.append(Work() if rule is None else rule(call_of(kind, op, rows)))
        read = sum(_bytes(kind.tensor(reference)) for reference in op.inputs)
        values = [kind.tensor(reference) for reference in op.inputs]
        kept = sum(value.bytes_at(1) for value in values if isinstance(value, Tensor) and op.name != "add")
        written = sum(output.bytes_at(1) for output in op.outputs)
        ops.append(
            Op(
                name=op.name, target=op.target, kind=op.kind, inputs=op.inputs, outputs=op.outputs,
                arguments=op.arguments, forward_flops=_line(works[0].forward_flops, works[1].forward_flops),
                backward_flops=_line(works[0].backward_flops, works[1].backward_flops),
                read_bytes=Affine(0, read), written_bytes=Affine(0, written), backward_read_bytes=Affine(0, read),
                backward_written_bytes=Affine(0, read), saved_bytes=Affine(0, kept),
            )
        )  # fmt: skip
    return BlockClass(inputs=kind.inputs, ops=tuple(ops), outputs=kind.outputs, parameters=kind.parameters)


def mlp(*, length: int = 4, width: int = 8, inner: int = 16, residual: bool = True) -> BlockClass:
    """norm, up, gelu, down and, with `residual`, the sum with what came in: (rows, length, width)."""
    x, wide = tensor(length, width), tensor(length, inner)
    ops = [
        _op("layer_norm", "reduction", ("i0", "p0"), x, f"t0, [{width}], t1"),
        _op("linear", "matmul", ("o0.0", "p1"), wide, "t0, t1"),
        _op("gelu", "pointwise", ("o1.0",), wide, "t0"),
        _op("linear", "matmul", ("o2.0", "p2"), x, "t0, t1"),
    ]
    if residual:
        ops.append(_op("add", "pointwise", ("i0", "o3.0"), x, "t0, t1", overload="Tensor"))
    parameters = tuple(Parameter(shape=shape, dtype="float32") for shape in ((width,), (inner, width), (width, inner)))
    last = f"o{len(ops) - 1}.0"
    return finished(BlockClass(inputs=(x,), ops=tuple(ops), outputs=(last,), parameters=parameters))


def chain_of(kinds: list[BlockClass], order: list[int], *, rows: int = 4) -> Graph:
    """Blocks of these classes one after the other; the last one's value is the loss, a mean."""
    blocks = [
        Block(
            name=f"block{at}", kind=kind + 1, inputs=("x:x" if at == 0 else f"b{at - 1}.0",),
            parameters=tuple(f"block{at}.p{n}" for n in range(len(kinds[kind].parameters))),
        )
        for at, kind in enumerate(order)
    ]  # fmt: skip
    first = kinds[order[0]].inputs[0]
    return Graph(
        name="chain", rows=rows, inputs=(Input(name="x", tensor=first),), classes=(BlockClass(), *kinds),
        blocks=tuple(blocks), prologue=Block(name="", kind=0), outputs=(f"b{len(blocks) - 1}.0",),
        loss=Loss(reduction="mean", value=f"b{len(blocks) - 1}.0"),
    )  # fmt: skip


def random_chain(rng: random.Random) -> Graph:
    """Two to four blocks of one or two classes of mlp."""
    kinds = [
        mlp(inner=rng.choice((8, 16, 32)) * 64, width=64, length=rng.choice((4, 8)), residual=rng.random() < 0.7)
        for _ in range(rng.choice((1, 2)))
    ]
    if len({kind.inputs for kind in kinds}) > 1:
        kinds = kinds[:1]
    return chain_of(kinds, [rng.randrange(len(kinds)) for _ in range(rng.randint(2, 4))])


def _op(name: str, kind: str, inputs: tuple[str, ...], output: Tensor, arguments: str, overload: str = "default") -> Op:
    return Op(
        name=name, target=f"aten.{name}.{overload}", kind=kind, inputs=inputs, outputs=(output,),  # type: ignore[arg-type]
        arguments=arguments,
    )  # fmt: skip


def _bytes(value: Tensor | Parameter) -> int:
    return value.bytes if isinstance(value, Parameter) else value.bytes_at(1)


def _line(first: int, second: int) -> Affine:
    return Affine(2 * first - second, second - first)


def seconds_of(kind: BlockClass, split: Split, given: SplitCosts) -> float | None:
    """A split added up by hand, the host beside the device; None where a conversion cannot be."""
    found, apart, moves, passes = edges(kind, split), 0.0, 0, [0.0, 0.0]
    for one in found.conversions:
        moved = given.converting(one.reference, one.have, one.want)
        if moved is None:
            return None
        apart, moves = apart + moved, moves + given.moves(one.reference, one.have, one.want)
    for index, choice in enumerate(found.choices):
        cost = given.choices(index)[choice]
        passes = [passes[0] + cost.busy.forward, passes[1] + cost.busy.backward]
        apart += cost.inside + given.tie(cost)
    host = [whole + each * moves for whole, each in zip(given.host, given.host_each, strict=True)]
    host[1] *= given.trains  # no backward is issued where there is none
    kept = sum(given.keeping(p, s) for p, s in zip(kind.parameters, found.parameters, strict=True))
    return apart + kept + sum(map(max, passes, host))
