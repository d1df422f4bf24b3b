"""The log of a run: one JSON document per line, TensorBoard if asked, a line a person can read. Rank 0 writes it.

Keys carry units. A resumed run appends to its log.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Protocol

from placer.errors import PlacerError, UsageError, require_extra

Value = float | int | str | None


class Log(Protocol):
    """Where the events of a run go."""

    def write(self, event: str, step: int, values: Mapping[str, Value]) -> None:
        """Record `values` of `event` (`step`, `evaluation`, `checkpoint`, ...) at step `step`."""
        ...

    def close(self) -> None:
        """Everything written is on disk."""
        ...


class JsonLines:
    """One JSON object per event, written at once so that a killed run keeps its log. A full disk is a PlacerError."""

    def __init__(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise UsageError(f"cannot write the log {path}: the folder {path.parent} does not exist; create it first")
        self._path = path
        self._file = path.open("ab", buffering=0)  # what a full disk did not take must not come again at the end

    def write(self, event: str, step: int, values: Mapping[str, Value]) -> None:
        """Append one line."""
        rest = (json.dumps({"event": event, "step": step, **values}) + "\n").encode()
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise PlacerError(
                f"the log {self._path} could not be written behind {event} {step}: {error.strerror}; free space, or "
                "name another file, and start again"
            ) from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Numbers of each event as scalars `event/name`."""

    def __init__(self, folder: Path) -> None:
        require_extra("report", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter  # fails to import where tensorboard is missing

        self._writer = SummaryWriter(str(folder))

    def write(self, event: str, step: int, values: Mapping[str, Value]) -> None:
        """Add the numbers among `values`."""
        for name, value in values.items():
            if isinstance(value, float | int):
                self._writer.add_scalar(f"{event}/{name}", value, step)

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class TerminalLog:
    """A line per event; on a terminal the lines of steps overwrite each other."""

    def __init__(self, steps: int, stream: IO[str] | None = None) -> None:
        self._steps = steps
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()

    def write(self, event: str, step: int, values: Mapping[str, Value]) -> None:
        """Print the event."""
        shown = "  ".join(f"{name} {_short(name, value)}" for name, value in values.items() if value is not None)
        last = step >= self._steps
        if self._terminal and event == "step" and not last:
            self._stream.write(f"\r\x1b[Kstep {step}/{self._steps}  {shown}")
        else:
            start = "\r\x1b[K" if self._terminal else ""
            self._stream.write(f"{start}{event} {step}/{self._steps}  {shown}\n")
        self._stream.flush()

    def close(self) -> None:
        """Nothing is left to do."""


class Logs:
    """Several logs as one."""

    def __init__(self, *logs: Log) -> None:
        self._logs = logs

    def write(self, event: str, step: int, values: Mapping[str, Value]) -> None:
        """Write to each."""
        for log in self._logs:
            log.write(event, step, values)

    def close(self) -> None:
        """Close each."""
        for log in self._logs:
            log.close()


def open_logs(*, jsonl: str, tensorboard: str, steps: int, progress: bool) -> Logs:
    """The logs asked for; empty paths are not written. Raises UsageError where tensorboard is not installed."""
    logs: list[Log] = []
    if progress:
        logs.append(TerminalLog(steps))
    if jsonl:
        logs.append(JsonLines(Path(jsonl)))
    if tensorboard:
        logs.append(TensorBoard(Path(tensorboard)))
    return Logs(*logs)


def _short(name: str, value: Value) -> str:
    if name == "mfu" and isinstance(value, float):
        return f"{value:.1%}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
