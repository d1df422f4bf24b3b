"""Plans whose replicas are several devices, their splits picked op by op: named choices, the rest as neighbours lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from examples.parity.cases import Case, captured_graph, plan_of
from examples.parity.processes import processes
from placer.graph import BlockClass, Graph, Parameter, Tensor
from placer.plans.plan import Layout, Plan, Split
from placer.spmd.propagation import Wishes, followed

ROWS = 4
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


def _split(graph: Graph, number: int, pick: Picker, degree: int, borders: str, cut_values: set[str]) -> Split | None:
    kind = graph.classes[number]
    wishes = pick(kind)
    if wishes is None:
        return None
    block = next(block for block in (*graph.blocks, graph.prologue) if block.kind == number)
    index = next((i for i, one in enumerate(graph.blocks) if one.kind == number), -1)
    inputs = tuple(borders if reference in cut_values else "whole" for reference in block.inputs)
    outputs = tuple(borders if f"b{index}.{k}" in cut_values else "whole" for k in range(len(kind.outputs)))
    return followed(kind, degree, wishes, inputs, outputs)


def _shape(tensor: Tensor | Parameter) -> tuple[int, ...]:
    return tensor.shape if isinstance(tensor, Parameter) else tensor.shape_at(ROWS)


def _widened(devices: tuple[int, ...], degree: int) -> tuple[int, ...]:
    return tuple(device * degree + inner for device in devices for inner in range(degree))
