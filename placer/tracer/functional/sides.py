"""A detached value shares its numbers with what it was detached from, and no gradient: each is a side of one memory.

    z = y.detach(); z[m] = w   ->   z is its new value, with the gradient of w; y has the numbers and none of it

Which side has a gradient by when is seen by playing the graph with gradients, as the module itself would run.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from placer.tracer.export.cleaning import Plain, target_name
from placer.tracer.export.unseen import UnseenError
from placer.tracer.functional.families import Family, dependent, written_tensor
from placer.tracer.functional.inverses import NoInverseError, Views
from placer.tracer.measure.meta_run import played


class Sides:
    """The sides of the families of a graph: of each node its origin or the last `detach` on the way from there."""

    def __init__(self, plain: Plain, inputs: dict[str, torch.Tensor], views: Views, chosen: list[Family]) -> None:
        self._views, self._origins = views, {family.origin for family in chosen}
        self._members = {member for family in chosen for member in family.members}
        with torch.enable_grad():
            self._trained = _trained(plain, inputs)
        self._learned: set[fx.Node] = set()
        self._torn: dict[fx.Node, fx.Node] = {}
        self._apart: set[fx.Node] = set()

    def of(self, node: fx.Node) -> fx.Node:
        """The side that a member lies on."""
        while node not in self._origins and target_name(node) != "aten::detach":
            node = written_tensor(node) or self._viewed(node)
        return node

    def _viewed(self, view: fx.Node) -> fx.Node:
        """The member that `view` is a view of, also where nothing could be put back (einsum)."""
        try:
            return self._views.viewed(view)
        except NoInverseError:
            given = tree_leaves((self._views.args[view], dict(self._views.kwargs[view])))
            member: fx.Node = next(one for one in given if one in self._members)
            return member

    def crossed(self, detached: fx.Node, viewed: fx.Node, write: fx.Node) -> bool:
        """A `write` into a detached member goes on to what it was detached from: whether its gradient stays behind."""
        if self._trained_by_now(viewed):  # whose gradient the numbers written are not of
            self._torn.setdefault(self.of(viewed), write)
        if write in self._trained:
            self._apart.add(detached)
        return detached in self._apart

    def tearing(self, node: fx.Node) -> fx.Node | None:
        """The write without a gradient into the other side of a member's memory, while the member's has one."""
        return self._torn.get(self.of(node))

    def is_apart(self, detached: fx.Node) -> bool:
        """Whether something was written with a gradient that what it was detached from has none of."""
        return detached in self._apart

    def note(self, write: fx.Node) -> None:
        """A write is done: its side may have a gradient from now on."""
        if write in self._trained:
            self._learned.add(self.of(write))

    def _trained_by_now(self, node: fx.Node) -> bool:
        side = self.of(node)
        return side in self._learned or side in self._trained


def _trained(plain: Plain, inputs: dict[str, torch.Tensor]) -> set[fx.Node]:
    """The nodes whose results have a gradient when they are made; where that cannot be played, all that may have."""
    try:
        return {node for node, fact in played(plain, inputs).items() if fact.trained}
    except UnseenError:
        return dependent(plain)
