"""What a model does between its repeated layers, which must be the same behind each, as `unfolding` repeats it.

Layers that are left out give what the second copy gave, so that what comes after them is made, read by nobody, and gone
once what is dead is dropped. Until then it can be compared: behind the second copy there must lie, for every copy that
was left out, what lies behind the first.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from placer.tracer.export.cleaning import Plain, within
from placer.tracer.export.folding import Repeat, UnfoldableError

_Text = tuple[str, str]


def require_even_gaps(plain: Plain, found: tuple[Repeat, ...]) -> None:
    """Raise UnfoldableError where a model does something else behind one of the copies of a run than behind others."""
    calls = [node for node in plain.graph.nodes if node.op == "call_function"]
    for repeat in found:
        first, second, last = (_span(calls, repeat, copy) for copy in (0, 1, repeat.count - 1))
        between = list(_texts(calls[first.stop : second.start]))
        within_copy = list(_texts(node for node in calls[first.start : first.stop] if not _inside(node, repeat, 0)))
        expected = between + (within_copy + between) * (repeat.count - 3)
        if list(_texts(calls[second.stop : last.start])) != expected:
            raise UnfoldableError("the model does something else behind some of the layers")


def _span(calls: list[fx.Node], repeat: Repeat, copy: int) -> range:
    """Positions from the first call of a copy to behind its last."""
    found = [index for index, node in enumerate(calls) if _inside(node, repeat, copy)]
    if not found:
        raise UnfoldableError("a layer does nothing")
    return range(found[0], found[-1] + 1)


def _inside(node: fx.Node, repeat: Repeat, copy: int) -> bool:
    return any(within(node.meta["module"], f"{repeat.path}.{child}") for child in repeat.children(copy))


def _texts(calls: list[fx.Node] | Iterator[fx.Node]) -> Iterator[_Text]:
    """Each call by its target and its arguments, tensors left out."""
    for node in calls:
        given = fx.map_arg((node.args, node.kwargs), lambda _: None)
        yield str(node.target), repr(given)
