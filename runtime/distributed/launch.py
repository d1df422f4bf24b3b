"""Start the ranks of a plan on this machine with torch's own launcher, wait for them, and say what became of them.

Everything listens on the loopback interface only. No process is left behind: the launcher is ended on a timeout or an
interruption, and its ranks end with it (`placer.io.processes.die_with_parent`).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from placer.errors import ExecutionError

TAIL_LINES = 60
ENDING_SECONDS = 15.0
# The file torchrun's lines about an ended rank come from (torch 2.13).
TORCHRUN_SAYS = "torch/distributed/elastic/multiprocessing/api.py"
SILENT: Callable[[str], None] = lambda line: None  # noqa: E731 (a default argument)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """How the ranks ended: torchrun's exit code and the last lines they and it wrote."""

    exit_code: int
    output: str


def launch(
    plan_path: str,
    arguments: Sequence[str],
    ranks: int,
    timeout: float,
    *,
    command: str = "execute",
    echo: Callable[[str], None] = SILENT,
) -> Launched:
    """Run `placer COMMAND PLAN ARGUMENTS` on `ranks` ranks; `echo` gets each line as it comes.

    Raises ExecutionError naming the rank that failed, or after `timeout` seconds.
    """
    return launch_module(("placer", command, plan_path, *arguments), ranks, timeout, echo=echo)


def launch_module(
    module: Sequence[str], ranks: int, timeout: float, *, echo: Callable[[str], None] = SILENT
) -> Launched:
    """Run `python -m MODULE ...` on `ranks` ranks, as `launch` does."""
    process = subprocess.Popen(
        _command(module, ranks),
        env=_environment(ranks),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    reader = threading.Thread(target=_read, args=(process, tail, echo), daemon=True)
    reader.start()
    try:
        exit_code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        raise ExecutionError(
            f"the {ranks} ranks did not end within {timeout:.0f} s and were ended. Their last lines:\n{_text(tail)}"
        ) from None
    finally:
        _end(process)
        reader.join(ENDING_SECONDS)
    launched = Launched(exit_code=exit_code, output=_text(tail))
    if exit_code:
        raise ExecutionError(f"{failure(launched.output)}. The last lines:\n{_of_ranks(launched.output)}")
    return launched


def failure(output: str) -> str:
    """Which rank failed first and how, from torchrun's report and what the other ranks say.

    The report lists every rank that ended, those that torchrun ended included, with times in whole seconds: a rank
    that died of a signal of its own comes first, then one that another rank names as the cause.
    """
    others, _, cause = output.rpartition("Root Cause")
    entry = re.compile(r"\brank\s+:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.S)
    ended = [(int(rank), int(code)) for rank, code in (*entry.findall(cause), *entry.findall(others))]
    if not ended:
        return "the ranks failed before torchrun could tell which"
    blamed = {int(rank) for rank in re.findall(r"rank (\d+) (?:failed: |died|did not answer)", output)}
    rank, code = min(ended, key=lambda found: (not _died(found[1]), found[0] not in blamed))
    return (
        f"rank {rank} died of {signal.Signals(-code).name}" if code < 0 else f"rank {rank} failed with exit code {code}"
    )


def _died(exit_code: int) -> bool:
    """Of a signal other than the one torchrun ends ranks with."""
    return exit_code < 0 and -exit_code != signal.SIGTERM


def _of_ranks(output: str) -> str:
    """What the ranks wrote, without torchrun's log lines and its traceback of itself.

    A rank may still speak after torchrun says that it ends the others; after it says who failed comes the traceback.
    """
    lines = output.split("\n")
    end = next((i for i, line in enumerate(lines) if TORCHRUN_SAYS in line and "exitcode" in line), len(lines))
    return "\n".join(line for line in lines[:end] if TORCHRUN_SAYS not in line)


def _command(module: Sequence[str], ranks: int) -> list[str]:
    torchrun = str(Path(__file__).with_name("torchrun.py"))
    return [
        sys.executable, "-P", torchrun, "--nnodes", "1", "--nproc-per-node", str(ranks),
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1", "-m", *module,
    ]  # fmt: skip


def _environment(ranks: int) -> dict[str, str]:
    """The ranks import what this process can import, share the cores, and talk over loopback."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    given = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks)),
        "GLOO_SOCKET_IFNAME": loopback,
        "PYTHONUNBUFFERED": "1",
    }
    return {**given, **os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def _read(process: subprocess.Popen[str], tail: deque[str], echo: Callable[[str], None]) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            tail.append(line.rstrip("\n"))
            echo(line.rstrip("\n"))


def _end(process: subprocess.Popen[str]) -> None:
    """End torchrun, which ends its ranks; by force where it does not."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _text(tail: deque[str]) -> str:
    return "\n".join(tail)
