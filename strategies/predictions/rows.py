"""Rows of tables of measured runs: read from CSV files, each cell as it is printed.

In: a CSV file, or a folder of them, with the columns of `COLUMNS` (others may be missing). Out: `Row`s in order.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from placer.errors import UsageError

# Without these columns a file is no table of runs.
COLUMNS = ("row_id", "dataset", "model", "gpu", "n_gpus", "step_time_s")
# Runs of which nothing can be said: a formula is no measurement, and a suspect one contradicts itself.
NOT_MEASURED = ("analytic", "suspect")


@dataclass(frozen=True)
class Row:
    """One measured run, its cells as printed; an empty cell was not stated."""

    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """A cell, "" where there is none."""
        return (self.cells.get(column) or "").strip()

    def count(self, column: str, otherwise: int = 0) -> int:
        """A whole number; `otherwise` where none is printed. Raises UsageError for what is no number."""
        return round(self.number(column)) if self.text(column) else otherwise

    def number(self, column: str) -> float:
        """A number; 0 where none is printed. Raises UsageError for what is no number."""
        try:
            return float(self.text(column) or 0)
        except ValueError:
            raise UsageError(
                f"row {self.name}: column {column} says {self.text(column)!r}, where a number belongs; mend the file"
            ) from None

    @property
    def name(self) -> str:
        """The row's own name."""
        return self.text("row_id")

    @property
    def dataset(self) -> str:
        """The table it is from."""
        return self.text("dataset")

    @property
    def devices(self) -> int:
        """How many devices took part."""
        return self.count("n_gpus")

    @cached_property
    def seconds(self) -> float:
        """Measured seconds of a step; 0 where there are none."""
        return 0.0 if self.text("status") in NOT_MEASURED else self.number("step_time_s")

    @cached_property
    def bytes(self) -> float:
        """Measured bytes of a device at its fullest; 0 where there are none."""
        return 0.0 if self.text("status") in NOT_MEASURED else self.number("peak_mem_gib") * 2**30

    @property
    def ran_out(self) -> bool:
        """Whether it was measured to run out of memory."""
        return self.text("status") == "oom"


def read_rows(source: Path) -> tuple[Row, ...]:
    """Every row of a CSV file, or of all such files of a folder. Raises UsageError where there are none."""
    if not source.exists():
        raise UsageError(f"{source} does not exist; name a CSV file of measured runs, or a folder of them")
    files = sorted(source.glob("*.csv")) if source.is_dir() else [source]
    found = [row for file in files for row in _read(file, alone=not source.is_dir())]
    if not found:
        raise UsageError(f"{source} holds no rows with the columns {', '.join(COLUMNS)}; name a table that does")
    return tuple(found)


def _read(file: Path, *, alone: bool) -> list[Row]:
    try:
        with file.open(newline="", encoding="utf-8") as opened:
            reader = csv.DictReader(opened)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing and alone:
                raise UsageError(f"{file} has no column {missing[0]}; it needs {', '.join(COLUMNS)}")
            return [] if missing else [Row(cells) for cells in reader]
    except (UnicodeDecodeError, csv.Error, OSError) as wrong:
        raise UsageError(f"{file} cannot be read as CSV: {wrong}; name a CSV file in UTF-8") from None
