"""Processes that other processes start: they end with the one that started them, and end quickly."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import sys

SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG in <sys/prctl.h>
# Objects made between two collections of garbage (Python's own: 700). Libraries, graphs and searches make millions that
# stay; walking them again and again takes a fifth of a command's time.
COLLECT_EVERY = 100_000


def die_with_parent() -> None:
    """Have the kernel end this process when the one that started it ends (Linux; elsewhere nothing)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() == 1:  # the parent ended before the call
        os.kill(os.getpid(), signal.SIGKILL)


def collect_seldom() -> None:
    """Look for garbage seldom, and not once more as the interpreter ends: it would walk all that was imported, a
    quarter of the processor time of a process that only imports torch and placer."""
    gc.set_threshold(COLLECT_EVERY)
    atexit.register(gc.freeze)
