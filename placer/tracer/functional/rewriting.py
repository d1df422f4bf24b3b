"""From a plain graph that writes in place to one that only computes values.

    h[:, :4] *= 2   ->   part = slice(h); h2 = slice_scatter(h, part * 2), and whoever reads h or a view of it later
                         reads h2, or the same view of h2

It is what torch's functionalization does (`torch.func.functionalize`), done on the graph, so that composite ops, names
and source lines stay. Left as they are: chains that write a whole value which is read through the result alone (`relu_`
after a convolution), since these compute a value already. A buffer that forward writes is read as the step found it,
and written once, by one call at the end (`buffers`). What cannot be written so is refused with its line.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx, nn
from torch.fx.node import Argument

from placer.errors import CaptureError, UncapturableError
from placer.tracer.export.cleaning import Plain, drop_dead, target_name
from placer.tracer.functional.buffers import beside_their_values, committed, is_last_word, settle_evaluation
from placer.tracer.functional.families import Family, dependent, families, is_chain, written_tensor
from placer.tracer.functional.inverses import NoInverseError, Views, put_back
from placer.tracer.functional.out_of_place import changes_type, has_form, is_filled, short, written
from placer.tracer.functional.sides import Sides
from placer.tracer.functional.turned_in_place import turn_out_of_place
from placer.tracer.measure.meta_run import Played, played

aten = torch.ops.aten

_ZEROS = {
    "empty": aten.zeros.default, "empty_like": aten.zeros_like.default, "new_empty": aten.new_zeros.default,
}  # fmt: skip


def functional(
    plain: Plain, inputs: dict[str, torch.Tensor], buffers: frozenset[str], evaluated: Callable[[], Plain]
) -> Plain:
    """`plain` without writes that others see. inputs: a batch on meta; buffers: the names of the model's own.
    evaluated: makes the plain graph of the same model in evaluation.

    Raises UncapturableError naming the op and its line for a write that has no such form.
    """
    turn_out_of_place(plain)
    drop_dead(plain.graph)  # what nobody reads may have sizes that no meta tensor has
    if any(written_tensor(node) is not None for node in plain.graph.nodes):
        with torch.no_grad():
            facts = played(plain, inputs)
        order = {node: index for index, node in enumerate(plain.graph.nodes)}
        trained = dependent(plain)
        chosen = [family for family in families(plain, facts) if _must_change(family, plain, buffers, trained, order)]
        if chosen:
            _Rewriter(plain, facts, chosen, inputs).rewrite()
        settle_evaluation(plain.graph, lambda: _written_in(evaluated, inputs, buffers))
        beside_their_values(plain.graph)
    drop_dead(plain.graph)
    return plain


def _written_in(
    evaluated: Callable[[], Plain], inputs: dict[str, torch.Tensor], buffers: frozenset[str]
) -> frozenset[str]:
    """The buffers that are written in evaluation; where that has no graph, and is refused, it does not matter which."""
    try:
        plain = evaluated()
    except CaptureError:
        return buffers
    turn_out_of_place(plain)
    with torch.no_grad():
        found = families(plain, played(plain, inputs))
    return frozenset(str(family.origin.target) for family in found if family.origin.op == "get_attr")


def _must_change(
    family: Family, plain: Plain, buffers: frozenset[str], trained: set[fx.Node], order: dict[fx.Node, int]
) -> bool:
    """Whether a family is to be written as values. Raises UncapturableError for one that must not be written into."""
    origin, first = family.origin, family.writes[0]
    if origin.op == "get_attr":
        name = str(origin.target)
        if isinstance(plain.state[name], nn.Parameter):
            raise _refused(first, f"writes into the parameter {name}, which only the optimizer may", "keep it apart")
        if name not in buffers:
            raise _refused(
                first, "writes into a tensor that the model keeps outside of its state", "register it as a buffer"
            )
        return not is_last_word(family, order)
    if (
        origin.op == "placeholder"
        or not is_chain(family, order)
        or any("out" in one.kwargs or is_filled(one) for one in family.writes)
    ):
        return True
    # As values where that is known of all, so that what shows in the edges is all that a value depends on.
    return not any(write in trained for write in family.writes) and all(map(has_form, family.writes))


class _Rewriter:
    """Rewrites the writes of some families in one pass over the graph, in order."""

    def __init__(
        self, plain: Plain, facts: dict[fx.Node, Played], chosen: list[Family], inputs: dict[str, torch.Tensor]
    ) -> None:
        self._graph, self._plain = plain.graph, plain
        self._views = Views(
            {node: node.args for node in facts}, {node: node.kwargs for node in facts},
            {node: fact.results for node, fact in facts.items()},
        )  # fmt: skip
        self._values = {node: fact.value for node, fact in facts.items()}
        self._families: dict[fx.Node, list[Family]] = {}
        for family in chosen:
            for member in family.members:
                self._families.setdefault(member, []).append(family)
        self._writes = {write: family for family in chosen for write in family.writes}
        self._current = {family: family.origin for family in chosen}
        self._version = dict.fromkeys(chosen, 0)
        self._made: dict[fx.Node, tuple[tuple[int, ...], fx.Node]] = {}
        self._source = next(iter(plain.graph.nodes))
        self._sides = Sides(plain, inputs, self._views, chosen) if self._detaches() else None

    def rewrite(self) -> None:
        """Do it."""
        for node in list(self._graph.nodes):
            self._source = node
            with self._graph.inserting_before(node):
                if node in self._writes:
                    self._write(node)
                    if self._sides is not None:
                        self._sides.note(node)
                    continue
                node.args = fx.map_arg(node.args, self._read)
                node.kwargs = fx.map_arg(node.kwargs, self._read)
            if node in self._families:
                self._made[node] = (self._stamp(node), node)
        for node in reversed(list(self._graph.nodes)):
            if node in self._writes:
                self._graph.erase_node(node)

    def _write(self, node: fx.Node) -> None:
        """Compute what `node` writes and put it where later readers find it."""
        family, target = self._writes[node], written_tensor(node)
        assert target is not None
        if family.origin.op == "call_function" and self._version[family] == 0:
            _begin_with_zeros(family.origin)
        if not has_form(node):
            raise _refused(node, "writes into a value that is read otherwise later", "use an out-of-place form")
        if not self._writes_itself(node, target):
            view = self._read(target)
            args, kwargs = fx.map_arg(node.args, self._read), fx.map_arg(node.kwargs, self._read)
            made = self._mark(written(self._graph, node, view, args, kwargs))
            if changes_type(node, self._values):
                made = self._mark(self._graph.call_function(aten.type_as.default, (made, view)))
            self._put(target, made)
        if node is family.writes[-1] and family.origin.op == "get_attr":
            self._current[family], commit = committed(self._graph, family.origin, self._current[family])
            self._mark(commit)

    def _detaches(self) -> bool:
        """Whether a family has sides."""
        return any(target_name(member) == "aten::detach" for member in self._families)

    def _writes_itself(self, node: fx.Node, target: fx.Node) -> bool:
        """Whether a part is copied to where it lies already: `h[:, :4] *= 2` ends so."""
        source = node.args[1] if short(node) == "copy_" else None
        if not isinstance(source, fx.Node) or self._families.get(source) != self._families.get(target):
            return False
        one, other = self._views.tensors[source][0], self._views.tensors[target][0]
        same = (one.storage_offset(), one.shape, one.stride(), one.dtype)
        return same == (other.storage_offset(), other.shape, other.stride(), other.dtype)

    def _put(self, target: fx.Node, value: fx.Node) -> None:
        """`target`, a member, is `value` from now on, and all that it is a view of is so too."""
        while target in self._writes:
            found = written_tensor(target)
            assert found is not None
            target = found
        family = self._families[target][0]
        if target is family.origin:
            self._current[family] = value
            self._version[family] += 1
            return
        viewed, own = self._viewed(target), value
        sides = self._sides if target_name(target) == "aten::detach" else None
        if sides is not None and sides.crossed(target, viewed, self._source):
            value = self._mark(self._graph.call_function(aten.detach.default, (value,)))
        try:
            self._put(viewed, self._mark(put_back(self._graph, target, self._value(viewed), value, self._views)))
        except NoInverseError as error:
            raise _refused(
                self._source, f"writes through {error}, which placer cannot follow", "write into a slice or a copy"
            ) from error
        if sides is not None:
            self._made[target] = (self._stamp(target), own)

    def _viewed(self, view: fx.Node) -> fx.Node:
        """The member that `view` is a view of; for a piece of a split, what was split."""
        viewed = self._views.viewed(view)
        if viewed not in self._families:
            raise _refused(self._source, f"writes through {target_name(view)}", "write into a copy (.clone())")
        return viewed

    def _read(self, node: fx.Node) -> fx.Node:
        """What stands for `node` where it is read, with its gradient."""
        write = self._sides.tearing(node) if self._sides is not None and node in self._families else None
        if write is not None:
            raise _refused(write, "writes without a gradient into a value that has one", "write into a copy (.clone())")
        return self._value(node)

    def _value(self, node: fx.Node) -> fx.Node:
        """What stands for `node` where the pass is now."""
        if node not in self._families:
            return node
        if node in self._writes:
            target = written_tensor(node)
            assert target is not None
            return self._value(target)
        family = self._families[node][0]
        if node is family.origin:
            return self._current[family]
        stamp, made = self._made[node]
        if stamp != self._stamp(node):
            if self._sides is not None and self._sides.is_apart(node):
                raise _refused(
                    self._source,
                    "reads what was detached, written with a gradient, and then written apart from that",
                    "detach a copy (.clone())",
                )
            made = self._again(node)
            self._made[node] = (self._stamp(node), made)
        return made

    def _again(self, view: fx.Node) -> fx.Node:
        """The same view of what its family is now."""
        target = aten.reshape.default if view.target is aten.view.default else view.target
        args: tuple[Argument, ...] = fx.map_arg(self._views.args[view], self._value)
        kwargs = fx.map_arg(self._views.kwargs[view], self._value)
        return self._mark(self._graph.call_function(target, args, kwargs))  # type: ignore[arg-type]

    def _stamp(self, node: fx.Node) -> tuple[int, ...]:
        return tuple(self._version[family] for family in self._families[node])

    def _mark(self, made: fx.Node) -> fx.Node:
        """Nodes made here belong where the node at hand belongs."""
        at = made
        while at.op == "call_function" and "module" not in at.meta:
            at.meta.update({key: self._source.meta.get(key, default) for key, default in _PLACE.items()})
            at = at.prev
        return made


_PLACE: dict[str, object] = {"module": "", "source": "", "calls": {}}


def _begin_with_zeros(origin: fx.Node) -> None:
    """What is filled piece by piece is zero where no piece was put: memory that nobody wrote is never read."""
    zeros = _ZEROS.get(short(origin))
    if zeros is not None:
        origin.target = zeros
        origin.kwargs = {name: value for name, value in origin.kwargs.items() if name != "memory_format"}


def _refused(node: fx.Node, what: str, instead: str) -> UncapturableError:
    place = node.meta.get("source") or "a line that is not known"
    return UncapturableError(f"{target_name(node)} at {place} {what}; {instead}")
