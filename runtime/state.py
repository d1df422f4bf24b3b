"""The state of the model as the ranks of a plan hold it, by the model's own names.

A rank holds the parameters and buffers of its stages; rank 0 also what no stage reads (an unused head). Buffers are
those of
replica 0: batch norm's running statistics follow the rows that replica 0 sees, as under DDP.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from placer.errors import UsageError
from placer.runtime.lowering import Held
from placer.runtime.stages import Stage


class State:
    """The named tensors of this rank. aliases: for each kept name the other names the model has for the same tensor.

    first_rank: the first rank of this rank's replicas, whose buffers count; group: these replicas, None for one.
    held: what this rank holds of each; states are given whole, to which all ranks of a replica put their pieces.
    """

    def __init__(
        self,
        stages: Mapping[int, Stage],
        rest: Mapping[str, torch.Tensor],
        *,
        aliases: Mapping[str, tuple[str, ...]],
        persistent: frozenset[str],
        first_rank: int,
        group: dist.ProcessGroup | None,
        held: Held,
    ) -> None:
        self._stages, self._rest, self._aliases, self._persistent = stages, rest, aliases, persistent
        self._first_rank, self._group, self._held = first_rank, group, held

    def local(self) -> dict[str, torch.Tensor]:
        """What this rank holds; tied parameters once."""
        self.share_buffers()
        found: dict[str, torch.Tensor] = {n: t.detach() for n, t in self._rest.items()}
        for stage in self._stages.values():
            for name, tensor in (*stage.own_parameters().items(), *stage.own_buffers().items()):
                if name in self._persistent:
                    found.setdefault(name, self._put_together(name, tensor.detach()))
        return found

    def full(self) -> dict[str, torch.Tensor]:
        """The whole model's state, on every rank."""
        return self._with_aliases(_gathered({name: _plain(tensor) for name, tensor in self.local().items()}))

    def full_gradients(self) -> dict[str, torch.Tensor]:
        """The gradients of all parameters, on every rank."""
        found: dict[str, torch.Tensor] = {}
        for stage in self._stages.values():
            for name, parameter in stage.own_parameters().items():
                if parameter.grad is not None and name not in found:
                    found[name] = self._held.whole(name, parameter.grad.detach()).cpu().clone()
        return self._with_aliases(_gathered(found))

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take every tensor this rank holds from `state`."""
        wanted = {name: tensor for name, tensor in self.local().items() if name in self._persistent}
        missing = [name for name in wanted if self._find(state, name) is None]
        if missing:
            raise UsageError(
                f"the state lacks {', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}; "
                "give the state of the same model, by its own parameter names"
            )
        held: list[Mapping[str, torch.Tensor]] = [self._rest]
        for stage in self._stages.values():
            held += [stage.own_parameters(), stage.own_buffers()]
        with torch.no_grad():
            for tensors in held:
                for name, tensor in tensors.items():
                    source = self._find(state, name)
                    if source is not None:
                        self._held.take(name, tensor, source)

    def share_buffers(self) -> None:
        """Give all replicas the buffers of replica 0."""
        if self._group is None:
            return
        for stage in self._stages.values():
            for name, buffer in sorted(stage.own_buffers().items()):
                if name in self._persistent:
                    dist.broadcast(buffer, self._first_rank, group=self._group)

    def _put_together(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor as it is saved: pieces as the whole, shards of whole ones as they are."""
        return self._held.whole(name, tensor) if self._held.is_cut(name) else tensor

    def _find(self, state: Mapping[str, torch.Tensor], name: str) -> torch.Tensor | None:
        return next((state[n] for n in (name, *self._aliases.get(name, ())) if n in state), None)

    def _with_aliases(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        more = {alias: state[name] for name, others in self._aliases.items() if name in state for alias in others}
        return {**state, **more}


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu().clone()


def _gathered(own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All ranks' tensors; the lowest rank's where several hold one."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return own
    parts: list[dict[str, torch.Tensor]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(parts, own)
    found: dict[str, torch.Tensor] = {}
    for part in parts:
        for name, tensor in part.items():
            found.setdefault(name, tensor)
    return found
