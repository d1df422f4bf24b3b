"""A rank that is told to end while it waits inside one call of C++, where Python's signal handlers do not run.

Making a process group waits in such a call for every rank of it, for as long as the group's timeout, also where one of
them has died. Python notes SIGTERM at once, and calls its handler when the call returns; the byte that it writes
meanwhile (`signal.set_wakeup_fd`) wakes a thread here, which ends the process where the handler was not called in time.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from placer.errors import ExecutionError

# torchrun gives ranks 30 s between SIGTERM and SIGKILL (torch/distributed/elastic/multiprocessing/api.py).
DEAF_SECONDS = 15.0
TOLD = (
    "placer: this rank was ended by SIGTERM while it waited for other ranks. "
    "Start again: a run with --checkpoint goes on from its last complete checkpoint"
)


@contextmanager
def ended_if_deaf(heard: threading.Event, seconds: float = DEAF_SECONDS) -> Iterator[None]:
    """End the process where SIGTERM came and its handler has not set `heard` within `seconds`; in the main thread."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_listen, args=(read, heard, seconds), name="told to end", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(write)
        heard.set()  # the body has ended: whatever was still waited for


def _listen(read: int, heard: threading.Event, seconds: float) -> None:
    with os.fdopen(read, "rb", buffering=0) as signals:
        while told := signals.read(1):  # until the other end is closed
            if told[0] == signal.SIGTERM and not heard.wait(seconds):
                print(TOLD, file=sys.stderr, flush=True)
                os._exit(ExecutionError.exit_code)


def _silent_in_child() -> None:
    """A forked process, of a data loader say, shares the pipe: what it is told is not for this rank."""
    with suppress(ValueError):  # no main thread, which alone hears signals
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_silent_in_child)
