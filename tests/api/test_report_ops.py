"""Ops that no rule knows are listed with what to do, and are gone from the list once somebody registers a rule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from rich.console import Group
from torch import nn

from graphs import gpt_graph
from placer.graph import Graph
from placer.report.ops import ops_document, ops_view, unknown_ops
from placer.report.printing import plain
from placer.rules import Call, Work, gradients, register, unregister
from placer.tracer import capture

WIDTH = 8


@torch.library.custom_op("placertest::mix", mutates_args=())
def mix(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A product nobody knows."""
    return x @ w


@mix.register_fake
def _(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w


def _backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x, w = ctx.saved_tensors  # type: ignore[attr-defined]
    return grad @ w.T, x.T @ grad


mix.register_autograd(_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


class Mixer(nn.Module):
    """A custom operator between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(mix(self.first(x), self.weight))
        return nn.functional.mse_loss(y, torch.zeros_like(y))


def rule(call: Call) -> Work:
    x, w = call.tensor(0), call.tensor(1)
    return gradients(x, w, batch=1, m=x.elements // x.shape[-1], n=w.shape[1], k=w.shape[0])


def captured() -> Graph:
    return capture(Mixer(), batch={"x": (4, WIDTH)})


@pytest.fixture
def registered() -> Iterator[None]:
    register("placertest::mix", rule, kind="matmul")
    yield
    unregister("placertest::mix")


def test_an_op_nobody_knows_is_named_with_its_line_and_what_to_do() -> None:
    (line,) = unknown_ops(captured())
    assert "placertest.mix.default has no FLOP rule (1 of them, first at " in line
    assert "test_report_ops.py" in line
    assert "placer.rules.register" in line


def test_three_lines_give_it_a_rule(registered: None) -> None:
    graph = captured()
    assert unknown_ops(graph) == ()
    assert graph.forward_flops == 3 * 2 * 4 * WIDTH * WIDTH


def test_the_lists_name_what_has_no_split_rule_too() -> None:
    graph = captured()
    assert "placertest.mix.default" in plain(Group(*ops_view(graph)))
    document = ops_document(graph)
    for key in ("ops_without_flop_rule", "ops_without_split_rule"):
        found = document[key]
        assert isinstance(found, list)
        assert any(isinstance(one, dict) and one["op"] == "placertest.mix.default" for one in found)


def test_a_known_model_lists_nothing_without_a_flop_rule() -> None:
    assert "every op has a FLOP rule" in plain(Group(*ops_view(gpt_graph(layers=1))))
