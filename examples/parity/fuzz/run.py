"""The files of one kind: their seeds, their verdicts, and the bad ones kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from examples.parity.fuzz import seeds as made
from examples.parity.fuzz.checkpoints import checkpoints
from examples.parity.fuzz.reading import Case, Kind, files, verdict
from examples.parity.fuzz.seeds import Seed
from examples.parity.fuzz.verdicts import Verdict
from examples.parity.fuzz.workers import verdicts

MADE = {"plan": made.plans, "cluster": made.clusters, "config": made.configs, "checkpoint": checkpoints}
# What is kept of one sort of failure: more tells nothing new, and a fault in every file would fill the disk.
MOST_KEPT = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Spoilt files of one kind, made of `seeds` and read in `folder`."""

    kind: Kind
    seed: int
    seeds: tuple[Seed, ...]
    folder: Path

    @staticmethod
    def of(kind: Kind, seed: int, folder: Path) -> Run:
        """The run of a kind, its valid files made."""
        return Run(kind=kind, seed=seed, seeds=MADE[kind](), folder=folder)

    def verdicts(self, numbers: range) -> Iterator[tuple[int, Verdict]]:
        """What became of each file."""
        return verdicts(lambda number: self._verdict(number), numbers, self.folder)

    def told(self, number: int) -> str:
        """The files of one case, each in short, and what became of it."""
        found = self._verdict(number)
        return "\n".join(
            [*(f"{name}: {content[:4_000]!r}" for name, content in self.files(number).items()), str(found)]
        )

    def files(self, number: int) -> dict[str, bytes]:
        """The files of one case."""
        return files(self._case(number), self.seeds)

    def _case(self, number: int) -> Case:
        return Case(kind=self.kind, seed=self.seed, number=number)

    def _verdict(self, number: int) -> Verdict:
        return verdict(self._case(number), self.seeds, self.folder / "files")


@dataclass(slots=True)
class Kept:
    """The files of which something bad became, in `folder`, by the sort of what it was."""

    folder: Path
    seed: int
    count: int = 0
    found: dict[str, list[str]] = field(default_factory=dict)

    def keep(self, case: Case, found: Verdict, run: Run) -> None:
        """Write the file and what was seen beside it."""
        self.count += 1
        known = self.found.setdefault(f"{case.kind} {found.outcome}: {found.sort}", [])
        if len(known) < MOST_KEPT:
            path = self.folder / f"{case.kind}-{self.seed}-{case.number}"
            for name, content in run.files(case.number).items():
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                (path / name).write_bytes(content)
            (path / "told.txt").write_text(f"{found.outcome}: {found.told}\n", errors="replace")
            known.append(str(path))
        else:
            known.append("")

    def sorts(self) -> str:
        """A line for each sort: how many, and the first file."""
        ordered = sorted(self.found.items(), key=lambda one: -len(one[1]))
        return "\n".join(f"{len(paths):8} {sort}\n         {paths[0]}" for sort, paths in ordered)
