"""A stage: a range of blocks as one nn.Module, from model inputs and received values to the values others read.

    stage(mode, *tensors) -> tensors     in the order of its code's `inputs`, `consumes` and `produces`

It first computes what it needs of the prologue (masks, positions, shifted labels) from the model's inputs, then its
blocks in order. A parameter lies in the BlockModule that reads it, or in the stage itself where several blocks do,
under the model's own name (`own_name` strips the path before it).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from placer.runtime.observer import Observer, Relay
from placer.runtime.stages.block_code import BlockCode, CutModel, put
from placer.runtime.stages.pass_context import PassContext
from placer.runtime.stages.recompute import Rerun, Tensors

#: Runs the code of a block: `run(code, mode, *values)`.
Runner = Callable[..., Tensors]
_Place = tuple[Mapping[str, torch.Tensor | None], str]


def _op_by_op(code: BlockCode, mode: PassContext, *values: torch.Tensor | None) -> Tensors:
    return cast(Tensors, code.module.forward(mode, *values))


OP_BY_OP: Runner = _op_by_op


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCode:
    """The functions of a stage. inputs: model inputs it reads (`x:...`), consumes: values of earlier stages, produces:
    values it returns. drops: per block the values nobody reads after it. writes: what buffers are to be (`w:...`)."""

    prologue: BlockCode
    blocks: tuple[BlockCode, ...]
    inputs: tuple[str, ...]
    consumes: tuple[str, ...]
    produces: tuple[str, ...]
    drops: tuple[tuple[str, ...], ...]
    writes: tuple[str, ...] = ()
    final: bool = False  # its last block makes the loss


def stage_code(cut: CutModel, first: int, last: int, produces: Iterable[str]) -> StageCode:
    """The code of blocks `first` to `last` (exclusive); of `produces` it returns those that exist."""
    blocks = tuple(cut.block(index) for index in range(first, last))
    made = {name for code in blocks for name in code.outputs}
    read = dict.fromkeys(name for code in blocks for name in code.inputs)
    prologue = cut.prologue(read)
    every = dict.fromkeys((*prologue.inputs, *read))
    returned = tuple(name for name in produces if name in made)
    return StageCode(
        prologue=prologue,
        blocks=blocks,
        inputs=tuple(name for name in every if name.startswith("x:")),
        consumes=tuple(n for n in every if n not in made and n not in prologue.outputs and n[:2] not in ("x:", "p:")),
        produces=returned,
        drops=tuple(_last_reads([set(code.inputs) for code in blocks], set(returned))),
        writes=tuple(name for code in blocks for name in code.outputs if name.startswith("w:")),
        final=bool(blocks) and cut.loss in blocks[-1].outputs,
    )


class BlockModule(nn.Module):
    """The parameters of a block; with a `rerun` it runs again in backward (recompute).

    gives_up: its parameters' memory is given up when it has run, so that it returns no view of them.
    """

    def __init__(self, state: Mapping[str, torch.Tensor], rerun: Rerun | None = None) -> None:
        super().__init__()
        self.own = nn.Module()
        for name, tensor in state.items():
            put(self.own, name, tensor)
        self.places = {f"p:{name}": _place(self.own, name) for name in state}
        self.rerun = rerun
        self.gives_up = False
        self.observer: Observer = Relay()
        self.run: Runner = OP_BY_OP

    def forward(self, mode: PassContext, code: BlockCode, *values: torch.Tensor | None) -> Tensors:
        """The outputs of `code`; values that are None are this block's own parameters and buffers."""
        made = self._forward(mode, code, *values)
        if not self.gives_up:
            return made
        held = {one.untyped_storage()._cdata for one in self.parameters()}
        return tuple(one.clone() if one.untyped_storage()._cdata in held else one for one in made)

    def _forward(self, mode: PassContext, code: BlockCode, *values: torch.Tensor | None) -> Tensors:
        given = tuple(
            _at(self.places[name]) if value is None else value for name, value in zip(code.inputs, values, strict=True)
        )
        if self.rerun is None or not torch.is_grad_enabled():
            return self.run(code, mode, *given)
        mode = mode.first()
        passes = iter((mode,))

        # Running statistics move between forward and backward, which checkpoint would take for a mistake if given them;
        # parameters would come back as plain tensors where hooks keep what is saved: compiled code tells those apart.
        moves = [value.requires_grad and not isinstance(value, nn.Parameter) for value in given]

        def run(*moving: torch.Tensor) -> Tensors:
            source = iter(moving)
            again = tuple(next(source) if moved else value for moved, value in zip(moves, given, strict=True))
            first = next(passes, None)
            if first is not None:
                return self.run(code, first, *again)
            # in backward: running statistics must not move twice
            with self.observer.during("recompute"):
                return self.run(code, mode.again(), *again)

        moving = itertools.compress(given, moves)
        return self.rerun(run, *moving)


