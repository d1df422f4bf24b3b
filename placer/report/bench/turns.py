"""What one way to train data-parallel did in one of its turns, and a file of turns that a bench goes on from.

A turn is a line of JSON. A turn that failed says why; a way that cannot run has one such turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from placer.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What came of one turn.

    round: its number; -1 for the run of whole epochs. rows: of the global batch. step_seconds: mean of its timed steps,
    the slowest rank's. losses: of all its steps, of the global batch. accuracies, epoch_seconds: behind each epoch.
    setup_seconds: from plain model to the end of the first steps, which are not timed. reason: why there is nothing.
    """

    model: str
    way: str
    ranks: int
    round: int
    rows: int = 0
    setup_seconds: float = 0.0
    step_seconds: float = 0.0
    losses: tuple[float, ...] = ()
    accuracies: tuple[float, ...] = ()
    epoch_seconds: tuple[float, ...] = ()
    total_seconds: float = 0.0
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What was asked."""
        return self.model, self.way, self.ranks, self.round


_TURN: TypeAdapter[Turn] = TypeAdapter(Turn)


def kept_turns(path: Path) -> tuple[Turn, ...]:
    """The turns of a file that ended well, none where there is no file; what was not written to its end is left out."""
    if not path.exists():
        return ()
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    try:
        found = tuple(_TURN.validate_json(line) for line in lines if line.endswith("\n"))
    except ValidationError as error:
        wrong = error.errors()[0]
        raise UsageError(f"{path} holds no turns of ways to train: {wrong['msg']}; name another file") from None
    return tuple(turn for turn in found if not turn.reason)


def rewrite(path: Path, turns: Iterable[Turn]) -> None:
    """Begin the file with these."""
    path.write_text("".join(map(_line, turns)), encoding="utf-8")


def keep(path: Path, turn: Turn) -> None:
    """Add a turn to the file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(_line(turn))


def _line(turn: Turn) -> str:
    return f"{json.dumps(asdict(turn))}\n"
