"""Ranks whose seconds vary, from a file (`placer calibrate --vary` writes one of this machine).

name: a CPU worker beside two GPU workers
ranks:
  - name: CPU worker
    rows: 32                              # of one rank, in the steps measured; left out: 1
    samples: [1.9 s, 2.3 s, 1.5 s]        # seconds of single steps
  - name: GPU workers
    count: 2                              # ranks alike; left out: 1
    rows: 48
    mean: 1.9 s                           # or these, in place of samples
    deviation: 0.4 s
    family: lognormal                     # normal, gamma; left out: lognormal
    fixed: 50 ms                          # what does not grow with rows; left out: 0
  - {name: another, rows: 8, run: run.json}      # or the report of a run on one such rank (placer execute --report)
communication: 20 ms                      # of summing gradients, once; left out: 0
averaging: 60 ms                          # of averaging weights and moments, once; left out: as communication
shared: 100 ms                            # a deviation, of what delays all ranks alike; left out: 0
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from placer.cluster.schema import Count, Seconds
from placer.costs.variability.ranks import Kinds, RankKind
from placer.costs.variability.step_times import Family, FittedTimes, MeasuredTimes, StepTimes, apart
from placer.errors import UsageError
from placer.io.files import parsed_json, read_text
from placer.io.yaml_document import parse, validated


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsteadyRanks:
    """Kinds of ranks with what they do not share; communication, averaging: seconds of each, once. shared: the
    deviation of what delays all alike, seconds, which `kinds` are without."""

    name: str
    kinds: Kinds
    communication: float = 0.0
    averaging: float = 0.0
    shared: float = 0.0


class RunTimes(BaseModel):
    """What is read of the report of a run: seconds of its steps."""

    model_config = ConfigDict(frozen=True)
    step_seconds: tuple[float, ...] = Field(min_length=2)


class RankEntry(BaseModel):
    """A kind of rank, in a file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    count: Count = 1
    rows: Count = 1
    samples: tuple[Seconds, ...] = ()
    run: str = ""
    mean: Seconds | None = None
    deviation: Seconds = 0.0
    family: Family = "lognormal"
    fixed: Seconds = 0.0

    def times(self, folder: Path) -> StepTimes:
        """The distribution. Raises UsageError where there is none, or more than one."""
        if sum((bool(self.samples), bool(self.run), self.mean is not None)) != 1:
            raise UsageError(f"{self.name}: give one of samples, run, and mean with deviation")
        if self.run:
            return MeasuredTimes(atoms=_steps_of(folder / self.run))
        if self.mean is None:
            return MeasuredTimes(atoms=self.samples)
        if not self.deviation:
            return MeasuredTimes(atoms=(self.mean,))
        return FittedTimes(family=self.family, mean=self.mean, deviation=self.deviation)


class UnsteadyFile(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = "ranks"
    ranks: tuple[RankEntry, ...] = Field(min_length=1)
    communication: Seconds = 0.0
    averaging: Seconds | None = None
    shared: Seconds = 0.0
    source: str = ""

    def unsteady_ranks(self, folder: Path) -> UnsteadyRanks:
        """The ranks; paths are relative to `folder`. Raises UsageError."""
        return UnsteadyRanks(
            name=self.name,
            kinds=tuple(_kind(entry, folder, self.shared) for entry in self.ranks),
            communication=self.communication,
            averaging=self.communication if self.averaging is None else self.averaging,
            shared=self.shared,
        )


def read_unsteady_ranks(path: str) -> UnsteadyRanks:
    """The ranks of the file `path`. Raises UsageError naming file, line and field of what is wrong."""
    document = parse(read_text(path, "the file of ranks"), path)
    entry = validated(document, UnsteadyFile)
    try:
        return entry.unsteady_ranks(Path(path).parent)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _kind(entry: RankEntry, folder: Path, shared: float) -> RankKind:
    times = entry.times(folder)
    if not times.mean:
        raise UsageError(f"{entry.name}: no step takes 0 s; give longer ones")
    if entry.fixed > min((*times.atoms, times.mean)):
        raise UsageError(f"{entry.name}: fixed is {entry.fixed:g} s, which is more than a whole step; lower it")
    try:
        own = apart(times, shared)
    except UsageError as error:
        raise UsageError(f"{entry.name}: {error}") from None
    return RankKind(name=entry.name, times=own, rows=entry.rows, count=entry.count, fixed=entry.fixed)


def _steps_of(path: Path) -> tuple[float, ...]:
    """Seconds of the steps of a run but its first, which also warms up."""
    told = f"the report {path}"
    found = parsed_json(read_text(path, told), told)
    try:
        return RunTimes.model_validate(found).step_seconds[1:]
    except ValueError:
        raise UsageError(f"{told} holds no seconds of at least two steps; make it by placer execute --report") from None
