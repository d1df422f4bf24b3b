"""Which random ops of a captured graph no layout can repeat; what a step sums over a batch before it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import fx, nn
from torch.nn import functional
from torch.utils._pytree import tree_map_only

import placer
from eager_ranks import differences, on_one_device, trained
from examples.parity.cases import Case, plan_of
from execute_models import ROW_WIDTH
from placer.runtime.stages.batch_values import BatchValues
from placer.runtime.stages.captured_model import captured
from placer.runtime.stages.pass_context import PassContext
from placer.runtime.stages.piece_nodes import PieceNodes
from placer.runtime.stages.rewrite import filled_in_turn, rewrites
from pool import on_ranks

pytestmark = pytest.mark.in_turns


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


class Weighed(nn.Module):
    """Classes of unlike weights; labels are brought to the scores, as the models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("weight", torch.tensor([1.0, 2.0, 4.0]))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = self.layer(x)
        return functional.cross_entropy(scores, labels.to(scores.device), self.get_buffer("weight"))


def test_what_is_summed_over_a_batch_is_summed_on_the_host() -> None:
    """The graph of a rank on a GPU brings labels there, where the weights that count them are not."""
    model = Weighed()
    plan = placer.plan(model, "localx1", batch={"x": (4, 4), "labels": (4,)})
    cut = captured(plan, model).cut(plan, model)
    moved = 0
    for node in cut.module.graph.nodes:
        given = (node.args, node.kwargs)
        node.args, node.kwargs = tree_map_only(torch.device, lambda _: torch.device("cuda"), given)
        moved += given != (node.args, node.kwargs)
    assert moved
    batch = {"x": torch.zeros(4, 4), "labels": torch.tensor([0, 1, 2, 2])}
    found = BatchValues.of(cut, model.state_dict().__getitem__).sums(
        [(PassContext(rows=4, global_rows=4, training=True), batch)]
    )
    assert found.counts == (11.0,)


FILLING = Case(model="execute_models:filling", shapes=(("x", (8, ROW_WIDTH)),))
PREFERRING = Case(model="execute_models:preferring", shapes=(("chosen", (8, ROW_WIDTH)), ("rejected", (8, ROW_WIDTH))))


@pytest.mark.parametrize("case", [
    PREFERRING, replace(PREFERRING, replicas=2, shares=(1, 3), microbatches=(4, 3, 1)),
    replace(PREFERRING, positions=2, recompute=True),
    FILLING, replace(FILLING, replicas=2), replace(FILLING, replicas=2, shares=(1, 3), microbatches=(4, 3, 1)),
    replace(FILLING, positions=2, recompute=True),
], ids=str)  # fmt: skip
def test_rows_in_places_of_their_own_are_as_on_one_device(case: Case) -> None:
    plan = plan_of(case)
    expected = on_one_device(plan)
    for found in on_ranks(plan.world_size, trained, plan):
        assert differences(found, expected) == []


@pytest.mark.parametrize("places", [[[1, 0, 0], [1, 1, 1]], [[0, 1, 0], [1, 0, 0]], [[1, 1, 1], [1, 1, 0]]])
def test_places_that_numbers_of_other_rows_would_fill_are_refused(places: list[list[int]]) -> None:
    """Also where those of the piece are as many together: which pieces there are is not the model's to say."""
    values, mask, numbers = torch.zeros(2, 3), torch.tensor(places).bool(), torch.arange(4.0)
    with pytest.raises(RuntimeError, match="masked_scatter fills more or fewer places of a row"):
        filled_in_turn(values, mask, numbers, mode=PassContext(rows=2, global_rows=4, training=True))


@pytest.mark.parametrize("training", [True, False])
def test_a_whole_batch_fills_its_places_as_torch_does(training: bool) -> None:
    values, mask, numbers = torch.zeros(2, 3), torch.tensor([[1, 0, 0], [1, 1, 0]]).bool(), torch.arange(4.0)
    filled = filled_in_turn(values, mask, numbers, mode=PassContext(rows=2, global_rows=2, training=training))
    assert torch.equal(filled, values.masked_scatter(mask, numbers))
