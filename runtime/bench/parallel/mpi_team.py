"""MpiTeam: processes that mpirun starts and that stay, in a world of MPI that they join once; asked and answered as
those of a `Team`, over a socket that they find by its path."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

from placer.errors import ExecutionError
from placer.runtime.bench.parallel.team import ENVIRONMENT, serve
from placer.runtime.distributed.mpi.started import UNASKED, mpirun, told_as_torchrun_tells
from placer.runtime.distributed.rank_pool import run_on

T = TypeVar("T")

# mpirun, and an interpreter that imports mpi4py, on a machine that does other things too.
START_SECONDS = 120.0
LOOK_SECONDS = 0.5


class MpiTeam:
    """`size` processes of one thread each."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._mpirun: subprocess.Popen[bytes] | None = None
        self._ranks: dict[int, Connection] = {}

    def run(self, ranks: int, function: Callable[..., T], *args: object, timeout: float = 120.0) -> list[T]:
        """As `RankPool.run`, always on all of them."""
        try:
            self._start()
            return run_on([self._ranks[rank] for rank in range(self.size)], function, *args, timeout=timeout)
        except ExecutionError:
            self.close()
            raise

    def close(self) -> None:
        """End the processes, which are idle or stuck: mpirun ends them."""
        for connection in self._ranks.values():
            connection.close()
        if self._mpirun is not None:
            self._mpirun.terminate()
            self._mpirun.wait()
        if self._folder is not None:
            self._folder.cleanup()
        self._ranks, self._mpirun, self._folder = {}, None, None

    def _start(self) -> None:
        if self._mpirun is not None:
            return
        self._folder = tempfile.TemporaryDirectory(prefix="mpi-")
        folder = Path(self._folder.name)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(folder / "meet"))
            server.listen()
            server.settimeout(LOOK_SECONDS)
            command = [mpirun(), "-n", str(self.size), sys.executable, "-m", __spec__.name, str(folder)]
            environment = {**os.environ, **ENVIRONMENT, **UNASKED, "OMP_NUM_THREADS": "1"}
            with (folder / "said").open("wb") as said:
                self._mpirun = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
            self._meet(server, folder / "said")

    def _meet(self, server: socket.socket, said: Path) -> None:
        """A connection to each. Raises ExecutionError with what mpirun said where it ends, or they do not come."""
        assert self._mpirun is not None
        deadline = time.monotonic() + START_SECONDS
        while len(self._ranks) < self.size:
            try:
                connection = Connection(server.accept()[0].detach())
            except TimeoutError:
                if self._mpirun.poll() is not None or time.monotonic() > deadline:
                    told = " ".join(said.read_text(errors="replace").split()) or "nothing"
                    raise ExecutionError(f"mpirun did not start {self.size} processes; it said: {told}") from None
            else:
                self._ranks[connection.recv()] = connection


def member(folder: str) -> None:
    """What mpirun starts: join, tell the rank, serve."""
    told_as_torchrun_tells()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with socket.socket(socket.AF_UNIX) as found:
        found.connect(str(Path(folder, "meet")))
        connection = Connection(found.detach())
    connection.send(rank)
    serve(connection, "mpi", rank, size, folder)


if __name__ == "__main__":
    member(sys.argv[1])
