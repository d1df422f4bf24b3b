"""Dropout that torch does within other ops, as ops of its own, whose masks are keyed by row like those of any other.

    lstm(x, (h, c), weights of 2 layers, dropout=0.1)   ->   y = lstm(x, (h[:1], c[:1]), weights of layer 0)
                                                             lstm(dropout(y, 0.1), (h[1:], c[1:]), weights of layer 1)
    feature_dropout(x, 0.1)                             ->   x * dropout(ones of (rows, channels, 1, 1), 0.1)

It is what torch computes (`aten/src/ATen/native/RNN.cpp`, `apply_layer_stack`; `Dropout.cpp`, `make_feature_noise`). Of
batches in dim 1 masks are made with rows in front. Packed sequences stay as they are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import fx
from torch.fx.node import Argument

from placer.tracer.export.cleaning import Plain, arguments
from placer.tracer.measure.meta_run import played

aten = torch.ops.aten

_OF_CHANNELS = {aten.feature_dropout.default: aten.mul.Tensor, aten.feature_dropout_.default: aten.mul_.Tensor}
_RECURRENT = frozenset({aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """A recurrent op: its first states, each of all layers, and its weights by layer."""

    node: fx.Node
    given: dict[str, Argument]
    states: tuple[fx.Node, ...]
    weights: tuple[tuple[Argument, ...], ...]

    @property
    def directions(self) -> int:
        """2 of an op that runs both ways."""
        return 2 if self.given["bidirectional"] else 1


def dropout_apart(plain: Plain, inputs: dict[str, torch.Tensor]) -> Plain:
    """`plain`, in which no op but dropout and attention drops anything of its own. inputs: a batch on meta."""
    nodes = [node for node in plain.graph.nodes if node.op == "call_function"]
    of_channels = [node for node in nodes if node.target in _OF_CHANNELS]
    if of_channels:
        with torch.no_grad():
            facts = played(plain, inputs)
        for node in of_channels:
            _channels_apart(node, tuple(facts[node].results[0].shape))
    for node in nodes:
        if node.target in _RECURRENT:
            given = arguments(node)
            if given["dropout"] and given["num_layers"] != 1:
                _divide(_layers(node, given))
    return plain


def _channels_apart(node: fx.Node, shape: tuple[int, ...]) -> None:
    """Put a product with ones, of which some are dropped, in place of what drops whole channels of `shape`."""
    values, chance, train = arguments(node).values()
    with node.graph.inserting_before(node):
        found = cast(fx.Node, values)
        if chance != 0.0:
            ones = _call(node, aten.new_ones.default, values, [*shape[:2], *(1 for _ in shape[2:])])
            kept = _call(node, aten.dropout.default, ones, chance, train)
            found = _call(node, _OF_CHANNELS[node.target], values, kept)  # type: ignore[index]  # it is one of them
    node.replace_all_uses_with(found)
    node.graph.erase_node(node)


def _call(like: fx.Node, target: Callable[..., object], *given: Argument) -> fx.Node:
    made = like.graph.call_function(target, given)
    made.meta.update(like.meta)
    return made


def _layers(node: fx.Node, given: dict[str, Argument]) -> _Layers:
    hidden, every = given["hx"], cast("tuple[Argument, ...]", given["params"])
    states = (hidden,) if isinstance(hidden, fx.Node) else tuple(cast("list[fx.Node]", hidden))
    count = cast(int, given["num_layers"])
    size = len(every) // count
    weights = tuple(tuple(every[size * layer : size * (layer + 1)]) for layer in range(count))
    return _Layers(node=node, given=given, states=states, weights=weights)


def _divide(whole: _Layers) -> None:
    """Put ops of one layer each in place of the whole."""
    node, graph = whole.node, whole.node.graph
    call = partial(_call, node)
    with graph.inserting_before(node):
        value, last = cast(fx.Node, whole.given["input"]), list[tuple[fx.Node, ...]]()
        for layer in range(len(whole.weights)):
            value = value if layer == 0 else _dropped(whole, value, call)
            made = call(cast("Callable[..., object]", node.target), *_of_layer(whole, layer, value, call))
            value, *states = (call(operator.getitem, made, index) for index in range(1 + len(whole.states)))
            last.append(tuple(states))
        for reader in list(node.users):
            index = cast(int, reader.args[1])
            found = value if index == 0 else call(aten.cat.default, [states[index - 1] for states in last], 0)
            reader.replace_all_uses_with(found)
            graph.erase_node(reader)
    graph.erase_node(node)


def _of_layer(whole: _Layers, layer: int, value: fx.Node, call: Callable[..., fx.Node]) -> tuple[Argument, ...]:
    """What the op of a layer takes."""
    first = layer * whole.directions
    states = [call(aten.slice.Tensor, state, 0, first, first + whole.directions) for state in whole.states]
    hidden: Argument = states if isinstance(whole.given["hx"], tuple | list) else states[0]
    own: dict[str, Argument] = {
        "input": value, "hx": hidden, "params": list(whole.weights[layer]), "num_layers": 1, "dropout": 0.0,
    }  # fmt: skip
    return tuple((whole.given | own).values())


def _dropped(whole: _Layers, value: fx.Node, call: Callable[..., fx.Node]) -> fx.Node:
    """What one layer gives to the next."""
    chance, train = whole.given["dropout"], whole.given["train"]
    if whole.given["batch_first"]:
        return call(aten.dropout.default, value, chance, train)
    rows_first = call(aten.transpose.int, value, 0, 1)
    return call(aten.transpose.int, call(aten.dropout.default, rows_first, chance, train), 0, 1)
