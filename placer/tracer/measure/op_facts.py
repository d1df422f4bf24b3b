"""What one call is, in numbers, at two row counts: FLOPs, products and bytes as `Affine`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import fx

from placer.graph import Affine, Op, OpKind, Product, Tensor
from placer.rules.calls import Argument, Call, MatrixProduct, Value, Work
from placer.rules.opaque import TARGET, stated_seconds
from placer.rules.registry import kind_of, rule_for
from placer.tracer.export.cleaning import is_mutable, target_name, told
from placer.tracer.export.row_laws import RowLaw
from placer.tracer.export.symbolic_rows import OtherRowsError, counted_sizes
from placer.tracer.measure.call_cache import storage_of
from placer.tracer.measure.dim_names import Names, Shape, dim_names
from placer.tracer.measure.meta_run import Played, lies_last

Facts = dict[fx.Node, Played]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The graph played with `rows` and with `rows` + 1 rows: two points of every line."""

    rows: int
    first: Facts
    second: Facts
    shapes: dict[fx.Node, tuple[Shape, ...]]
    names: dict[fx.Node, tuple[Names, ...]]

    def affine(self, at_first: int, at_second: int) -> Affine:
        """The line through both values."""
        return line(self.rows, at_first, at_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBytes:
    """Bytes each node is the first to keep, what attention and RMS norms would keep in a fused kernel, and the numbers
    of the inputs that a node keeps without adding to the bytes: parameters, and what another node kept before."""

    plain: dict[fx.Node, int]
    fused: dict[fx.Node, int]
    again: dict[fx.Node, tuple[int, ...]]


def measured_op(node: fx.Node, samples: Samples, saved: tuple[SavedBytes, SavedBytes]) -> Op:
    """The op of a call; name, module and inputs are the caller's to fill in."""
    first, second = _numbers(node, samples.first), _numbers(node, samples.second)
    tags = _tags(node)
    target = target_name(node)
    kind = _kind(node, kind_of(target, tags), samples.first)
    return Op(
        name="",
        target=f"{target.replace('::', '.')}.{node.target._overloadname}"
        if isinstance(node.target, torch._ops.OpOverload)
        else target.replace("::", "."),
        kind=kind,
        arguments=arguments_text(node, samples),
        outputs=tensors(node, samples),
        forward_flops=samples.affine(first.work.forward_flops, second.work.forward_flops),
        backward_flops=samples.affine(first.work.backward_flops, second.work.backward_flops),
        read_bytes=samples.affine(first.read, second.read),
        written_bytes=samples.affine(first.written, second.written),
        backward_read_bytes=samples.affine(first.backward_read, second.backward_read),
        backward_written_bytes=samples.affine(first.backward_written, second.backward_written),
        saved_bytes=samples.affine(saved[0].plain.get(node, 0), saved[1].plain.get(node, 0)),
        fused_saved_bytes=samples.affine(saved[0].fused.get(node, 0), saved[1].fused.get(node, 0)),
        kept_again=saved[0].again.get(node, ()),
        products=_products(first.work.forward, second.work.forward, samples),
        backward_products=_products(first.work.backward, second.work.backward, samples),
        covered=kind != "opaque" or rule_for(target) is not None,
        seconds=_seconds(node, samples),
        channels_last=kind == "convolution" and lies_last(samples.first[node].results[0]),
    )


def _seconds(node: fx.Node, samples: Samples) -> tuple[float, float] | None:
    """Forward seconds of an opaque part, fixed and per row, where they are known."""
    if target_name(node) != TARGET:
        return None
    first, second = (stated_seconds(_call(node, facts)) for facts in (samples.first, samples.second))
    return None if first is None or second is None else (first - (second - first) * samples.rows, second - first)


def arguments_text(node: fx.Node, samples: Samples) -> str:
    """What the node was called with, as `Op.arguments` says."""
    places = {argument: f"t{at}" for at, argument in enumerate(_tensor_inputs(node))}
    numbers = counted_sizes(node)

    def text(argument: object) -> str:
        if isinstance(argument, fx.Node):
            if argument in places:
                return places[argument]
            if "law" in argument.meta:
                return _law_text(argument.meta["law"])
            return _affine_text(argument, samples, "global_rows" if argument in numbers else "rows")
        if isinstance(argument, (list, tuple)):
            return f"[{', '.join(text(part) for part in argument)}]"
        return repr(argument) if isinstance(argument, (bool, int, float, str)) else "None"

    keywords = (f"{name}={text(argument)}" for name, argument in node.kwargs.items())
    return ", ".join((*(text(argument) for argument in node.args), *keywords))


def _tensor_inputs(node: fx.Node) -> list[fx.Node]:
    """The values a node reads, in the order of `Op.inputs`."""
    return [argument for argument in node.all_input_nodes if not argument.meta.get("size")]


def _affine_text(node: fx.Node, samples: Samples, rows: str) -> str:
    first, second = samples.first[node].value, samples.second[node].value
    if not isinstance(first, int) or not isinstance(second, int):
        return "None"
    size = samples.affine(first, second)
    if not size.per_row:
        return str(size.fixed)
    rows = rows if size.per_row == 1 else f"{size.per_row}*{rows}"
    return f"{rows}+{size.fixed}" if size.fixed else rows


def _law_text(law: RowLaw) -> str:
    number = f"{law.per_row!r}*global_rows+{law.fixed!r}"
    number = number if law.power == 1 else f"({number})**{law.power!r}"
    return number if law.sign > 0 else f"-({number})"


def tensors(node: fx.Node, samples: Samples) -> tuple[Tensor, ...]:
    """The results of a node with affine shapes."""
    return tuple(
        Tensor(
            shape=shape,
            dtype=str(result.dtype).removeprefix("torch."),
            requires_grad=result.requires_grad,
            dims=names,
        )
        for result, shape, names in zip(
            samples.first[node].results, samples.shapes[node], samples.names[node], strict=True
        )
    )


def sampled(graph: fx.Graph, rows: int, first: Facts, second: Facts) -> Samples:
    """Both plays with the shapes and the names of dims that follow from them.

    Raises OtherRowsError where one gives more results than the other.
    """
    more = next((node for node in first if len(first[node].results) != len(second[node].results)), None)
    if more is not None:
        raise OtherRowsError(f"{told(more)} gives a result for each row, as many as there are rows: take them by index")
    shapes = {
        node: tuple(
            tuple(line(rows, a, b) for a, b in zip(one.shape, other.shape, strict=True))
            for one, other in zip(first[node].results, second[node].results, strict=True)
        )
        for node in first
    }
    return Samples(rows=rows, first=first, second=second, shapes=shapes, names=dim_names(graph, shapes))


def line(rows: int, at_first: int, at_second: int) -> Affine:
    """The line through a value at `rows` and one at `rows` + 1."""
    return Affine.through(rows, at_first, rows + 1, at_second)


def saved_bytes(graph: fx.Graph, facts: Facts, prologue: tuple[fx.Node, ...]) -> SavedBytes:
    """Each storage autograd keeps, counted at the first node that keeps it; parameters, buffers, constants left out.

    Values of the prologue (rotary tables) count where they are made: every stage that reads them makes its own.
    """
    state = (node for node in graph.nodes if node.op == "get_attr")
    seen = {storage_of(result) for node in state for result in facts[node].results}
    plain: dict[fx.Node, int] = {}
    again: dict[fx.Node, tuple[int, ...]] = {}
    maker: dict[int, fx.Node] = {}
    for node in prologue:
        for result in facts[node].results:
            maker.setdefault(storage_of(result), node)
    for node in graph.nodes:
        held = facts[node].kept if node in facts else ()
        met = {kept.storage for kept in held if kept.storage in seen} - maker.keys()
        if met:
            again[node] = _numbers_of(met, node, facts)
        for kept in held:
            if kept.storage not in seen:
                seen.add(kept.storage)
                owner = maker.get(kept.storage, node)
                plain[owner] = plain.get(owner, 0) + kept.bytes
    fusing = [node for node in graph.nodes if _is_attention(node) or _is_rms_norm(node)]
    return SavedBytes(plain=plain, fused=_fused(fusing, facts, set(maker)), again=again)


def _numbers_of(storages: set[int], node: fx.Node, facts: Facts) -> tuple[int, ...]:
    """The numbers of the inputs that have these storages."""
    inputs = enumerate(_tensor_inputs(node))
    return tuple(i for i, one in inputs if any(storage_of(result) in storages for result in facts[one].results))


def kept_storages(node: fx.Node, facts: Facts) -> set[int]:
    """The storages that a node keeps, and what attention reads and makes, or an RMS norm reads, which a fused kernel
    keeps."""
    found = {one.storage for one in facts[node].kept}
    if (_is_attention(node) or _is_rms_norm(node)) and facts[node].results[0].requires_grad:
        found |= {storage_of(value) for value in _kept_fused(node, facts)}
    return found


def _is_attention(node: fx.Node) -> bool:
    return node.op == "call_function" and kind_of(target_name(node)) == "attention"


def _is_rms_norm(node: fx.Node) -> bool:
    """On GPUs one kernel (`_fused_rms_norm`, torch 2.9 on), which keeps what it reads; on CPUs many ops in float32."""
    return node.op == "call_function" and target_name(node).endswith("::rms_norm")


def _kept_fused(node: fx.Node, facts: Facts) -> tuple[torch.Tensor, ...]:
    """Query, key and value of attention, its mask where that is one of numbers, and its result; what a norm reads."""
    if _is_rms_norm(node):
        return (facts[node.all_input_nodes[0]].results[0],)
    read = (facts[argument].results[0] for argument in _tensor_inputs(node)[:4])
    return (*(value for value in read if value.is_floating_point()), facts[node].results[0])


def _fused(fusing: list[fx.Node], facts: Facts, apart: set[int]) -> dict[fx.Node, int]:
    """Bytes that these nodes keep in a fused kernel and no other node does, one float32 per query and head, or per row
    of a norm, with them.

    Storages `apart` (of the prologue: masks) count where one attention reads them: one of many layers is no layer's.
    """
    mine = set(fusing)
    readers = Counter(storage_of(value) for node in fusing for value in _kept_fused(node, facts))
    taken = {storage for storage in apart if readers[storage] != 1}
    taken |= {kept.storage for node, fact in facts.items() if node not in mine for kept in fact.kept}
    found: dict[fx.Node, int] = {}
    for node in fusing:
        out = facts[node].results[0]
        if not out.requires_grad:
            continue
        total = 4 * out.numel() // out.shape[-1] + _numbers_of_mask(node, facts)
        for value in _kept_fused(node, facts):
            if storage_of(value) not in taken:
                taken.add(storage_of(value))
                total += value.untyped_storage().nbytes()
        found[node] = total
    return found


def _numbers_of_mask(node: fx.Node, facts: Facts) -> int:
    """Bytes of the numbers that attention makes of a mask of booleans, which its kernels take (torch's
    `convert_boolean_attn_mask`)."""
    masks = (facts[argument].results[0] for argument in _tensor_inputs(node)[:4] if _is_attention(node))
    return sum(mask.numel() * facts[node].results[0].element_size() for mask in masks if mask.dtype == torch.bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbers:
    work: Work
    read: int = 0
    written: int = 0
    backward_read: int = 0
    backward_written: int = 0


def _numbers(node: fx.Node, facts: Facts) -> _Numbers:
    fact = facts[node]
    rule = rule_for(target_name(node))
    work = Work() if rule is None else rule(_call(node, facts))
    if _is_alias(node, facts):
        return _Numbers(work=work)
    inputs = _tensor_inputs(node)
    written = sum(_bytes(result) for result in fact.results)
    read = sum(_bytes(result) for argument in inputs for result in facts[argument].results)
    if kind_of(target_name(node)) == "gather" and inputs:
        # A table is read where it is indexed, not whole.
        table = sum(_bytes(result) for result in facts[inputs[0]].results)
        read += written - table
    if not any(result.requires_grad for result in fact.results):
        return _Numbers(work=work, read=read, written=written)
    kept = {one.storage: one.bytes for one in fact.kept}
    wanted = [result for argument in inputs for result in facts[argument].results if result.requires_grad]
    return _Numbers(
        work=work,
        read=read,
        written=written,
        backward_read=written + sum(kept.values()),
        backward_written=sum(_bytes(result) for result in wanted),
    )


def _is_alias(node: fx.Node, facts: Facts) -> bool:
    """Whether the call only gives another view of what it was given."""
    if is_mutable(node) or not facts[node].results:
        return False
    given = {storage_of(result) for argument in node.all_input_nodes for result in facts[argument].results}
    return all(storage_of(result) in given for result in facts[node].results)


def _kind(node: fx.Node, kind: OpKind, facts: Facts) -> OpKind:
    if kind in ("view", "pointwise"):
        return "view" if _is_alias(node, facts) else "pointwise"
    return kind


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _products(
    first: tuple[MatrixProduct, ...], second: tuple[MatrixProduct, ...], samples: Samples
) -> tuple[Product, ...]:
    return tuple(
        Product(
            batch=samples.affine(a.batch, b.batch),
            m=samples.affine(a.m, b.m),
            n=samples.affine(a.n, b.n),
            k=samples.affine(a.k, b.k),
        )
        for a, b in zip(first, second, strict=True)
    )


def _call(node: fx.Node, facts: Facts) -> Call:
    return Call(
        target=target_name(node),
        arguments=tuple(_argument(argument, facts) for argument in node.args),
        keywords=tuple((name, _argument(argument, facts)) for name, argument in node.kwargs.items()),
        outputs=tuple(_value(result) for result in facts[node].results),
    )


def _argument(argument: object, facts: Facts) -> Argument:
    if isinstance(argument, fx.Node):
        value = facts[argument].value
        return _value(value) if isinstance(value, torch.Tensor) else value if isinstance(value, int) else None
    if isinstance(argument, (list, tuple)):
        return tuple(_argument(part, facts) for part in argument)
    return argument if isinstance(argument, (int, float, bool, str)) else None


def _value(tensor: torch.Tensor) -> Value:
    return Value(tuple(tensor.shape), tensor.element_size(), tensor.requires_grad)


def _tags(node: fx.Node) -> frozenset[str]:
    if not isinstance(node.target, torch._ops.OpOverload):
        return frozenset()
    tags = {str(tag).rpartition(".")[2] for tag in node.target.tags}
    if any(result.alias_info is not None and not result.alias_info.is_write for result in node.target._schema.returns):
        tags.add("view")
    return frozenset(tags)
