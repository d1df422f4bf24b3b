"""Throttle(folder): the storage that `folder` lies on, slowed for processes that join its control group.

The group (cgroup v1, blkio) bounds bytes and requests a second of reading. It lets a sample pass at the speed of the
disk and holds back those after it, as the port of a network does, so that what is throttled are bytes a second and not
the time of one request. After the `with`, also after an error or Ctrl-C, what is left in the group is ended and the
group is gone.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from examples.measured.emulated.system import cgroup_controller
from placer.errors import UsageError

NAME = "placer-data-path"
ENDING_SECONDS = 5.0


class Throttle:
    """A group whose processes read slowly. Raises UsageError naming what the system lacks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._device = ""
        self._group = Path()

    def __enter__(self) -> Throttle:
        root = cgroup_controller("blkio")
        if os.geteuid() != 0 or root is None:
            lacking = "root" if os.geteuid() != 0 else "the blkio controller of cgroup v1, mounted"
            raise UsageError(f"storage cannot be throttled here: it takes {lacking}")
        self._device = block_device(self._folder)
        self._group = root / NAME
        with suppress(FileNotFoundError):
            _remove(self._group)
        self._group.mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _end_all(self._group)
        _remove(self._group)

    def join(self) -> None:
        """Put the process that calls this, and what it starts from now on, into the group."""
        (self._group / "cgroup.procs").write_text(str(os.getpid()))

    def limit(self, *, bytes_per_second: float = 0.0, requests_per_second: float = 0.0) -> None:
        """Bound what is read from now on; 0: as much as there is."""
        for what, rate in (("bps", bytes_per_second), ("iops", requests_per_second)):
            (self._group / f"blkio.throttle.read_{what}_device").write_text(f"{self._device} {round(rate)}")


def block_device(folder: Path) -> str:
    """The disk that `folder` lies on, as `254:0`. Raises UsageError where it lies on none, as in memory."""
    number = folder.stat().st_dev
    entry = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not entry.exists():
        raise UsageError(f"{folder} lies on no block device that could be throttled; give another one with --folder")
    disk = entry.resolve()
    return ((disk.parent if (disk / "partition").exists() else disk) / "dev").read_text().strip()


def _end_all(group: Path) -> None:
    """End what an interrupted loader left in the group."""
    for process in (group / "cgroup.procs").read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(process), signal.SIGKILL)


def _remove(group: Path) -> None:
    """Remove a group when its last process has ended. Raises UsageError where one stays."""
    end = time.monotonic() + ENDING_SECONDS
    while True:
        try:
            return group.rmdir()
        except FileNotFoundError:
            raise
        except OSError:
            if time.monotonic() > end:
                raise UsageError(f"{group} is in use: is this command running already?") from None
            time.sleep(0.05)
