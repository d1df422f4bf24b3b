"""Split rules on whole models: every op has one, and a model whose every op is cut at random gives the same result."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import fx

from examples.models import MODELS, example_batch
from placer.graph import Graph
from placer.rules import Call, block_choices, call_of, rule_for, tensor_arguments, unsplit
from placer.rules.layouts import PARTIAL, Choice, Cut, LocalOp, State
from placer.rules.splits import legal, localise
from placer.tracer import random_batch, trace
from placer.tracer.traced_model import Traced
from split_models import CutRun

pytestmark = pytest.mark.in_turns


@cache
def traced(name: str) -> Traced:
    torch.manual_seed(0)
    model = MODELS[name][1]().double()
    shapes = example_batch(model, 4)
    main = str(getattr(model, "main_input_name", "image"))
    return _lifted(trace(model, {name: _example(shape, whole=name != main) for name, shape in shapes.items()}))


def _lifted(found: Traced) -> Traced:
    """The same without the model's own casts to float32: what its cut pieces differ by is then of the cut, not of sums
    that are rounded in another order."""
    for node in found.module.graph.nodes:
        node.args = _wider(node.args)
        node.kwargs = _wider(node.kwargs)
    found.module.recompile()
    return found


def _wider(arguments: Any) -> Any:
    return fx.node.map_aggregate(arguments, lambda one: torch.float64 if one is torch.float32 else one)


def _example(shape: tuple[int, ...], *, whole: bool) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64) if whole or len(shape) == 2 else torch.zeros(shape).double()


def gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def step(found: Traced, results: tuple[torch.Tensor, ...]) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    floats = [one for one in results if one.is_floating_point()]
    total = sum((one * torch.randn(one.shape, generator=generator).to(one.dtype)).sum() for one in floats)
    found.module.zero_grad()
    torch.autograd.backward([torch.as_tensor(total)])
    return [one.detach() for one in results], gradients(found.module)


ALL = sorted(set(MODELS) - {"llama3_70b"})


@pytest.mark.parametrize("name", ALL)
def test_a_model_whose_every_op_is_cut_at_random_does_the_same_step(name: str) -> None:
    found = traced(name)
    batch = random_batch(found.graph, 4, seed=0)
    inputs = [batch[one].double() if batch[one].is_floating_point() else batch[one] for one in found.input_names]
    state = {key: value.clone() for key, value in found.module.state_dict().items()}
    values, grads = step(found, found.module(*inputs))
    grads = {key: one.clone() for key, one in grads.items()}
    for degree, seed in ((2, 0), (4, 1)):
        found.module.load_state_dict(state)
        run = CutRun(found.module, degree, seed)
        cut_values, cut_grads = step(found, run.run(inputs))
        assert sum(count for (_, how), count in run.taken.items() if how != "whole") > 20
        for one, other in zip(values, cut_values, strict=True):
            assert torch.allclose(one, other, rtol=1e-9, atol=1e-9)
        assert grads.keys() == cut_grads.keys()
        for key, one in grads.items():
            assert torch.allclose(one, cut_grads[key], rtol=1e-9, atol=1e-9), key


# What can only be done whole: numbers without dims.
WHOLE = {"aten.new_ones.default", "aten.zeros.default", "aten.scalar_tensor.default", "aten.add_.Tensor"}


@pytest.mark.parametrize("name", ALL)
def test_every_op_may_be_cut_but_a_few_numbers_without_dims(name: str) -> None:
    graph = traced(name).graph
    left = unsplit(graph)
    print(name, [(one.target, one.count) for one in left])
    assert {one.target for one in left} <= WHOLE
    assert all(one.share == 0 for one in left)
    for kind in graph.classes:
        for op, choices in zip(kind.ops, block_choices(kind), strict=True):
            if op.target in WHOLE and all(one.name in ("whole", "deferred") for one in choices):
                assert all(not output.shape for output in op.outputs)
            elif op.forward_flops.at(graph.rows):
                cuts = [one for one in choices if any(isinstance(s.value, Cut) for s in one.inputs)]
                assert len(cuts) >= 2, f"{op.target} {op.arguments}"


@pytest.mark.parametrize("name", ["gpt2", "llama3_8b", "mixtral_8x7b", "resnet50"])
def test_the_graph_alone_tells_what_each_rank_runs_at_any_number_of_rows(name: str) -> None:
    graph = Graph.from_json(traced(name).graph.to_json())
    for kind in graph.classes:
        for op, choices in zip(kind.ops, block_choices(kind), strict=True):
            for rows in (2, 6):
                call = call_of(kind, op, rows)
                assert len(tensor_arguments(op)) == len(call.tensors)
                for choice in choices:
                    if legal(choice, call, 2):
                        _halves_add_up(call, choice)


@pytest.mark.parametrize(
    ("name", "divider", "maker"),
    [
        ("gpt2", ("aten.split.Tensor", "dim 2 of 3 parts"), ("aten.addmm.default", "n in 3 parts")),
        (
            "mixtral_8x7b",
            ("aten.chunk.default", "dim 1 of 2 parts"),
            ("transformers.grouped_mm_fallback.default", "n in 2 parts"),
        ),
    ],
)
def test_what_makes_several_things_in_one_dim_may_cut_each_of_them(
    name: str, divider: tuple[str, str], maker: tuple[str, str]
) -> None:
    offered = {
        (op.target, choice.name)
        for kind in traced(name).graph.classes
        for op, choices in zip(kind.ops, block_choices(kind), strict=True)
        for choice in choices
    }
    assert divider in offered and maker in offered


class Written(torch.nn.Module):
    """A mean of what a layer makes, moved in place by one op of many."""

    def __init__(self, write: str, *numbers: float) -> None:
        super().__init__()
        self.write, self.numbers = write, numbers
        self.register_buffer("mean", torch.full((16,), 0.5))
        self.first, self.last = torch.nn.Linear(6, 16), torch.nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x)) * self.get_buffer("mean").clone()
        with torch.no_grad():
            getattr(self.get_buffer("mean"), self.write)(h.detach().mean(0), *self.numbers)
        out: torch.Tensor = self.last(h)
        return out


@pytest.mark.parametrize("write", ["lerp_", "add_", "mul_", "div_", "clamp_", "atan2_"])
def test_what_writes_into_a_buffer_is_done_on_all_of_it(write: str) -> None:
    """A buffer may be read in another layout than its writer would like, and the run would refuse the plan."""
    numbers = (0.1,) if write == "lerp_" else ()
    graph = trace(Written(write, *numbers), {"x": torch.randn(4, 6)}).graph
    offered = [
        choices
        for kind in graph.classes
        for op, choices in zip(kind.ops, block_choices(kind), strict=True)
        if op.target.startswith(f"aten.{write}.")
    ]
    assert [{one.name for one in choices} for choices in offered] == [{"whole"}]


def _halves_add_up(call: Call, choice: Choice) -> None:
    """Where nothing is padded or done twice the two ranks' products have the FLOPs of the whole."""
    rule = rule_for(call.target)
    if rule is None or choice.halo or all(state.value is not PARTIAL and not _cut(state) for state in choice.outputs):
        return
    halves = []
    for rank in range(2):
        local = localise(call, choice, 2, rank)
        halves.append(rule(local.call if isinstance(local, LocalOp) else local).forward_flops)
    assert sum(halves) == rule(call).forward_flops, f"{call.target} {choice.name}"


def _cut(state: State) -> bool:
    return isinstance(state.value, Cut)


@pytest.mark.parametrize("name", ["mixtral_8x7b", "qwen3_30b_a3b"])
def test_tokens_may_be_routed_in_each_ranks_own_order(name: str) -> None:
    found = traced(name)
    batch = random_batch(found.graph, 4, seed=0)
    run = CutRun(found.module, 2, seed=3)
    run.run([batch[one] for one in found.input_names])
    assert run.taken["transformers::grouped_mm_fallback", "own rows"] > 0
