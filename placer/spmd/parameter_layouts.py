"""How the devices of a replica hold each parameter and buffer: its piece, or all of it.

A parameter is one thing wherever it is read: where blocks that read it would keep it in different states, or over
different numbers of devices, it is kept whole, and each block converts it. `SHARED` ones have a part of their gradient
on each device, summed once a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace

from placer.graph import Affine, BlockClass, Graph, Parameter, Summed, Tensor, making_block
from placer.plans.plan import Layout, Plan, Split
from placer.rules.layouts import SAME, SHARED, State, held_size
from placer.rules.two_axis_layouts import INNER, OUTER, held_shape, pieces, state_along
from placer.spmd.layout_conversions import Edges, border_state, edges


def block_split(plan: Plan, stage: int, number: int) -> Split | None:
    """How block class `number` lies over the devices of a stage's replicas; None where each has all of it."""
    layout = plan.stages[stage].layout
    return None if layout is None else plan.layouts[layout].splits[number]


def block_edges(plan: Plan, stage: int, number: int) -> Edges | None:
    """How block class `number` is cut in a stage; None where every device runs all of it."""
    split = block_split(plan, stage, number)
    return None if split is None else class_edges(plan.graph.classes[number], split)


def parameter_states(plan: Plan) -> Mapping[str, State]:
    """The state of each parameter and buffer that is not `SAME`. Raises UsageError for a split of another class."""
    if not plan.layouts:
        return {}
    found: dict[str, tuple[State, int]] = {}
    for name, state, degree in _kept(plan):
        if found.setdefault(name, (state, degree)) != (state, degree):
            found[name] = (SAME, 0)
    return {name: state for name, (state, _) in found.items() if state != SAME}


def kept_whole(graph: Graph, layout: Layout) -> Mapping[str, Parameter]:
    """The parameters of `graph` that blocks would keep unlike each other under a layout, so that all is kept."""
    found, unlike = dict.fromkeys(graph.prologue.parameters, SAME), set()
    for block in graph.blocks:
        split = layout.splits[block.kind]
        states = () if split is None else class_edges(graph.classes[block.kind], split).parameters
        for name, state in zip(block.parameters, states or (SAME,) * len(block.parameters), strict=True):
            if found.setdefault(name, state) != state:
                unlike.add(name)
    return {name: graph.parameters[name] for name in unlike}


def held_parameter(parameter: Parameter, state: State, degree: int, rank: int) -> Parameter:
    """What device `rank` of `degree` holds of a parameter."""
    shape = held_shape(parameter.shape, state.value, degree, rank)
    return replace(parameter, shape=shape, summed=summed_over(state))


def summed_over(state: State) -> Summed:
    """Over which devices of a replica the gradient of a parameter that is kept so is summed once a step."""
    if state == SHARED:
        return Summed.REPLICA
    lines = [state_along(state, axis) == SHARED for axis in (OUTER, INNER)]
    return Summed.OUTER if lines[OUTER] else Summed.INNER if lines[INNER] else Summed.NOT


def held_parameters(plan: Plan, rank: int) -> Mapping[str, Parameter]:
    """What device `rank` of each replica holds of every parameter and buffer, by the model's own names."""
    given = (plan.graph, plan.layouts, plan.stages)
    for known, at, found in _HELD:
        if at == rank and all(a is b for a, b in zip(known, given, strict=True)):
            return found
    _HELD.append((given, rank, _held(plan, rank)))
    return _HELD[-1][2]


# What was asked for last: a program asks for every message and collective of every rank.
_HELD: deque[tuple[tuple[object, ...], int, Mapping[str, Parameter]]] = deque(maxlen=64)


def _held(plan: Plan, rank: int) -> Mapping[str, Parameter]:
    states, every = parameter_states(plan), plan.graph.parameters
    if not states:
        return every
    degrees = {name: degree for name, _, degree in _kept(plan)}
    held = {
        name: held_parameter(every[name], state, degrees[name], min(rank, degrees[name] - 1))
        for name, state in states.items()
    }
    return {**every, **held}


def rows_apart(plan: Plan, reference: str) -> int:
    """Into how many parts the rows of a replica go in the stage that makes a value (`b3.0`)."""
    stage = _making(plan, reference)
    layout = None if stage is None else plan.stages[stage].layout
    return 1 if layout is None else plan.layouts[layout].apart


def value_state(plan: Plan, reference: str, stage: int | None = None) -> State:
    """How a value that crosses blocks (`b3.0`) lies over the devices of a replica of `stage` that makes or reads it.

    Of the stage that makes it, where none is given. All blocks of a layout agree about it (`require_layout`).
    """
    at = _making(plan, reference) if stage is None else stage
    layout = None if at is None else plan.stages[at].layout
    return SAME if layout is None else layout_state(plan.graph, plan.layouts[layout], reference)


def layout_state(graph: Graph, layout: Layout | None, reference: str) -> State:
    """How a value that crosses blocks lies under a layout, whichever block makes or reads it."""
    if layout is None or not reference.startswith("b"):
        return SAME
    block, number = map(int, reference[1:].split("."))
    split = layout.splits[graph.blocks[block].kind] if block >= 0 else None
    return SAME if split is None else border_state(split.outputs[number], split.inner)


def held_value(tensor: Tensor, state: State, degree: int, rank: int) -> Tensor:
    """The piece of a value on device `rank` of `degree`; a dim that grows with the rows has pieces that grow alike."""
    shape = list(tensor.shape)
    for lay, count, at, _ in pieces(state.value, degree, rank):
        size = shape[lay.dim]
        shape[lay.dim] = Affine(held_size(lay, size.fixed, count, at), size.per_row // count)
    return replace(tensor, shape=tuple(shape))


def _making(plan: Plan, reference: str) -> int | None:
    """The stage that makes a value; None for what no block makes, and where nothing is cut."""
    if not plan.layouts or not reference.startswith("b"):
        return None
    block = making_block(reference)
    return next((s for s, one in enumerate(plan.stages) if one.first <= block < one.last), None)


def _kept(plan: Plan) -> Iterator[tuple[str, State, int]]:
    """Each parameter with the state in which a block that reads it would keep it, over how many devices."""
    for name in plan.graph.prologue.parameters:
        yield name, SAME, 1
    for index, stage in enumerate(plan.stages):
        for block in plan.graph.blocks[stage.first : stage.last]:
            found = block_edges(plan, index, block.kind)
            states = (SAME,) * len(block.parameters) if found is None else found.parameters
            for name, state in zip(block.parameters, states, strict=True):
                yield name, state, stage.degree


def class_edges(block_class: BlockClass, split: Split) -> Edges:
    """`edges`, remembered for the classes and splits that were asked for last."""
    for known, cut, found in _EDGES:
        if known is block_class and cut is split:
            return found
    _EDGES.append((block_class, split, edges(block_class, split)))
    return _EDGES[-1][2]


_EDGES: deque[tuple[BlockClass, Split, Edges]] = deque(maxlen=256)
