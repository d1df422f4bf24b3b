"""Which random ops of a captured graph no layout can repeat."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from placer.runtime.stages.piece_nodes import PieceNodes
from placer.runtime.stages.rewrite import rewrites


@pytest.mark.parametrize(("layers", "dropout", "train", "random"), [
    (2, 0.5, True, True), (2, 0.0, True, False), (2, 0.5, False, False), (1, 0.5, True, False),
])  # fmt: skip
def test_a_recurrent_op_draws_numbers_only_where_it_drops(
    layers: int, dropout: float, train: bool, random: bool
) -> None:
    model = nn.LSTM(4, 4, layers)
    graph = fx.Graph()
    values, state = graph.placeholder("values"), graph.placeholder("state")
    weights = [graph.placeholder(name.replace(".", "_")) for name, _ in model.named_parameters()]
    call = (values, [state, state], weights, True, layers, dropout, train, False, False)
    graph.output(graph.call_function(torch.ops.aten.lstm.input, call))
    assert bool(rewrites(graph, PieceNodes(), {}).unkeyed) == random
