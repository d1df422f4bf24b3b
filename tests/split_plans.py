"""Plans whose replicas are several devices, their splits picked op by op: named choices, the rest as neighbours lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

from examples.verify_cases import Case, captured_graph, plan_of, processes
from placer.graph import Affine, BlockClass, Graph, Op, Parameter, Tensor
from placer.plans import Layout, Plan, Split
from placer.rules import call_of, op_choices, tensor_arguments
from placer.rules.layouts import SAME, Choice, Cut, State, conversion
from placer.rules.splits import legal
from placer.splitting import border_state

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


def picked(kind: BlockClass, degree: int, wishes: Wishes, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Split:
    """A split of a class: ops with a wish as wished, the others so that little must be converted."""
    states: dict[str, State] = {f"i{index}": border_state(text) for index, text in enumerate(inputs)}
    chosen: list[str] = []
    for index, op in enumerate(kind.ops):
        choice = _choice(kind, op, degree, wishes, states)
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


def _choice(kind: BlockClass, op: Op, degree: int, wishes: Wishes, states: dict[str, State]) -> Choice:
    usable = [choice for choice in op_choices(kind, op) if _fits(kind, op, choice, degree)]
    if op.name in wishes:
        return next(choice for choice in usable if choice.name == wishes[op.name])
    return min(usable, key=lambda choice: _price(kind, op, choice, states))


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
