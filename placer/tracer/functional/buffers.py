"""Buffers that forward writes: read as the step found them, written once, by one call each, their *commit*.

    self.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)   ->   mul, add; copy_(mean, add), whoever reads mean later reads add

The runtime makes commits at the end of a step, once, however many microbatches and replicas there are, which is what
one device does where what is written does not depend on the rows. Where it does, the batch must stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import fx

from placer.errors import UncapturableError
from placer.tracer.export.cleaning import is_keyed, is_random, target_name
from placer.tracer.functional.families import Family, written_tensor
from placer.tracer.functional.out_of_place import has_form

aten = torch.ops.aten

# No layout cuts it: in evaluation it is the whole buffer as it was found.
_READ = aten.alias_copy.default


@dataclass(frozen=True, slots=True, kw_only=True)
class RowUpdate:
    """A buffer that is written from the rows at hand, by which op at which line."""

    buffer: str
    op: str
    source: str


def is_last_word(family: Family, order: dict[fx.Node, int]) -> bool:
    """Whether the only write into a buffer is in place, into all of it, and nobody reads it afterwards: a commit.

    Raises UncapturableError for one that cannot be put off to the end of the step.
    """
    write, *others = family.writes
    if others or written_tensor(write) is not family.origin or write.users or "out" in write.kwargs:
        return False
    if any(order[user] > order[write] for member in family.members for user in member.users):
        return False
    if not has_form(write):
        raise UncapturableError(
            f"{target_name(write)} at {write.meta.get('source', '')} writes into the buffer {family.origin.target} and "
            "has no out-of-place form; write it as buffer.copy_(value)"
        )
    return True


def committed(graph: fx.Graph, buffer: fx.Node, value: fx.Node) -> tuple[fx.Node, fx.Node]:
    """What readers of the buffer read from now on, a copy of `value`, and its commit."""
    read = graph.call_function(_READ, (value,))
    return read, graph.call_function(aten.copy_.default, (buffer, read))


def commits(graph: fx.Graph) -> Iterator[fx.Node]:
    """The commits of a graph."""
    for node in graph.nodes:
        target = written_tensor(node)
        if target is not None and target.op == "get_attr":
            yield node


def settle_evaluation(graph: fx.Graph, in_evaluation: Callable[[], frozenset[str]]) -> None:
    """Leave the copies that `committed` made for those buffers which readers find as they were in evaluation, where
    forward does not write them. in_evaluation: the buffers that it writes there too; made only if needed.

    Raises UncapturableError for one that is assigned anew in training only, whose readers cannot be told from those of
    the value that it was given.
    """
    known: list[frozenset[str]] = []
    for commit in list(commits(graph)):
        value = _copied(commit)
        source = None if value is None or not value.args else value.args[0]
        if value is None or not isinstance(source, fx.Node) or not (_is_assigned(commit) or value.target is _READ):
            continue
        readers = source.users if _is_assigned(commit) else value.users
        if len(readers) > 1:
            known = known or [in_evaluation()]
        stays = len(readers) > 1 and str(_buffer(commit).target) not in known[0]
        if stays and _is_assigned(commit):
            raise UncapturableError(
                f"the buffer {_buffer(commit).target} is assigned anew at {source.meta.get('source', '')} in training "
                "only, and placer cannot tell who reads it; write into it with copy_"
            )
        if not stays and value.target is _READ:
            value.replace_all_uses_with(source)
            graph.erase_node(value)


def beside_their_values(graph: fx.Graph) -> None:
    """Put the commit of a buffer that forward assigned anew, which comes last, where its value is made."""
    order = {node: index for index, node in enumerate(graph.nodes)}
    for commit in list(commits(graph)):
        value = _copied(commit)
        source = value.args[0] if value is not None and value.args else None
        if not _is_assigned(commit) or value is None or not isinstance(source, fx.Node) or source.op != "call_function":
            continue
        if all(order[user] <= order[source] for user in _buffer(commit).users if user is not commit):
            source.append(value)
            value.append(commit)
            for moved in (value, commit):
                moved.meta = dict(source.meta)


def _is_assigned(commit: fx.Node) -> bool:
    """Whether a commit stands for an assignment to the buffer's name (`export.state.module_state`)."""
    value = _copied(commit)
    return bool(commit.meta.get("around")) and value is not None and value.target is aten.detach.default


def _buffer(commit: fx.Node) -> fx.Node:
    buffer = commit.args[0]
    assert isinstance(buffer, fx.Node)
    return buffer


def _copied(commit: fx.Node) -> fx.Node | None:
    """What a commit copies; None where it computes what it writes itself."""
    value = commit.args[1] if commit.target is aten.copy_.default else None
    return value if isinstance(value, fx.Node) else None


def row_updates(graph: fx.Graph, batched: Iterable[str]) -> list[RowUpdate]:
    """The buffers whose commit depends on inputs `batched` (or on chance, but for what every piece draws alike)."""
    names, found = frozenset(batched), set[fx.Node]()
    for node in graph.nodes:
        own = node.op == "placeholder" and node.target in names
        # The number of rows counts too: a size is computed only where it grows with them.
        by_chance = is_random(node) and not is_keyed(node)
        if own or by_chance or any(argument in found for argument in node.all_input_nodes):
            found.add(node)
    return [
        RowUpdate(buffer=str(target.target), op=target_name(node), source=str(node.meta.get("source", "")))
        for node in commits(graph)
        if node in found and (target := written_tensor(node)) is not None
    ]