class StageModule(nn.Module):
    """Blocks with their parameters: `code` with the tensors `state` by name."""

    def __init__(
        self, code: StageCode, state: Mapping[str, torch.Tensor], rerun: Rerun | None = None, reruns: int | None = None
    ) -> None:
        """`rerun` is of the first `reruns` blocks (None: of all)."""
        super().__init__()
        self.code = code
        reads = [[name[2:] for name in block.inputs if name.startswith("p:")] for block in code.blocks]
        before = [name[2:] for name in code.prologue.inputs if name.startswith("p:")]
        shared = _repeated([before, *reads]) | set(before)
        # The backward of the block that makes the loss follows its forward at once: as in `costs`, it never recomputes.
        again = range(len(reads) - code.final)[:reruns]
        self.blocks = nn.ModuleList(
            BlockModule({name: state[name] for name in names if name not in shared}, rerun if index in again else None)
            for index, names in enumerate(reads)
        )
        self.start = BlockModule({})
        self.own = nn.Module()
        self.shared = frozenset(shared)
        for name in sorted(shared):
            put(self.own, name, state[name])
        self.places = {f"p:{name}": _place(self.own, name) for name in shared}
        self._next: dict[str, torch.Tensor] = {}

    def forward(self, mode: PassContext, *tensors: torch.Tensor) -> Tensors:
        """The values `produces`, from the model inputs `inputs` and the received values `consumes`."""
        code = self.code
        values = dict(zip((*code.inputs, *code.consumes), tensors, strict=True))
        values.update({name: _at(place) for name, place in self.places.items()})
        _run(self.start, code.prologue, mode, values)
        for block, body, drops in zip(self.blocks, code.blocks, code.drops, strict=True):
            _run(cast(BlockModule, block), body, mode, values)
            for name in drops:
                values.pop(name, None)
        if mode.updating:
            # All microbatches give the same, from the buffers as the step found them: `placer.tracer.functional`.
            self._next.update({name[2:]: values[name].detach().clone() for name in code.writes})
        return tuple(values[name] for name in code.produces)

    def write_buffers(self) -> None:
        """Give buffers what the model writes into them; to be called once, when the step's last backward is done."""
        buffers = self.own_buffers() if self._next else {}
        for name, value in self._next.items():
            buffers[name].copy_(value)
        self._next = {}

    def watch(self, observer: Observer) -> None:
        """Tell `observer` when blocks run again."""
        for block in self.blocks:
            cast(BlockModule, block).observer = observer

    def run_by(self, run: Runner) -> None:
        """Have the code of every block run by `run`."""
        for block in (self.start, *self.blocks):
            cast(BlockModule, block).run = run

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """Its parameters by the model's own names."""
        return {own_name(name): parameter for name, parameter in self.named_parameters()}

    def own_buffers(self) -> dict[str, torch.Tensor]:
        """Its buffers by the model's own names."""
        return {own_name(name): buffer for name, buffer in self.named_buffers()}


def own_name(name: str) -> str:
    """The model's name of a parameter of a StageModule: without `blocks.3.own.` or `own.`."""
    return name.removeprefix("own.") if name.startswith("own.") else name.split(".own.", 1)[1]


def _place(owner: nn.Module, name: str) -> _Place:
    """Where a parameter or buffer of a dotted name is kept: whatever shards it exchanges it there."""
    path, _, leaf = name.rpartition(".")
    owner = owner.get_submodule(path)
    return (owner._parameters if leaf in owner._parameters else owner._buffers), leaf


def _at(place: _Place) -> torch.Tensor:
    found, leaf = place
    return cast(torch.Tensor, found[leaf])


def _run(block: BlockModule, code: BlockCode, mode: PassContext, values: dict[str, torch.Tensor]) -> None:
    made = block(mode, code, *(values.get(name) for name in code.inputs))
    values.update(zip(code.outputs, made, strict=True))


def _repeated(reads: list[list[str]]) -> set[str]:
    seen: set[str] = set()
    twice: set[str] = set()
    for names in reads:
        twice |= seen & set(names)
        seen |= set(names)
    return twice


def _last_reads(reads: list[set[str]], kept: set[str]) -> list[tuple[str, ...]]:
    """Per block the values nobody reads after it, so that they do not outlive their use."""
    last: dict[str, int] = {}
    for index, names in enumerate(reads):
        for name in names:
            last[name] = index
    return [tuple(n for n, at in last.items() if at == index and n not in kept) for index in range(len(reads))]
