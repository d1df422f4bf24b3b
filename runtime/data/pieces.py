"""The numbered .npy files of a folder: in which order an input's pieces come, and that row i of one input goes with row
i of every other.

    INPUT.npy                      all rows; beside inputs in pieces it stands for all of theirs, which then lack none
    INPUT-1.npy ... INPUT-10.npy   in order of their numbers; each input in pieces has the same, of the same rows
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from placer.errors import UsageError

_NUMBERED = re.compile(r"(.+)-(\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some rows of an input, in a file."""

    path: Path
    rows: int


def input_of(path: Path) -> str:
    """The input that a .npy file is of."""
    found = _NUMBERED.match(path.stem)
    return found[1] if found else path.stem


def number_of(path: Path) -> int | None:
    """Which of its input's pieces a .npy file is; None of other files and of one that has all rows."""
    found = _NUMBERED.match(path.stem) if path.suffix == ".npy" else None
    return int(found[2]) if found else None


def in_order(path: Path) -> tuple[str, int, str]:
    """What files are sorted by: their names, pieces of an input by their numbers (2 before 10)."""
    number = number_of(path)
    return (path.name, 0, "") if number is None else (input_of(path), number, path.name)


def require_paired(pieces: Mapping[str, tuple[Piece, ...]]) -> None:
    """Raise UsageError where pieces of inputs do not go together row by row, though all rows may be as many."""
    cut = {name: found for name, found in pieces.items() if any(number_of(piece.path) is not None for piece in found)}
    for name, found in cut.items():
        _require_order(name, found)
    if not cut:
        return
    (first, numbered), *others = ((name, _numbered(found)) for name, found in cut.items())
    for name, other in others:
        _require_same(first, numbered, name, other)
    whole = next((name for name in pieces if name not in cut), None)
    lacking = next((number for number in range(min(numbered), max(numbered)) if number not in numbered), None)
    if whole is not None and lacking is not None:
        raise UsageError(
            f"{cut[first][0].path.parent} has pieces {min(numbered)} to {max(numbered)} of {first} but none with the "
            f"number {lacking}, and all rows of {whole} in one file: which go together is not known; add the piece, or "
            f"cut {whole} into pieces of the same numbers"
        )


def _require_order(name: str, found: tuple[Piece, ...]) -> None:
    """Raise UsageError where an input's pieces have no order: one has no number, or two have the same."""
    counts = Counter(number_of(piece.path) for piece in found)
    for piece in found:
        number = number_of(piece.path)
        if number is None or counts[number] > 1:
            others = ", ".join(one.path.name for one in found if number in (None, number_of(one.path)))
            raise UsageError(
                f"which piece of {name} comes first in {piece.path.parent} is not known: {others}; give each a number "
                "of its own, or one file with all rows"
            )


def _require_same(one: str, of_one: Mapping[int, int], other: str, of_other: Mapping[int, int]) -> None:
    """Raise UsageError where two inputs are not cut alike."""
    for number in sorted({*of_one, *of_other}):
        rows, others = of_one.get(number), of_other.get(number)
        if rows != others:
            raise UsageError(
                f"the inputs {one} and {other} are not cut alike: piece {number} of {one} {_told(rows)}, that of "
                f"{other} {_told(others)}; give them the same pieces, so that their rows go together"
            )


def _told(rows: int | None) -> str:
    return "is missing" if rows is None else f"has {rows} rows"


def _numbered(found: tuple[Piece, ...]) -> dict[int, int]:
    """The rows of pieces by their numbers."""
    numbers = ((number_of(piece.path), piece.rows) for piece in found)
    return {number: rows for number, rows in numbers if number is not None}
