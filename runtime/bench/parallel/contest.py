"""compared(jobs): every way has its turn in every round, so that what else a machine does falls on all of them alike.

The order turns by one each round. Ways that train in the same processes take them one after another; those of other
libraries have processes of their own, which sleep meanwhile. Behind the rounds each way trains whole epochs, where they
are asked for. A turn is given out when it is there: a bench that is ended has lost nothing but the turn it was in.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace

from placer.errors import ExecutionError
from placer.report.bench.turns import Turn
from placer.runtime.bench.parallel.engines import prepare
from placer.runtime.bench.parallel.mpi_team import MpiTeam
from placer.runtime.bench.parallel.team import Team
from placer.runtime.bench.parallel.turn import Job, RankTurn
from placer.runtime.bench.parallel.ways import Way, turn_in_team, turn_of_rank
from placer.runtime.distributed.rank_pool import RankPool

TURN_SECONDS, EPOCHS_SECONDS = 300.0, 3600.0
EPOCHS = -1
MOST_SAID = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What is asked: jobs are models on numbers of processes, with the epochs each is to be trained for."""

    ways: tuple[Way, ...]
    jobs: tuple[Job, ...]
    rounds: int
    known: Container[tuple[str, str, int, int]] = ()


def compared(contest: Contest) -> Iterator[Turn]:
    """A turn each, those that are known left out; of what cannot run one turn that says why."""
    for ranks in dict.fromkeys(job.ranks for job in contest.jobs):
        jobs = [job for job in contest.jobs if job.ranks == ranks]
        yield from _of_ranks(contest, jobs, ranks)


def _of_ranks(contest: Contest, jobs: Sequence[Job], ranks: int) -> Iterator[Turn]:
    tried = [one for one in contest.ways if not one.missing]
    if any(one.name == "placer" for one in tried):
        for job in jobs:
            prepare(job)
    yield from (_without(job, one, 0, one.missing) for job in jobs for one in contest.ways if one.missing)
    with _Processes(ranks=ranks) as processes:
        for job in jobs:
            left = list(tried)
            for number in (*range(contest.rounds), *([EPOCHS] if job.epochs else [])):
                asked = replace(job, epochs=job.epochs if number == EPOCHS else 0)
                for one in [*left[number % len(left) :], *left[: number % len(left)]]:
                    if (job.model, one.name, ranks, number) in contest.known:
                        continue
                    turn = processes.turn(asked, one, number)
                    if turn.reason:
                        left.remove(one)
                    yield turn


@dataclass(slots=True, kw_only=True)
class _Processes:
    """Those of a number of ranks, begun as they are needed."""

    ranks: int
    pools: dict[str, RankPool | Team | MpiTeam] = field(default_factory=dict)

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self.pools.values():
            pool.close()

    def turn(self, job: Job, one: Way, number: int) -> Turn:
        """Of one way; a failure is a turn with a reason, and its processes begin anew."""
        began = time.perf_counter()
        size = 1 if one.one_process else self.ranks
        limit = EPOCHS_SECONDS if job.epochs else TURN_SECONDS
        try:
            found = self._pool(one).run(size, _call(one), one.name, job, timeout=limit)
        except ExecutionError as error:
            return _without(job, one, number, said(str(error)))
        return _turn(job, one, number, found, time.perf_counter() - began)

    def _pool(self, one: Way) -> RankPool | Team | MpiTeam:
        if one.world not in self.pools:
            size = 1 if one.one_process else self.ranks
            self.pools[one.world] = _begun(one.world, size, self.ranks if size == 1 else 1)
        return self.pools[one.world]


def _begun(world: str, size: int, threads: int) -> RankPool | Team | MpiTeam:
    if world == "ranks":
        return RankPool(size)
    return MpiTeam(size) if world == "mpi" else Team(world, size, threads)


def _call(one: Way) -> Callable[..., RankTurn]:
    return turn_of_rank if one.world == "ranks" else turn_in_team


def _turn(job: Job, one: Way, number: int, found: Sequence[RankTurn], total: float) -> Turn:
    """Seconds of the slowest process, losses as their mean: all have equally many rows."""
    losses = [sum(each) / len(found) for each in zip(*(rank.losses for rank in found), strict=True)]
    return Turn(
        model=job.model, way=one.name, ranks=job.ranks, round=number, rows=job.global_rows,
        setup_seconds=max(rank.setup_seconds for rank in found), step_seconds=max(rank.step_seconds for rank in found),
        losses=tuple(losses), accuracies=found[0].accuracies,
        epoch_seconds=tuple(max(each) for each in zip(*(rank.epoch_seconds for rank in found), strict=True)),
        total_seconds=total,
    )  # fmt: skip


def _without(job: Job, one: Way, number: int, reason: str) -> Turn:
    return Turn(model=job.model, way=one.name, ranks=job.ranks, round=number, rows=job.global_rows, reason=reason)


def said(error: str) -> str:
    """The last line of the first traceback that is told."""
    first = re.split(r"\nrank \d+:\n", error)[0]
    lines = [line for line in first.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    return (lines[-1] if lines else error)[:MOST_SAID]
