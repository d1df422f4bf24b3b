"""What FSDP2 holds beside the shards: gathered parameters in use, and whole gradients between microbatches.

FSDP2 puts the gathered parameter into its module for the time it is there, and the sharded one, a DTensor, otherwise;
the gathered one keeps its gradient while several microbatches add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from placer.runtime.measuring.instruments import SavedTensors, local_bytes
from placer.runtime.stages.stage import StageModule


class Gathered:
    """Peaks in bytes of gathered parameters and of gradients while `stages` run; `saved` leaves the former out."""

    def __init__(self, stages: Iterable[StageModule], saved: SavedTensors) -> None:
        self._stages = tuple(s for s in stages if any(isinstance(p, DTensor) for p in s.parameters()))
        self._sharded = tuple(parameter for stage in self._stages for parameter in stage.parameters())
        self._saved = saved
        self._seen: dict[int, torch.Tensor] = {}
        self.parameters = 0
        self.gradients = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look before every block's forward, when it is gathered."""
        with ExitStack() as hooks:
            for stage in self._stages:
                for block in stage.blocks:
                    hooks.callback(block.register_forward_pre_hook(self._look).remove)
            yield

    def look_at_gradients(self) -> None:
        """To be called after a backward: shards and whole ones together."""
        held = (*self._sharded, *self._seen.values())
        self.gradients = max(self.gradients, local_bytes(p.grad for p in held if p.grad is not None))

    def _look(self, module: nn.Module, args: object) -> None:
        whole = [p for stage in self._stages for p in stage.parameters() if p.dim() and not isinstance(p, DTensor)]
        for parameter in whole:
            self._seen[id(parameter)] = parameter
            self._saved.leave_out(parameter)
        self.parameters = max(self.parameters, local_bytes(whole))
