"""Whether a graph that was captured in training gives in evaluation what the model does there.

A run evaluates the graph of training: dropout passes its values on, norms take running statistics, ops that are told
whether they train are told that they do not, buffers are read as they were found, paths that drop pass on what they
would drop (`functional.paths_that_drop`). Under that reading the graph is compared, from its results down, with one of
the same model in evaluation.

    h * 2 if self.training else h   ->   "in training aten::mul at model.py:7, in evaluation aten::linear at model.py:6"
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import fx

from placer.tracer.export.cleaning import Plain, arguments, short_name, told

aten = torch.ops.aten

# In evaluation the first argument itself; a value without its gradient is the same value.
_PASSED_ON = frozenset({
    "dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "detach", "alias", "alias_copy", "clone",
    "contiguous",
})  # fmt: skip
_NORMS = {"batch_norm": "training", "instance_norm": "use_input_stats"}
#: In the meta of a node: the place of the argument that it passes on in evaluation; that evaluation does not read it.
PASSES_ON = "passes_on"
IDLE = "idle"
# What has no say in evaluation.
_IDLE = frozenset({"train", "training", "dropout", "dropout_p", "momentum", "cudnn_enabled", "generator"})


def evaluation_difference(training: Plain, evaluation: Plain) -> str:
    """Where two graphs of a model, at the same rows and without writes in place, part in evaluation; "" if nowhere."""
    numbers: dict[Hashable, int] = {}
    trained, evaluated = _Read(training, numbers), _Read(evaluation, numbers, as_written=True)
    one, other = (list(plain.graph.output_node().all_input_nodes) for plain in (training, evaluation))
    if len(one) != len(other):
        return f"forward gives {len(one)} results in training, {len(other)} in evaluation"
    for made, wanted in zip(one, other, strict=True):
        if trained.number(made) != evaluated.number(wanted):
            first, second = _parting(trained, evaluated, made, wanted)
            return f"in training the model computes {told(first)}, in evaluation {told(second)} in its place"
    return ""


class _Read:
    """A graph as it is read in evaluation: what computes the same value has the same number.

    as_written: what it tells ops of training is so, as in a graph of evaluation: there it is what the author keeps on.
    """

    def __init__(self, plain: Plain, numbers: dict[Hashable, int], *, as_written: bool = False) -> None:
        self._state, self._numbers, self._as_written = plain.state, numbers, as_written
        self._known: dict[fx.Node, int] = {}
        self._found = _found_buffers(plain.graph)
        for node in plain.graph.nodes:
            if node.op != "output":
                self._known[node] = self._numbered(node)

    def number(self, node: fx.Node) -> int:
        """The number of what a node computes."""
        return self._known[node]

    def source(self, node: fx.Node) -> fx.Node:
        """The node whose value `node` has in evaluation."""
        while (passed := self._passed_on(node)) is not None:
            node = passed
        return node

    def _passed_on(self, node: fx.Node) -> fx.Node | None:
        if node in self._found:
            return self._found[node]
        passes = short_name(node) in _PASSED_ON and not self._kept_on(node)
        place = node.meta.get(PASSES_ON, 0 if passes else None)
        first = None if place is None else node.args[place]
        return first if isinstance(first, fx.Node) else None

    def _numbered(self, node: fx.Node) -> int:
        passed = self._passed_on(node)
        if passed is not None:
            return self._known[passed]
        return self._numbers.setdefault(self._key(node), len(self._numbers))

    def _key(self, node: fx.Node) -> Hashable:
        if node.op == "get_attr":
            return _tensor_key(str(node.target), self._state[str(node.target)])
        if node.op == "placeholder":
            return ("input", str(node.target))
        kept_on = ("kept on",) if self._kept_on(node) else ()
        return (str(node.target), *kept_on, *(self._argument(value) for value in _arguments(node)))

    def _kept_on(self, node: fx.Node) -> bool:
        return self._as_written and _trains(node)

    def _argument(self, value: object) -> Hashable:
        if isinstance(value, fx.Node):
            return ("value", self._known[value])
        if isinstance(value, list | tuple):
            return tuple(self._argument(one) for one in value)
        return repr(value)


def _found_buffers(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """What is read of a buffer that forward writes in training only -> the buffer."""
    found: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.target is not aten.copy_.default:
            continue
        buffer, value = node.args[:2]
        is_commit = isinstance(buffer, fx.Node) and buffer.op == "get_attr"
        if is_commit and isinstance(value, fx.Node) and value.target is aten.alias_copy.default:
            found[value] = buffer
    return found


def _trains(node: fx.Node) -> bool:
    """Whether a call is told to do what only training does: to drop, to draw, to take the statistics of the batch."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    given = arguments(node)
    statistics = _NORMS.get(short_name(node))
    if statistics is not None:
        return bool(given[statistics]) and given["running_mean"] is not None
    share = next((given[name] for name in ("p", "dropout", "dropout_p") if name in given), None)
    trains = next((given[name] for name in ("train", "training") if name in given), "dropout_p" in given)
    return bool(trains) and bool(share != 0)


def _arguments(node: fx.Node) -> list[object]:
    """The arguments of a call that have a say in evaluation, in the order of its schema."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return [*node.args, *sorted(node.kwargs.items())]
    given = arguments(node)
    statistics = _NORMS.get(short_name(node))
    if statistics is not None:
        given[statistics] = given["running_mean"] is None
    return [value for name, value in given.items() if name not in _IDLE or name == statistics]


def _tensor_key(name: str, tensor: torch.Tensor) -> Hashable:
    """Constants are numbered anew in every graph: they are known by what they hold."""
    if not name.startswith("constant_"):
        return ("tensor", name)
    held = "" if tensor.is_meta else str(tensor.tolist())
    return ("constant", str(tensor.dtype), tuple(tensor.shape), held)


def _parting(one: _Read, other: _Read, made: fx.Node, wanted: fx.Node) -> tuple[fx.Node, fx.Node]:
    """The first nodes, from the results down, of which all that they read is the same, or that are other ops."""
    while True:
        made, wanted = one.source(made), other.source(wanted)
        mine, theirs = made.all_input_nodes, wanted.all_input_nodes
        if made.target != wanted.target or len(mine) != len(theirs):
            return made, wanted
        pairs = zip(mine, theirs, strict=True)
        apart = next(((a, b) for a, b in pairs if one.number(a) != other.number(b)), None)
        if apart is None:
            return made, wanted
        made, wanted = apart
