"""Whether the model that a caller gave to `load` is, before a step, what the run has: a run holds pieces, shards and
float32 masters of its weights, which hear nothing of what a loop of the caller's own does to the model since.

Refused are parameters that were thawed since, or frozen where the run would go on with their gradients, and weights
that were written where the run would not take it. What is written through `.data` nobody sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import nn

from placer.errors import UsageError
from placer.runtime.distributed.tensors import local_part
from placer.runtime.weights.given_state import listed
from placer.runtime.weights.meta_model import named_tensors
from placer.runtime.weights.rank_weights import ChunkMap
from placer.runtime.weights.same_numbers import same_numbers

Held = Mapping[str, torch.Tensor]


class GivenModel:
    """The model as it was when a run was loaded from it, and the parts of it that a rank holds (`chunks`).

    freezes: whether a parameter that is frozen between steps is left alone by the run, as in every loop: on all ranks.
    """

    def __init__(self, model: nn.Module, chunks: ChunkMap, *, freezes: bool) -> None:
        self._named, self._chunks, self._freezes = named_tensors(model), chunks, freezes
        self._trains = {name: tensor.requires_grad for name, tensor in self._named.items()}
        self._versions: dict[str, int] = {}
        self.note()

    def note(self) -> None:
        """Take what was written so far for the run's own writing."""
        self._versions = {name: tensor._version for name, tensor in self._named.items()}

    def require_trained_alike(self) -> None:
        """Raise UsageError where a parameter was made to train since then, or frozen and the run would not follow."""
        turned = [
            name
            for name, trained in self._trains.items()
            if self._named[name].requires_grad != trained and not (trained and self._freezes)
        ]
        if turned:
            how = "frozen" if self._trains[turned[0]] else "made to train"
            raise UsageError(
                f"{listed(turned)} of the model that load was given: {how} since then, and a run trains what trained "
                "when it was planned; plan the model as it is now, and go on from full_state_dict() with that plan"
            )

    def require_heard(self, held: Callable[[], Held], overruled: Callable[[], Iterable[str]]) -> None:
        """Raise UsageError where something was written since the last step that the run has values of its own for.

        held: what this rank has, by the model's own names; overruled: which of those the next step overwrites with its
        masters. Both are asked only where something was written.
        """
        written = {name for name, version in self._versions.items() if self._named[name]._version != version}
        lost = {*self._aside(written, held()), *written.intersection(overruled())} if written else ()
        if lost:
            raise UsageError(
                f"{listed(sorted(lost))} of the model that load was given: written since then, and the run goes on "
                "with values of its own. Bring the model up first, model.load_state_dict(run.full_state_dict()) of the "
                "run that load returned, write then, and give it all to the run, "
                "run.load_state_dict(model.state_dict()); or write into a copy of the model"
            )

    def _aside(self, written: set[str], held: Held) -> Iterator[str]:
        """Those that the run holds elsewhere than in the model, with other numbers."""
        for name in written & held.keys():
            given, own = self._named[name].detach(), local_part(held[name].detach())
            shared = own.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
            if not shared and not same_numbers(self._chunks.box(name, held[name]).of(given), own):
                yield name
