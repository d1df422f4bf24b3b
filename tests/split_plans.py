"""Plans whose replicas are several devices, their splits picked op by op: named choices, the rest as neighbours lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from random import Random

from examples.verify_cases import Case, captured_graph, plan_of, processes
from placer.cluster import Cluster, Curve, Device, Link, Node
from placer.costs import Costs
from placer.graph import Affine, BlockClass, Graph, Op, Parameter, Tensor
from placer.plans import Layout, Plan, Split
from placer.rules import block_choices, call_of, tensor_arguments
from placer.rules.layouts import SAME, Choice, Cut, State, conversion
from placer.rules.splits import legal
from placer.search import Pins, Problem
from placer.splitting import border_state
from placer.strategies.layouts import layouts

ROWS = 4
#: What to do with the ops of a class: name of the op -> name of its choice.
Wishes = Mapping[str, str]
Picker = Callable[[BlockClass], "Wishes | None"]


def split_plan(case: Case, degree: int, pick: Picker, borders: str = "whole") -> Plan:
    """The plan of `case` with `degree` devices in every replica; classes for which `pick` gives None are whole."""
    graph = captured_graph(case.model, case.shapes)
    cut_values = {
        f"b{index}.{k}"
        for index, block in enumerate(graph.blocks)
        for k, reference in enumerate(graph.classes[block.kind].outputs)
        if borders != "whole" and len(_shape(graph.classes[block.kind].tensor(reference))) >= 3
    }
    splits = tuple(_split(graph, kind, pick, degree, borders, cut_values) for kind in range(len(graph.classes)))
    plan = plan_of(case)
    stages = tuple(
        replace(stage, devices=_widened(stage.devices, degree), layout=0, degree=degree) for stage in plan.stages
    )
    return replace(
        plan, stages=stages, layouts=(Layout(degree=degree, splits=splits),), cluster=processes(case.ranks * degree)
    )


def random_plan(case: Case, degree: int, seed: int) -> Plan:
    """A plan whose every op is cut at random, and whose borders are whole or cut on dim 1 (images: 2) at random."""
    draw = Random(seed)

    def any_of(kind: BlockClass) -> Wishes:
        found = zip(kind.ops, block_choices(kind), strict=True)
        return {
            op.name: draw.choice([one.name for one in known if _fits(kind, op, one, degree)]) for op, known in found
        }

    return split_plan(case, degree, any_of, draw.choice(("whole", "cut 2" if "images" in case.model else "cut 1")))


def searched_plans(case: Case, degree: int, pins: Pins, loads: tuple[float, ...] = ()) -> tuple[Plan, ...]:
    """Plans with the layouts a search would use where communication costs next to nothing."""
    plan = plan_of(case)
    plan = replace(plan, settings=replace(plan.settings, expert_loads=loads))
    cluster = fast_links(case.ranks * degree)
    problem = Problem(
        model=plan.model, graph=plan.graph, cluster=cluster, settings=plan.settings, rows=plan.rows, pins=pins
    )
    stages = tuple(
        replace(stage, devices=_widened(stage.devices, degree), layout=0, degree=degree) for stage in plan.stages
    )
    found = layouts(problem, Costs(plan.graph, cluster, plan.settings))
    return tuple(replace(plan, cluster=cluster, layouts=(layout,), stages=stages) for layout in found)


def fast_links(devices: int) -> Cluster:
    """Slow processes that reach each other at once."""
    slow = Device(
        name="process", backend="cpu", memory_bytes=2**33, memory_bandwidth=1e7, rates=(("float32", 1e7),),
        launch_seconds=1e-9, curve=Curve(points=((1.0, 1.0),)),
    )  # fmt: skip
    link = Link(name="link", latency_seconds=1e-9, bandwidth=1e13)
    return Cluster(name="processes", groups=((Node(name="here", devices=((slow, devices),), link=link), 1),))


def picked(kind: BlockClass, degree: int, wishes: Wishes, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Split:
    """A split of a class: ops with a wish as wished, the others so that little must be converted."""
    states: dict[str, State] = {f"i{index}": border_state(text) for index, text in enumerate(inputs)}
    chosen: list[str] = []
    for index, (op, known) in enumerate(zip(kind.ops, block_choices(kind), strict=True)):
        usable = [choice for choice in known if choice.name == wishes.get(op.name)]
        usable = usable or [choice for choice in known if _fits(kind, op, choice, degree)]
        choice = min(usable, key=lambda choice: _price(kind, op, choice, states))
        chosen.append(choice.name)
        states |= {f"o{index}.{k}": state for k, state in enumerate(choice.outputs)}
    return Split(choices=tuple(chosen), inputs=inputs, outputs=outputs)


def _split(graph: Graph, number: int, pick: Picker, degree: int, borders: str, cut_values: set[str]) -> Split | None:
    kind = graph.classes[number]
    wishes = pick(kind)
    if wishes is None:
        return None
    block = next(block for block in (*graph.blocks, graph.prologue) if block.kind == number)
    index = next((i for i, one in enumerate(graph.blocks) if one.kind == number), -1)
    inputs = tuple(borders if reference in cut_values else "whole" for reference in block.inputs)
    outputs = tuple(borders if f"b{index}.{k}" in cut_values else "whole" for k in range(len(kind.outputs)))
    return picked(kind, degree, wishes, inputs, outputs)


def _fits(kind: BlockClass, op: Op, choice: Choice, degree: int) -> bool:
    pairs = (
        *zip(map(kind.tensor, tensor_arguments(op)), choice.inputs, strict=True),
        *zip(op.outputs, choice.outputs, strict=True),
    )
    for tensor, state in pairs:
        if isinstance(state.value, Cut):
            size = tensor.shape[state.value.dim]
            if state.value.own or (isinstance(size, Affine) and size.per_row):
                return False
    return legal(choice, call_of(kind, op, ROWS), degree)


def _price(kind: BlockClass, op: Op, choice: Choice, states: dict[str, State]) -> tuple[float, int]:
    moved = 0.0
    for reference, want in zip(tensor_arguments(op), choice.inputs, strict=True):
        tensor = kind.tensor(reference)
        if isinstance(tensor, Parameter):
            continue
        have = states.get(reference, SAME)
        trains = tensor.requires_grad
        words = (conversion(have.value, want.value), conversion(want.gradient, have.gradient) if trains else "")
        if "none" in words:
            moved += float("inf")
        moved += sum(1.0 for word in words if word) * prod(_shape(tensor))
    works = op.kind in ("matmul", "attention", "convolution") and choice.name in ("whole", "deferred")
    return moved + (0.25 if works else 0.0), choice.name in ("whole", "deferred")


def _shape(tensor: Tensor | Parameter) -> tuple[int, ...]:
    return tensor.shape if isinstance(tensor, Parameter) else tensor.shape_at(ROWS)


def _widened(devices: tuple[int, ...], degree: int) -> tuple[int, ...]:
    return tuple(device * degree + inner for device in devices for inner in range(degree))
