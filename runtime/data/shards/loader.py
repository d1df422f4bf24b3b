"""`ShardLoader`: a rank's rows of every batch of a folder of shards, read by workers; its state is one number.

    loader = ShardLoader(Path("shards"), rows=256, rank=rank, ranks=ranks, workers=4)
    for batch in loader: ...                       # a list of this rank's samples: what `decode` makes of their files
    loader.state_dict()                            # after any batch; the same on every rank
    ShardLoader(..., ranks=another).load_state_dict(state)      # goes on with the next sample

The state is how many samples all ranks have been given. What workers have read ahead does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypedDict, TypeVar

from torch.utils.data import DataLoader, Dataset, Sampler

from placer.errors import UsageError
from placer.runtime.data.shards.order import WINDOW, Place, ShardOrder
from placer.runtime.data.shards.sample_files import Files, SampleSet
from placer.runtime.data.shards.shard_set import ShardSet

Decoded = TypeVar("Decoded")


class ShardState(TypedDict):
    """How many samples were given, and of which order: another seed, window or set has another one."""

    seen: int
    seed: int
    window: int
    samples: int


class ShardLoader(Generic[Decoded]):
    """Batches of `rows` samples of all ranks together; each is given its part (see `order`), at most one more or less.

    rows: more than there are samples is a batch over several epochs. hold_out: whether some are never given.
    decode: of the files of a sample; runs in the workers, if there are any. Batches never end: epochs go on.
    """

    def __init__(
        self, folder: Path | str | SampleSet, decode: Callable[[Files], Decoded], *, rows: int, rank: int = 0,
        ranks: int = 1, seed: int = 0, workers: int = 0, window: int = WINDOW, hold_out: bool = False,
        prefetch: int = 2, pinned: bool = False,
    ) -> None:  # fmt: skip
        if not (rows >= 1 and 0 <= rank < ranks and workers >= 0):
            raise UsageError(
                f"{rows} rows for rank {rank} of {ranks} with {workers} workers: give rows from 1 on, a rank below "
                "their number, and workers from 0 on"
            )
        self.set: SampleSet = ShardSet(folder) if isinstance(folder, Path | str) else folder
        self.order = ShardOrder(self.set.counts, seed, window=window, hold_out=hold_out)
        self.seen = 0
        self._rows, self._rank, self._ranks, self._seed, self._window = rows, rank, ranks, seed, window
        self._decode, self._workers, self._prefetch, self._pinned = decode, workers, prefetch, pinned

    @property
    def epoch(self) -> int:
        """The epoch of the next sample."""
        return self.seen // self.order.trained

    def state_dict(self) -> ShardState:
        """What `load_state_dict` takes, also of a loader of another number of ranks, rows or workers."""
        return ShardState(seen=self.seen, seed=self._seed, window=self._window, samples=self.order.trained)

    def load_state_dict(self, state: ShardState) -> None:
        """Go on after the samples that `state` has seen. Raises UsageError for the state of another order."""
        mine = self.state_dict()
        if {**state, "seen": 0} != {**mine, "seen": 0} or state["seen"] < 0:
            raise UsageError(
                f"the state {dict(state)} is of another order than {dict(mine)}; give the seed, window and shards that "
                "the run began with"
            )
        self.seen = state["seen"]

    def __iter__(self) -> Iterator[list[Decoded]]:
        """Batches from where the loader is. Raises UsageError once it is elsewhere than this iterator."""
        at = self.seen
        loader: DataLoader[Decoded] = DataLoader(
            _Samples(self.set, self._decode),
            batch_sampler=_Batches(self.order, self.seen, self._rows, self._rank, self._ranks),
            num_workers=self._workers,
            prefetch_factor=self._prefetch if self._workers else None,
            collate_fn=_listed,
            pin_memory=self._pinned,
        )
        for batch in loader:
            if self.seen != at:
                raise UsageError(
                    f"this iterator would go on after {at} samples, its loader is after {self.seen}: a state was "
                    "loaded, or another iterator read since; make a new one, iter(loader)"
                )
            self.seen = at = at + self._rows
            yield batch


class _Samples(Dataset[Decoded]):
    """Samples by their places; with each another is read ahead."""

    def __init__(self, samples: SampleSet, decode: Callable[[Files], Decoded]) -> None:
        self._samples, self._decode = samples, decode

    def __getitem__(self, places: tuple[Place, Place]) -> Decoded:
        place, ahead = places
        self._samples.read_ahead(ahead)
        return self._decode(self._samples.read(place))


class _Batches(Sampler[list[tuple[Place, Place]]]):
    """The places of a rank's rows and of what is read ahead, batch after batch, from the sample after `seen` others on.

    There is no end.
    """

    def __init__(self, order: ShardOrder, seen: int, rows: int, rank: int, ranks: int) -> None:
        self._order, self._seen = order, seen
        self._rows, self._rank, self._ranks = rows, rank, ranks

    def __iter__(self) -> Iterator[list[tuple[Place, Place]]]:
        start = self._seen
        while True:
            own = range(start + (self._rank - start) % self._ranks, start + self._rows, self._ranks)
            yield [(self._order.training(index), self._order.ahead(index)) for index in own]
            start += self._rows


def _listed(samples: list[Decoded]) -> list[Decoded]:
    return samples
