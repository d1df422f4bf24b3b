"""Ops that are told whether they train, as a pass has it: captured in training, called in evaluation too.

instance norm                                -> running statistics in evaluation, written once per pass in training
feature and alpha dropout, rrelu, recurrent  -> their own form of evaluation, which draws nothing (`draws.seeded`)
opaque parts                                 -> their modules train or evaluate; they write their buffers once per pass
                                                in training, and find them in a second run as in the first
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import fx

from placer.runtime.stages.draws import seeding
from placer.runtime.stages.pass_context import PassContext
from placer.tracer.export.opaque import part_buffers, part_in_mode, part_writes, run_part

if TYPE_CHECKING:
    from torch.fx.node import Argument

aten = torch.ops.aten

# How ops name the argument that says whether they train.
_FLAGS = ("train", "training")


def training_flag(node: fx.Node, given: dict[str, Argument]) -> int | None:
    """The place among its arguments `given` of an op's flag that says that it trains; None where it has none set."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    return next((at for at, (name, value) in enumerate(given.items()) if name in _FLAGS and value is True), None)


def instance_norm(
    values: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
    own_statistics: bool,
    momentum: float,
    epsilon: float,
    *,
    mode: PassContext,
) -> torch.Tensor:
    """Instance norm by each row's statistics; where running ones are kept, by these in evaluation."""
    own_statistics = own_statistics and (mode.training or mean is None)
    if own_statistics and not mode.updating and mean is not None and variance is not None:
        # Copies, as batch norm takes them where a block runs again.
        mean, variance = mean.clone(), variance.clone()
    return torch.nn.functional.instance_norm(values, mean, variance, weight, bias, own_statistics, momentum, epsilon)


def opaque_part(
    inputs: list[torch.Tensor], state: list[torch.Tensor], name: str, number: int | None, call: int,
    *, mode: PassContext,
) -> list[torch.Tensor]:  # fmt: skip
    """An opaque part, whose module trains or evaluates as the pass does; number: that of its draws, if it draws; call:
    that of this one among those of the graph."""
    with part_in_mode(name, mode.training), seeding(number, inputs, mode):
        trained = len(state) - len(part_buffers(name))
        buffers = state[trained:]
        found = _found(buffers, name, call, mode)
        made, after = run_part(inputs, [*state[:trained], *found], name)
    _keep(buffers, after[trained:], _wrote(name, found, after[trained:]), name, mode)
    return made


# In evaluation the calls of a part follow each other: what one writes the next one finds.
_LAST = -1


def _found(buffers: list[torch.Tensor], name: str, call: int, mode: PassContext) -> list[torch.Tensor]:
    """Copies of the buffers as a call finds them, in a second run as in the first."""
    known = {} if mode.found is None else mode.found
    if mode.updating and mode.found is not None:
        known[name, call] = [buffer.clone() for buffer in buffers]
    return [buffer.clone() for buffer in known.get((name, call if mode.training else _LAST), buffers)]


def _wrote(name: str, found: list[torch.Tensor], after: list[torch.Tensor]) -> list[bool]:
    """Of each buffer whether a call wrote it, as far as this call or trying the part shows."""
    known = part_writes(name)
    return [
        own in known or now is not before or before._version > 0
        for own, before, now in zip(part_buffers(name), found, after, strict=True)
    ]


@torch.no_grad()
def _keep(
    buffers: list[torch.Tensor], after: list[torch.Tensor], wrote: list[bool], name: str, mode: PassContext
) -> None:
    """Have the buffers be what a call left, in the first run of a pass in training; in evaluation for this pass."""
    if mode.updating:
        for buffer, left, written in zip(buffers, after, wrote, strict=True):
            if written:
                buffer.copy_(left)
    elif not mode.training and mode.found is not None:
        mode.found[name, _LAST] = after
