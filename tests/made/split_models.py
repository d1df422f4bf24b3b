"""A traced model in which every op is done by simulated ranks, each op along its own random choice.

A value is one tensor, or the ranks' own tensors where its layout is their own. What a rank reads is taken out of the
value by differentiable slices and shares, and what ranks made is put together again, so gradients follow the layouts.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import fx, nn
from torch.utils import _pytree

from local_runs import run_local
from placer import tracer
from placer.rules import Call
from placer.rules.layouts import PARTIAL, Choice, Cut, Lay, is_own
from placer.rules.splits import divided, in_parts, legal, localise, own_choices, split_choices
from split_ranks import Case, parted, put_together, thread_axes, windows

T = TypeVar("T")

# How far summands are from equal shares: far above the tolerance, yet small, since some models sum in float32.
NOISE = 1e-2
# What is looked up for rows in a rank's own order.
TABLE = "of own rows"


@dataclass(frozen=True, slots=True)
class Own:
    """A value of which every rank has its own."""

    parts: tuple[torch.Tensor, ...]
    lay: Lay

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole."""
        first = self.parts[0]
        if isinstance(self.lay, Cut):
            return (sum(len(part) for part in self.parts), *first.shape[1:])
        return tuple(first.shape)


@dataclass(slots=True)
class CutRun:
    """Runs a graph module with every op cut `degree` times; `taken` counts the choices by op and name."""

    module: fx.GraphModule
    degree: int
    seed: int
    taken: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._generator = torch.Generator().manual_seed(self.seed)

    _random: random.Random = field(init=False)
    _generator: torch.Generator = field(init=False)

    def run(self, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The results of the graph."""
        known: dict[fx.Node, object] = {}
        given = iter(inputs)
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                known[node] = next(given)
            elif node.op == "get_attr":
                known[node] = _attribute(self.module, str(node.target))
            elif node.op == "output":
                return tuple(_whole(known[result]) for result in node.all_input_nodes)
            else:
                known[node] = self._call(node, known)
        raise AssertionError("the graph has no output")

    def _call(self, node: fx.Node, known: dict[fx.Node, object]) -> object:
        def read(one: object) -> object:
            return known[one] if isinstance(one, fx.Node) else one

        args: tuple[object, ...] = _mapped(node.args, read)
        kwargs: dict[str, object] = _mapped(dict(node.kwargs), read)
        leaves = _pytree.tree_leaves((args, kwargs), is_leaf=lambda one: isinstance(one, Own))
        values = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor | Own)]
        assert callable(node.target)
        op = tracer.STANDS_FOR.get(node.target, node.target)
        if not isinstance(op, torch._ops.OpOverload) or not values or node.meta.get("size"):
            return node.target(*args, **kwargs)
        return self._cut(op, node.target, args, kwargs, values)

    def _cut(
        self,
        function: torch._ops.OpOverload,
        runs: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        values: list[torch.Tensor | Own],
    ) -> object:
        stand_ins = _filled(args, iter(map(_stand_in, values)))
        whole = Case(function=runs, args=stand_ins, kwargs=kwargs, target=function._schema.name)
        call = whole.call
        choice = self._choice(call, values)
        self.taken[call.target, choice.name] += 1
        pieces = [self._pieces(call, choice, number, value) for number, value in enumerate(values)]
        axes = thread_axes(self.degree)
        made = []
        for rank in range(self.degree):
            mine = iter([one[rank] for one in pieces])
            local = localise(call, choice, self.degree, rank)
            out = run_local(local, runs, _filled(args, mine), _filled(kwargs, mine), axes[rank])
            made.append(out if isinstance(out, tuple | list) else (out,))
        results = [
            self._put([parts[number] for parts in made], state.value) for number, state in enumerate(choice.outputs)
        ]
        return results[0] if not _several(function) else results

    def _choice(self, call: Call, values: list[torch.Tensor | Own]) -> Choice:
        plain = split_choices(call)
        parts = (in_parts(call, one, count) for one in plain for count in (2, 3))
        # Numbers of own rows and of experts look alike: `own_orders` tells them apart, here whose they are does.
        table = isinstance(values[0], nn.Parameter)
        own_ways = [one for one in own_choices(call) if call.target != "aten::index" or (one.name == TABLE) == table]
        special = (*own_ways, *divided(call), *(one for one in parts if one is not None))
        every = [one for one in (*plain, *special) if legal(one, call, self.degree)]
        fit = [one for one in every if not one.inner and _fits(one, values)]
        own = [one for one in fit if any(is_own(state.value) for state in one.outputs)]
        cutting = [one for one in fit if one.name not in ("whole", "deferred")]
        # Sorted rows only make sense along with their own order, which is why it is taken wherever there is one.
        chosen = own if own and call.target == "aten::sort" and self._random.random() < 0.7 else cutting
        if not fit:
            raise AssertionError(f"{call.target} {call.arguments} has no choice for {[_lay(one) for one in values]}")
        return self._random.choice(chosen if chosen and self._random.random() < 0.9 else fit)

    def _pieces(self, call: Call, choice: Choice, number: int, value: torch.Tensor | Own) -> list[torch.Tensor]:
        if isinstance(value, Own):
            return list(value.parts)
        halo = choice.halo[number] if choice.halo else None
        if halo is not None:
            return [
                value.narrow(halo.dim, low, high - low).clone()
                for low, high in windows(call, choice, number, self.degree)
            ]
        lay = choice.inputs[number].value
        if lay is PARTIAL and value.is_floating_point():
            noise = parted(torch.zeros_like(value), lay, self.degree, self._generator)
            return [value / self.degree + one * NOISE for one in noise]
        return [one.clone() for one in parted(value, lay, self.degree, self._generator)]

    def _put(self, parts: list[torch.Tensor], lay: Lay) -> torch.Tensor | Own:
        if is_own(lay):
            return Own(tuple(parts), lay)
        if isinstance(lay, Cut):
            return put_together(parts, lay)[0]
        return torch.stack(parts).sum(0).to(parts[0].dtype) if lay is PARTIAL else parts[0]


def _lay(value: torch.Tensor | Own) -> str:
    return str(value.lay) if isinstance(value, Own) else "-"


def _fits(choice: Choice, values: list[torch.Tensor | Own]) -> bool:
    for state, value in zip(choice.inputs, values, strict=True):
        if (state.value != value.lay) if isinstance(value, Own) else is_own(state.value):
            return False
        if state.value is PARTIAL and isinstance(value, torch.Tensor) and value.dtype == torch.bool:
            return False
    return True


def _stand_in(value: torch.Tensor | Own) -> torch.Tensor:
    """A tensor of the whole's shape, for the call alone."""
    if isinstance(value, torch.Tensor):
        return value
    return torch.zeros(value.shape, dtype=value.parts[0].dtype, requires_grad=value.parts[0].requires_grad)


def _filled(tree: T, values: Iterator[torch.Tensor]) -> T:
    return _mapped(tree, lambda one: next(values) if isinstance(one, torch.Tensor | Own) else one)


def _mapped(tree: T, change: Callable[[object], object]) -> T:
    made: T = _pytree.tree_map(change, tree, is_leaf=lambda one: isinstance(one, Own | fx.Node))
    return made


def _several(function: torch._ops.OpOverload) -> bool:
    returns = function._schema.returns
    return len(returns) > 1 or "[]" in str(returns[0].type) or "List" in str(returns[0].type)


def _whole(value: object) -> torch.Tensor:
    assert isinstance(value, torch.Tensor), "a result in an order of the ranks' own"
    return value


def _attribute(module: fx.GraphModule, target: str) -> object:
    found: object = module
    for part in target.split("."):
        found = getattr(found, part)
    return found
