"""What to say when a rank dies: every rank that sees the failure names the rank that caused it.

Each rank leaves its host and process id in the store when it joins. A rank that fails with an error of its own leaves
the error there. A rank whose communication fails looks, for at most SEARCH_SECONDS, for

    1. an error that a rank left,
    2. a process that is gone (each host sees its own, and leaves what it found for the others),
    3. at last, ranks that left nothing: they hang, or their machine is gone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import psutil
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]  # torch exports it unsaid

from placer.errors import ExecutionError
from placer.runtime.distributed.deafness import ended_if_deaf

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


SEARCH_SECONDS = 5.0
# Eight ranks that import torch and transformers on two busy cores need more than a minute.
START_SECONDS = 300.0
# torchrun looks at its ranks ten times a second and reports the first it finds ended; those that only follow wait.
LINGER_SECONDS = 1.0
AGAIN_SECONDS = 0.05
# Set where any rank leaves anything but in order.
FAILED = "failed"
COMMUNICATION_WORDS = (
    "gloo",
    "NCCL",
    "nccl",
    "Connection closed",
    "Connection reset",
    "Timed out",
    "Broken pipe",
    "pair closure",
)


class Terminated(BaseException):
    """The rank was asked to end (SIGTERM); no error of its own."""


class Watch:
    """The ranks of a run as one of them sees them, through `store`."""

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        self._store, self._rank, self._world_size = store, rank, world_size
        self._here: tuple[int, ...] | None = None

    def join(self) -> None:
        """Leave this rank's host and process where the others find them, and wait for theirs.

        Ranks import at their own pace: only from here on does one that does not answer hang. Raises ExecutionError.
        """
        process = psutil.Process()
        entry = {"host": socket.gethostname(), "pid": process.pid, "began": process.create_time()}
        self._store.set(f"alive/{self._rank}", json.dumps(entry))
        until = time.monotonic() + START_SECONDS
        while absent := [rank for rank in range(self._world_size) if not self._store.check([f"alive/{rank}"])]:
            if time.monotonic() > until:
                raise ExecutionError(
                    f"rank {', '.join(map(str, absent))} did not start within {START_SECONDS:.0f} s; "
                    "look at what it printed, and whether its machine is up"
                )
            time.sleep(0.05)

    def leave_error(self, error: BaseException) -> None:
        """Tell the others that this rank failed by itself."""
        self._leave("error", self._rank, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)

    def notice(self) -> None:
        """Tell the others that this rank ends because of another, or was asked to end."""
        self._leave("noticed", self._rank, "noticed")

    def cause(self, *, blame_silent: bool = True) -> str:
        """Which rank made communication fail, in words, "" where none did; waits at most SEARCH_SECONDS.

        `blame_silent`: ranks that left nothing are the cause. Where all were told to end they may just be slower.
        """
        try:
            self.notice()
            return self._search() or (self._silent() if blame_silent else "")
        except (dist.DistError, RuntimeError):
            return "rank 0 died, or its machine is gone (it kept the store of the run)"

    def failed(self) -> bool:
        """Whether some rank has ended other than in order, as far as this host or the store knows; quick."""
        if self._here is None:
            self._here = tuple(rank for rank in range(self._world_size) if self._host(rank) == socket.gethostname())
        gone = any(self._gone(rank) for rank in self._here if rank != self._rank)
        return gone or self._store.check([FAILED])

    def _host(self, rank: int) -> str:
        return str(json.loads(self._store.get(f"alive/{rank}"))["host"])

    def _search(self) -> str:
        until = time.monotonic() + SEARCH_SECONDS
        while time.monotonic() < until:
            self._find_dead()
            found = [*self._left("dead"), *self._left("error")]
            if found:
                return "; ".join(f"rank {rank} {text}" for rank, text in found)
            time.sleep(0.05)
        return ""

    def _silent(self) -> str:
        noticed = {rank for rank, _ in self._left("noticed")}
        others = (rank for rank in range(self._world_size) if rank != self._rank)
        silent = [str(rank) for rank in others if rank not in noticed]
        return f"rank {', '.join(silent)} did not answer: it hangs, or its machine is gone" if silent else ""

    def _find_dead(self) -> None:
        for rank in range(self._world_size):
            if rank != self._rank and self._gone(rank):
                self._leave("dead", rank, "died without a word (killed, or out of memory)")

    def _gone(self, rank: int) -> bool:
        """Whether the process of `rank` was on this host and has ended without leaving why."""
        ended_in_words = any(self._store.check([f"{kind}/{rank}"]) for kind in ("error", "noticed", "done"))
        if ended_in_words or not self._store.check([f"alive/{rank}"]):
            return False
        entry = json.loads(self._store.get(f"alive/{rank}"))
        if entry["host"] != socket.gethostname():
            return False
        try:
            process = psutil.Process(entry["pid"])
            return process.create_time() != entry["began"] or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def leave(self) -> None:
        """This rank ends in order."""
        self._leave("done", self._rank, "done")

    def _leave(self, kind: str, rank: int, text: str) -> None:
        if kind != "done":
            self._store.set(FAILED, kind)
        self._store.set(f"{kind}/{rank}", text)

    def _left(self, kind: str) -> list[tuple[int, str]]:
        found = []
        for rank in range(self._world_size):
            if rank != self._rank and self._store.check([f"{kind}/{rank}"]):
                text = self._store.get(f"{kind}/{rank}").decode()
                found.append((rank, f"failed: {text}" if kind == "error" else text))
        return found


def is_communication(error: BaseException) -> bool:
    """Whether `error` says that talking to another rank failed, rather than this rank itself."""
    if isinstance(error, dist.DistError):
        return True
    return type(error) is RuntimeError and any(word in str(error) for word in COMMUNICATION_WORDS)


@contextmanager
def guarded(watch: Watch) -> Iterator[None]:
    """Run the body; a failure of communication becomes an ExecutionError that names the rank that caused it.

    An error of this rank itself is left for the others and goes on as it is.
    """

    ending, heard, again = False, threading.Event(), _Again()

    def terminate(_signal: int, _frame: FrameType | None) -> None:
        first = not heard.is_set()
        heard.set()
        if ending:  # torchrun saw the other rank end too; the search for the cause must not be cut short
            return
        if first and sys.exception() is not None:
            # On its way here it is the cause; Python would call this as a block is left, outside of every `try`.
            again.ask(LINGER_SECONDS)
            return
        # First: raised inside a callback of C++ the exception may end the process, which must not look like a cause.
        watch.notice()
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        with ended_if_deaf(heard), again.where_dropped():
            yield
    except Terminated:
        ending = True
        cause = watch.cause(blame_silent=False) or "somebody ended the run (a time limit, the scheduler, Ctrl-C)"
        raise ExecutionError(f"this rank was ended by SIGTERM; {cause}") from None
    except Exception as error:
        ending = True
        if not is_communication(error):
            watch.leave_error(error)
            raise
        cause = watch.cause() or "no rank died: the network between them failed"
        time.sleep(LINGER_SECONDS)
        raise ExecutionError(
            f"{cause}; this rank ended because of it ({_first_line(error)}). "
            "Start again: a run with --checkpoint goes on from its last complete checkpoint"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, before)


class _Again:
    """SIGTERM once more, a moment later; not after the end of `where_dropped`."""

    def __init__(self) -> None:
        self._asked: list[threading.Timer] = []

    def ask(self, seconds: float) -> None:
        """Tell this process to end, after so many `seconds`."""
        self._asked.append(threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM)))
        self._asked[-1].daemon = True
        self._asked[-1].start()

    @contextmanager
    def where_dropped(self) -> Iterator[None]:
        """Around a body that `Terminated` may end: asks again where Python drops it.

        Python prints and forgets what is raised while an object is cleaned away.
        """

        def dropped(found: UnraisableHookArgs) -> None:
            if isinstance(found.exc_value, Terminated):
                self.ask(AGAIN_SECONDS)
            else:
                hook(found)

        hook, sys.unraisablehook = sys.unraisablehook, dropped
        try:
            yield
        finally:
            sys.unraisablehook = hook
            for timer in self._asked:
                timer.cancel()


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200]
