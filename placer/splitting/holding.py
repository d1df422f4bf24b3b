"""How the devices of a replica hold each parameter and buffer: its piece, or all of it.

A parameter is one thing wherever it is read: where blocks that read it would keep it in different states, it is kept
whole, and each block converts it. `SHARED` ones have a part of their gradient on each device, summed once a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace

from placer.graph import Affine, Block, BlockClass, Parameter, Tensor
from placer.plans import Plan, Split
from placer.rules.layouts import SAME, SHARED, Cut, State, held_size
from placer.splitting.edges import Edges, border_state, edges


def block_split(plan: Plan, stage: int, kind: int) -> Split | None:
    """How block class `kind` lies over the devices of a stage's replicas; None where each has all of it."""
    layout = plan.stages[stage].layout
    return None if layout is None else plan.layouts[layout].splits[kind]


def block_edges(plan: Plan, stage: int, kind: int) -> Edges | None:
    """How block class `kind` is cut in a stage; None where every device runs all of it."""
    split = block_split(plan, stage, kind)
    return None if split is None else _edges(plan.graph.classes[kind], split)


def parameter_states(plan: Plan) -> Mapping[str, State]:
    """The state of each parameter and buffer that is not `SAME`. Raises UsageError for a split of another class."""
    if not plan.layouts:
        return {}
    found: dict[str, State] = {}
    for name, state in _kept(plan):
        found[name] = state if found.setdefault(name, state) == state else SAME
    return {name: state for name, state in found.items() if state != SAME}


def held_parameter(parameter: Parameter, state: State, degree: int, rank: int) -> Parameter:
    """What device `rank` of `degree` holds of a parameter."""
    if not isinstance(state.value, Cut):
        return replace(parameter, summed=state == SHARED)
    dim = state.value.dim
    size = held_size(state.value, parameter.shape[dim], degree, rank)
    return replace(parameter, shape=(*parameter.shape[:dim], size, *parameter.shape[dim + 1 :]))


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
    states, degree = parameter_states(plan), plan.stages[0].degree
    every = plan.graph.parameters
    if not states:
        return every
    return {**every, **{name: held_parameter(every[name], state, degree, rank) for name, state in states.items()}}


def rows_apart(plan: Plan, reference: str) -> int:
    """Into how many parts the rows of a replica go in the stage that makes a value (`b3.0`)."""
    stage = _making(plan, reference)
    layout = None if stage is None else plan.stages[stage].layout
    return 1 if layout is None else plan.layouts[layout].apart


def value_state(plan: Plan, reference: str) -> State:
    """How a value that crosses blocks (`b3.0`) lies over the devices of the replica that makes it."""
    stage = _making(plan, reference)
    if stage is None:
        return SAME
    block, number = map(int, reference[1:].split("."))
    split = block_split(plan, stage, plan.graph.blocks[block].kind)
    return SAME if split is None else border_state(split.outputs[number])


def held_value(tensor: Tensor, state: State, degree: int, rank: int) -> Tensor:
    """The piece of a value on device `rank` of `degree`; a dim that grows with the rows has pieces that grow alike."""
    if not isinstance(state.value, Cut):
        return tensor
    dim = state.value.dim
    size = tensor.shape[dim]
    fixed = held_size(state.value, size.fixed, degree, rank)
    mine = Affine(fixed, size.per_row // degree)
    return replace(tensor, shape=(*tensor.shape[:dim], mine, *tensor.shape[dim + 1 :]))


def _making(plan: Plan, reference: str) -> int | None:
    """The stage that makes a value; None for what no block makes, and where nothing is cut."""
    if not plan.layouts or not reference.startswith("b"):
        return None
    block = int(reference[1:].split(".")[0])
    return next((s for s, one in enumerate(plan.stages) if one.first <= block < one.last), None)


def _kept(plan: Plan) -> Iterator[tuple[str, State]]:
    """Each parameter with the state in which a block that reads it would keep it."""
    for name in plan.graph.prologue.parameters:
        yield name, SAME
    for index, stage in enumerate(plan.stages):
        for block in plan.graph.blocks[stage.first : stage.last]:
            yield from zip(block.parameters, _states(plan, index, block), strict=True)


def _states(plan: Plan, stage: int, block: Block) -> tuple[State, ...]:
    found = block_edges(plan, stage, block.kind)
    return (SAME,) * len(block.parameters) if found is None else found.parameters


def _edges(kind: BlockClass, split: Split) -> Edges:
    for known, cut, found in _EDGES:
        if known is kind and cut is split:
            return found
    _EDGES.append((kind, split, edges(kind, split)))
    return _EDGES[-1][2]


_EDGES: deque[tuple[BlockClass, Split, Edges]] = deque(maxlen=256)
