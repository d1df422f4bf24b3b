"""What a checkpoint holds of an executor: parameters, buffers, float32 masters, optimizer state, by the model's names.

    model/NAME            the parameter or buffer
    beside/NAME           a buffer that the model's state leaves out (`persistent=False`), and its forward writes
    masters/NAME          its float32 master, where it has 16 bits
    optimizer/NAME/KEY    the optimizer's state of it (`exp_avg`, `step`, ...)

Each rank gives its own part: a tensor, or `TensorChunks` of one that is cut or sharded; torch.distributed.checkpoint
makes one whole of them, which loads under any other layout.
"""

from __future__ import annotations

from functools import partial

import torch

from placer.errors import UsageError
from placer.runtime.checkpoint.stateful import BESIDE, State
from placer.runtime.data_parallel.optimizer import Updater
from placer.runtime.distributed.tensors import local_part
from placer.runtime.executor.executor import Executor
from placer.runtime.measuring.measurement import MeasuredTensors
from placer.runtime.weights.tensor_chunks import as_saved


class TrainingState:
    """The state of one rank's executor, as `Checkpoints` saves and loads it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def state_dict(self) -> State:
        """This rank's part, in the memory where it lies: what is loaded into it has been taken over.

        An optimizer that has not stepped yet is given the state of a step that changed nothing.
        """
        self.consolidate()  # first: it may make the optimizer's state
        updater, part = self._executor.updater, partial(as_saved, self._executor.chunks)
        require_optimizer_state(updater)
        return {
            **self.weights(),
            BESIDE: {name: part(name, buffer) for name, buffer in self._executor.held_beside().items()},
            "masters": {
                name: part(name, master, updater.own[name])
                for name, master in updater.masters.items()
                if name not in updater.copies
            },
            "optimizer": {
                name: {
                    key: part(name, value, updater.own[name]) if value.dim() else value
                    for key, value in _optimizer_state(updater, tensor).items()
                }
                for name, tensor in updater.updated.items()
                if name not in updater.copies
            },
        }

    def weights(self) -> State:
        """The same of parameters and buffers alone."""
        part = partial(as_saved, self._executor.chunks)
        return {"model": {name: part(name, tensor) for name, tensor in self._executor.held_state().items()}}

    def finite(self) -> bool:
        """Whether all weights that this rank trains are numbers; all ranks call it. Each is read once, none copied."""
        self.consolidate()
        held = (local_part(parameter.detach()) for parameter in self._executor.updater.named.values())
        parts = [part for part in held if part.numel()]
        return not parts or all(bool(one.isfinite()) for one in torch._foreach_norm(parts, float("inf")))

    def consolidate(self) -> None:
        """Bring all replicas to the same state, where steps do not; reading the state does so too."""
        self._executor.consolidate()

    def load_state_dict(self, state: State) -> None:
        """Take over what `state`, this rank's own memory, holds now: of a tied parameter the first copy; of one
        without a state in the optimizer, that it has none yet."""
        updater, kept = self._executor.updater, state.get("optimizer", {})
        assert isinstance(kept, dict)
        states = {} if updater.optimizer is None else updater.optimizer.state
        for name, tensor in updater.updated.items():
            if updater.copies.get(name, name) not in kept:
                states.pop(tensor, None)
        for copy in [name for name in updater.updated if name in updater.copies]:
            _take_over(updater, copy, updater.copies[copy])
        updater.refresh_copies()

    @property
    def held(self) -> MeasuredTensors:
        """The tensors of this rank by category."""
        stages, updater = self._executor.stages.values(), self._executor.updater
        states = (_optimizer_state(updater, tensor) for tensor in updater.updated.values())
        return MeasuredTensors(
            stages=tuple(stages),
            parameters=tuple(p for stage in stages for p in stage.own_parameters().values()),
            buffers=tuple(b for stage in stages for b in stage.own_buffers().values()),
            optimizer=tuple(
                tensor
                for tensor in (*updater.masters.values(), *(tensor for state in states for tensor in state.values()))
                if tensor.device.type == self._executor.device.type
            ),
            lasting=tuple(storage for replica in self._executor.replicas.values() for storage in replica.lasting),
        )


@torch.no_grad()
def _take_over(updater: Updater, copy: str, first: str) -> None:
    """Give a second copy of a tied parameter all that the first has been loaded with."""
    pairs = [(updater.own[copy], updater.own[first]), (updater.updated[copy], updater.updated[first])]
    states = (_optimizer_state(updater, updater.updated[name]) for name in (copy, first))
    pairs += [*zip(*(state.values() for state in states), strict=True)]
    for target, source in ((local_part(one.detach()), local_part(other.detach())) for one, other in pairs):
        if target.shape != source.shape:
            raise UsageError(
                f"two stages of a rank divide the state of {first} in different ways, and only one of them was loaded; "
                "resume under a plan whose stages shard it alike"
            )
        target.copy_(source)


def _optimizer_state(updater: Updater, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors of the optimizer's state of one parameter."""
    state = updater.optimizer.state.get(tensor, {}) if updater.optimizer is not None else {}
    return {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}


def require_optimizer_state(updater: Updater) -> None:
    """Make the state of an optimizer that has never stepped, by a step with zero gradients and learning rate zero."""
    optimizer = updater.optimizer
    if optimizer is None or optimizer.state:
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for parameter in updater.updated.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.zero_()
    updater.clear()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
