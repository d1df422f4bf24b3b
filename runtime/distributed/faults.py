"""What to say when a rank dies: every rank that sees the failure names the rank that caused it.

Each rank leaves its host and process id in the store when it joins. A rank that fails with an error of its own leaves
the error there. A rank whose communication fails looks, for at most SEARCH_SECONDS, for

    1. an error that a rank left,
    2. a process that is gone (each host sees its own, and leaves what it found for the others),
    3. then a rank that was told to end (SIGTERM, SIGINT) while none had failed: one that was told so later was because,
    4. at last, ranks that left nothing: they hang, or their machine is gone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import psutil
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]  # torch exports it unsaid

from placer.errors import ExecutionError
from placer.runtime.distributed.deafness import ended_if_deaf

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


SEARCH_SECONDS = 5.0
#: So long a death may take to show where a rank has left word that it was told to end.
TOLD_SECONDS = 1.0
# Eight ranks that import torch and transformers on two busy cores need more than a minute.
START_SECONDS = 300.0
# torchrun looks at its ranks ten times a second and reports the first it finds ended; those that only follow wait.
LINGER_SECONDS = 1.0
# Soon, and not so often that it slows what the rank still does.
AGAIN_SECONDS = 0.05
# Leaving the blocks of a run may free tensors and process groups, which takes seconds on a busy machine; well below
# what a rank has to end in (`deafness.DEAF_SECONDS`).
LEAVING_SECONDS = 5.0
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


# What a store raises whose keeper, rank 0, is gone.
_GONE = (dist.DistError, RuntimeError)


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
        """Tell the others that this rank ends because of another."""
        self._leave("noticed", self._rank, "noticed")

    def leave_told(self, signal_name: str) -> None:
        """Tell the others that this rank ends because it was told to, which is no news where some rank has failed."""
        if self._store.check([FAILED]):
            self.notice()
        else:
            self._leave("told", self._rank, f"was ended by {signal_name}, which somebody sent it")

    def cause(self, *, blame_silent: bool = True) -> str:
        """Which rank made communication fail, in words, "" where none did; waits at most SEARCH_SECONDS.

        `blame_silent`: ranks that left nothing are the cause. Where all were told to end they may just be slower.
        """
        try:
            self.notice()
            return self._search() or (self._told() or self._silent() if blame_silent else "")
        except _GONE:
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
        began = time.monotonic()
        while (passed := time.monotonic() - began) < SEARCH_SECONDS:
            self._find_dead()
            found = [*self._left("dead"), *self._left("error")]
            if found:
                return "; ".join(f"rank {rank} {text}" for rank, text in found)
            if passed > TOLD_SECONDS and self._left("told"):
                return ""
            time.sleep(0.05)
        return ""

    def _told(self) -> str:
        return "; ".join(f"rank {rank} {text}" for rank, text in self._left("told"))

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
        ended_in_words = any(self._store.check([f"{kind}/{rank}"]) for kind in ("error", "noticed", "told", "done"))
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
def guarded(watch: Watch, close: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Run the body; a failure of communication becomes an ExecutionError that names the rank that caused it.

    An error of this rank itself is left for the others and goes on as it is. `close` ends this rank's connections after
    a failure: once its word is left, as the others look for the cause when their connections close, and before this
    rank looks for it, as others may wait for this one.
    """
    told = _Told(watch)
    before = signal.signal(signal.SIGTERM, told.terminate)
    try:
        with ended_if_deaf(told.heard), told.until_left():
            yield
            told.require_nothing_due()
    except Terminated:
        told.ending = True
        close()
        cause = watch.cause(blame_silent=False) or "somebody ended the run (a time limit, the scheduler, Ctrl-C)"
        raise ExecutionError(f"this rank was ended by SIGTERM; {cause}") from None
    except KeyboardInterrupt:
        told.ending = True
        with suppress(*_GONE):
            watch.leave_told("SIGINT")
        close()
        raise
    except Exception as error:
        told.ending = True
        if not is_communication(error):
            with suppress(*_GONE):
                watch.leave_error(error)
            close()
            raise
        close()
        cause = watch.cause() or "no rank died: the network between them failed"
        time.sleep(LINGER_SECONDS)
        raise ExecutionError(
            f"{cause}; this rank ended because of it ({_first_line(error)}). "
            "Start again: a run with --checkpoint goes on from its last complete checkpoint"
        ) from error
    except BaseException:  # SystemExit: the rank knows why
        close()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


class _Told:
    """What SIGTERM does to a rank: it ends (`Terminated`), unless it is ending anyway.

    Where an error is being handled, or a block is being left, this is put off: the error may be the cause of all, and
    what is raised as a block is left may be outside of every `try`. The signal comes again AGAIN_SECONDS later, until
    LEAVING_SECONDS have passed since the first; what is still due as the body ends is raised there.
    """

    def __init__(self, watch: Watch) -> None:
        self.ending, self.heard = False, threading.Event()
        self._watch, self._since, self._left = watch, 0.0, False
        self._asked: list[threading.Timer] = []

    def terminate(self, _signal: int, frame: FrameType | None) -> None:
        """The handler of SIGTERM. Raises Terminated."""
        if self.ending:  # torchrun saw the other rank end too; the search for the cause must not be cut short
            self.heard.set()
            return
        self._since = self._since or time.monotonic()
        leaving = sys.exception() is not None or (frame is not None and frame.f_code.co_name == "__exit__")
        if leaving and time.monotonic() - self._since < LEAVING_SECONDS:
            self._ask_again()
            return
        self._end()

    def require_nothing_due(self) -> None:
        """Raise Terminated where SIGTERM was put off."""
        if self._since and not self.ending:
            self._end()

    @contextmanager
    def until_left(self) -> Iterator[None]:
        """Around the body: asks again where Python drops what is raised, as it prints and forgets what is raised while
        an object is cleaned away."""

        def dropped(found: UnraisableHookArgs) -> None:
            if isinstance(found.exc_value, Terminated):
                self.heard.clear()
                self._ask_again()
            else:
                hook(found)

        hook, sys.unraisablehook = sys.unraisablehook, dropped
        try:
            yield
        finally:
            self._left, sys.unraisablehook = True, hook
            for timer in self._asked:
                timer.cancel()

    def _end(self) -> NoReturn:
        self.heard.set()
        # First: raised inside a callback of C++ the exception may end the process, which must not look like a cause.
        with suppress(*_GONE):
            self._watch.leave_told("SIGTERM")
        raise Terminated

    def _ask_again(self) -> None:
        if not self._left:
            self._asked.append(threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGTERM)))
            self._asked[-1].daemon = True
            self._asked[-1].start()


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200]
