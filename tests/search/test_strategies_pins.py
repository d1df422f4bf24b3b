"""Every strategy respects every pin; pins of axes that cannot be are refused by name."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

import problems
from examples.parity.cases import captured_graph
from placer.api import capture
from placer.cli.options import parsed_loads
from placer.errors import InfeasibleError, UsageError
from placer.graph import Graph
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.search.asked import parse_pins
from placer.search.judge import broken_pins, solve_with
from placer.search.problem import BUILT_IN, Problem
from placer.strategies.space.axes import row_lengths
from placer.strategies.space.outline import shardings
from placer.strategies.space.pin_conflicts import require_pins
from split_blocks import chain_of, mlp

pytestmark = pytest.mark.in_turns

DEVICES = 4
PINS = (
    ("data=2",),
    ("shard=parameters", "data=2"),
    ("pipeline=2",),
    ("tensor=2",),
    ("sequence=2",),
    ("microbatches=2",),
    ("pipeline=2", "schedule=gpipe"),
    ("pipeline=2", "schedule=zero-bubble"),
    ("recompute=yes",),
    ("bucket=4 KiB", "data=2"),
    ("block1@stage=1",),
    ("tensor=2", "pipeline=2"),
    ("sequence=2", "data=2"),
)
FINDERS = ("exhaustive", "stages", "auto")
# A second or more each: layouts of every degree are solved for each of them.
SLOW = {"exhaustive"}


@cache
def graph() -> Graph:
    """Blocks of feed-forward layers; the ends are other classes, since what a model is given or returns is whole."""
    kinds = [mlp(length=4, width=64, inner=inner) for inner in (128, 256, 512)]
    return chain_of(kinds, [0, 1, 2], rows=4)


def given(pins: tuple[str, ...], name: str) -> Problem:
    """The problem with these pins; fewer devices for the strategy that looks at every plan."""
    count = 2 if name in SLOW and len(pins) == 1 else DEVICES
    machines = problems.cluster(*[problems.device(rate=1e10)] * count)
    return problems.problem(graph(), machines, pins=parse_pins(pins, graph()))


@pytest.mark.parametrize("pins", PINS, ids=" ".join)
@pytest.mark.parametrize("name", [*BUILT_IN])
def test_a_strategy_honours_a_pin_or_finds_nothing(name: str, pins: tuple[str, ...]) -> None:
    problem = given(pins, name)
    try:
        found = solve_with(problem, name).plan
    except InfeasibleError:
        assert name not in FINDERS
        return
    assert broken_pins(found, problem.pins) == ()


def test_a_pinned_axis_is_the_axis_of_the_plan() -> None:
    found = solve_with(given(("sequence=2",), "stages"), "stages").plan
    assert [found.layouts[stage.layout].axis for stage in found.stages if stage.layout is not None] == [
        "sequence" for _ in found.stages
    ]


@pytest.mark.parametrize(
    ("pin", "what"),
    [
        ("expert=2", "pin expert=2 contradicts the model chain: it has no experts"),
        ("sequence=3", "pin sequence=3 contradicts the batch: its sequences of 4 tokens do not divide by it"),
        ("sequence=8", "needs 8 devices of 4"),
        ("pipeline=9", r"it has \d blocks \(--granularity op makes one of every op\)"),
        ("height=2", "the pin height=2: no op of chain can be cut so"),
    ],
)
def test_a_pin_of_an_axis_that_cannot_be_is_refused_by_name(pin: str, what: str) -> None:
    with pytest.raises((UsageError, InfeasibleError), match=what):
        solve_with(given((pin,), "stages"), "stages")


def test_sequences_that_do_not_divide_are_refused() -> None:
    odd = chain_of([mlp(length=6, width=64)], [0], rows=4)
    machines = problems.cluster(*[problems.device()] * 4)
    with pytest.raises(UsageError, match="its sequences of 6 tokens do not divide by it"):
        solve_with(problems.problem(odd, machines, pins=parse_pins(("sequence=4",), odd)), "stages")


class Transposed(torch.nn.Module):
    """Twelve tokens, of which a block passes on the columns: fifteen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mixing, self.head = torch.nn.Linear(8, 15), torch.nn.Linear(12, 12), torch.nn.Linear(15, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        columns = torch.tanh(self.mixing(torch.tanh(self.first(x)).transpose(1, 2)))
        return torch.nn.functional.mse_loss(self.head(columns.transpose(1, 2)), y)


def test_sequences_of_which_some_divide_are_cut() -> None:
    model = capture(Transposed(), batch={"x": (6, 12, 8), "y": (6, 12, 3)})
    assert row_lengths(model) == (12, 15)
    machines = problems.cluster(*[problems.device()] * 2)
    found = solve_with(problems.problem(model, machines, pins=parse_pins(("sequence=2",), model)), "stages")
    assert dict(found.plan.layouts[0].axes) == {"sequence": 2}


class Rooted(torch.nn.Module):
    """Two convolutions of the model's own weights: one block, which passes no images on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.randn(3, 3, 3, 3)) for _ in range(2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        made = torch.nn.functional.conv2d(x, self.first, padding=1)
        made = torch.nn.functional.conv2d(made.relu(), self.second, padding=1)
        return torch.nn.functional.mse_loss(made, y)


def test_images_within_a_block_are_told_apart_from_none_and_cut_by_the_granularity_advised() -> None:
    machines, batch = problems.cluster(*[problems.device()] * 2), {"x": (2, 3, 8, 8), "y": (2, 3, 8, 8)}
    model = capture(Rooted(), batch=batch)
    with pytest.raises(InfeasibleError, match=r"only values within blocks\. Take --granularity op"):
        solve_with(problems.problem(model, machines, pins=parse_pins(("height=2",), model)), "stages")
    finer = capture(Rooted(), batch=batch, granularity="op")
    found = solve_with(problems.problem(finer, machines, pins=parse_pins(("height=2",), finer)), "stages")
    assert dict(found.plan.layouts[0].axes) == {"height": 2}


# -- experts


def test_loads_that_are_no_numbers_are_not_taken_for_a_file() -> None:
    assert math.isnan(parsed_loads("1,nan")[1])
    with pytest.raises(UsageError, match="could not convert string to float: 'x'"):
        parsed_loads("1," * 200 + "x")


MIXTRAL = "examples.models:tiny_mixtral"


def mixture(*pins: str, loads: tuple[float, ...] = (), devices: int = 2, rows: int | None = None) -> Problem:
    """Mixtral of small layers on processes as fast as each other."""
    model = captured_graph(MIXTRAL)
    machines = problems.cluster(*[problems.device(rate=1e10)] * devices)
    settings = RunSettings(expert_loads=loads)
    return problems.problem(model, machines, pins=parse_pins(pins, model), settings=settings, rows=rows)


def solved(problem: Problem) -> Plan:
    """The plan of `stages`."""
    return solve_with(problem, "stages").plan


def test_a_pinned_expert_axis_gives_each_device_rows_and_experts_of_its_own() -> None:
    found = solved(mixture("expert=2"))
    layout = found.layouts[0]
    assert (layout.axis, layout.degree) == ("expert", 2)
    choices = {name for split in layout.splits if split for name in split.choices}
    assert {"own rows, to experts", "own rows, from experts"} <= choices
    borders = {text for split in layout.splits[2:] if split for text in split.outputs}
    assert "cut 0" in borders


def test_two_pinned_axes_make_a_mesh_the_outer_one_first() -> None:
    found = solved(mixture("tensor=2", "expert=2", devices=4))
    (layout,) = found.layouts
    assert layout.axes == (("expert", 2), ("tensor", 2)) and layout.apart == 2
    assert found.gap is not None and found.gap <= 0.05
    choices = {tuple(name.split(" / ")) for split in layout.splits if split for name in split.choices}
    assert any(outer.endswith("to experts") and inner != "whole" for outer, inner in choices)


@pytest.mark.parametrize(
    ("pins", "what"),
    [
        (("expert=2", "sequence=2"), "experts take all tokens of a row"),
        (("expert=2", "tensor=2", "height=2"), "along two axes at most"),
        (("expert=2", "tensor=4"), "needs 8 devices of 4"),
    ],
)
def test_axes_that_cannot_be_together_are_refused(pins: tuple[str, ...], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        solved(mixture(*pins, devices=4))


def test_pins_that_leave_no_layout_say_which_of_them_may_go() -> None:
    machines = problems.cluster(*[problems.device(rate=1e10)] * 2)
    pins = parse_pins(("pipeline=2", "shard=optimizer", "microbatches=2"), graph())
    told = r"shard=optimizer, pipeline=2, microbatches=2 together.*Without shard=optimizer, or without pipeline=2 there"
    with pytest.raises(InfeasibleError, match=told):
        solve_with(problems.problem(graph(), machines, pins=pins), "stages")


def test_experts_that_may_be_within_an_opaque_part_are_refused_with_its_name() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1), torch.nn.Flatten(0))
    found = capture(model, batch={"input": (8, 4)}, opaque=["0"])
    machines = problems.cluster(*[problems.device(rate=1e10)] * 2)
    with pytest.raises(UsageError, match="no experts outside of 0, which is opaque and stays whole"):
        solve_with(problems.problem(found, machines, pins=parse_pins(("expert=2",), found)), "stages")


class GatheredExperts(torch.nn.Module):
    """Each row by the weight of its expert."""

    def __init__(self) -> None:
        super().__init__()
        self.route, self.experts = torch.nn.Linear(4, 3), torch.nn.Parameter(torch.randn(3, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score, chosen = self.route(x).softmax(1).max(1)
        made: torch.Tensor = ((self.experts[chosen] @ x[:, :, None])[:, :, 0] * score[:, None]).square().mean()
        return made


def test_experts_whose_weights_are_gathered_are_refused_with_what_could_be_spread() -> None:
    found = capture(GatheredExperts(), batch={"x": (8, 4)})
    machines = problems.cluster(*[problems.device(rate=1e10)] * 2)
    with pytest.raises(UsageError, match=r"no experts that can be spread: none of its ops .*grouped_mm"):
        solve_with(problems.problem(found, machines, pins=parse_pins(("expert=2",), found)), "stages")


def test_loads_of_other_experts_are_refused() -> None:
    with pytest.raises(UsageError, match=r"names 3 experts, .* has layers of 4 experts"):
        solved(mixture(loads=(1.0, 2.0, 3.0)))
    with pytest.raises(UsageError, match="has no experts"):
        problem = given((), "stages")
        solve_with(replace(problem, settings=RunSettings(expert_loads=(1.0,))), "stages")


@pytest.mark.parametrize(
    ("pin", "rows", "what"),
    [
        ("expert=8", 8, "needs 8 devices of 2"),
        ("expert=2", 7, "the 2 devices have equally many rows each"),
    ],
)
def test_experts_that_cannot_be_divided_are_refused(pin: str, rows: int, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        solved(mixture(pin, rows=rows))


def test_skewed_loads_move_experts_and_cost_what_the_fullest_device_does() -> None:
    even, skewed = solved(mixture("expert=2")), solved(mixture("expert=2", loads=(4.0, 4.0, 1.0, 1.0)))
    assert {split.experts for split in even.layouts[0].splits if split} == {()}
    orders = {split.experts for split in skewed.layouts[0].splits if split and split.experts}
    assert len(orders) == 1
    (order,) = orders
    assert {0, 1} & set(order[:2]) and {0, 1} & set(order[2:])  # a heavy one on each device
    assert even.ledger is not None and skewed.ledger is not None
    assert skewed.ledger.step_seconds == pytest.approx(even.ledger.step_seconds, rel=1e-9)  # perfectly balanced again
    heavy = solved(mixture("expert=2", loads=(9.0, 1.0, 1.0, 1.0)))
    assert heavy.ledger is not None and heavy.ledger.step_seconds > even.ledger.step_seconds


def test_a_budget_that_ends_among_the_baselines_is_what_binds() -> None:
    with pytest.raises(InfeasibleError, match=r"the budget was over before anything but baselines .* Give it a larger"):
        solve_with(replace(given(("tensor=2",), "auto"), budget=2), "auto")
    assert solve_with(replace(given(("tensor=2",), "auto"), budget=20), "auto").plan.layouts


def test_fsdp_is_not_chosen_where_a_block_has_several_types() -> None:
    plain = given(("data=2",), "auto")
    assert not plain.mixed_types
    kinds = [
        replace(
            kind, parameters=(*(replace(one, dtype="complex64") for one in kind.parameters[:1]), *kind.parameters[1:])
        )
        for kind in plain.graph.classes
    ]
    mixed = replace(plain.graph, classes=tuple(kinds))
    assert set(shardings(replace(plain, graph=mixed), 2, "1f1b")) == {"none", "optimizer"}
    for pin in ("shard=gradients", "shard=parameters"):
        with pytest.raises(UsageError, match=r"complex64 and of float32, which FSDP2 .* \(shard=optimizer or none"):
            require_pins(replace(plain, graph=mixed, pins=parse_pins((pin,), mixed)))


def test_pins_by_name_are_those_in_words() -> None:
    by_name = {"data": 2, "shard": "parameters", "recompute": True, "bucket": "4 KiB", "block1@stage": 1}
    words = ("data=2", "shard=parameters", "recompute=yes", "bucket=4 KiB", "block1@stage=1")
    assert parse_pins(by_name, graph()) == parse_pins(words, graph())
    with pytest.raises(UsageError, match="the pin 'dta=2' names nothing that can be pinned"):
        parse_pins({"dta": 2}, graph())
