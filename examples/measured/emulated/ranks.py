"""Ranks(emulated): one torchrun per node, whose ranks are the devices of the cluster and stay for many plans."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from examples.measured.emulated.system import Emulated
from placer.errors import ExecutionError
from placer.runtime.distributed import torchrun
from placer.runtime.distributed.rank_pool import run_on

T = TypeVar("T")

PORT = 29533
START_SECONDS = 300.0
ENDING_SECONDS = 15.0
TAIL = 2000


class Ranks:
    """The devices of an emulated cluster as processes. `run(devices, function, ...)` makes some of them a world."""

    def __init__(self, emulated: Emulated) -> None:
        self.emulated = emulated
        self._folder = tempfile.TemporaryDirectory(prefix="placer-emulated-")
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._devices: dict[int, Connection] = {}

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._folder.cleanup()

    def run(self, devices: Sequence[int], function: Callable[..., T], *args: object, timeout: float) -> list[T]:
        """`function(*args)` on these devices, the first of them rank 0; their results in this order.

        Raises ExecutionError where one fails or is late; all devices are then started anew for the next call.
        """
        if not self._devices:
            self._start()
        try:
            return run_on([self._devices[device] for device in devices], function, *args, timeout=timeout)
        except ExecutionError:
            self.close()
            raise

    def close(self) -> None:
        """End the ranks, then their launchers."""
        for connection in self._devices.values():
            connection.close()
        self._devices = {}
        for node in self._nodes:
            node.terminate()
        for node in self._nodes:
            try:
                node.wait(ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                node.kill()  # its ranks die with it
                node.wait()
        self._nodes = []

    def _start(self) -> None:
        path = str(Path(self._folder.name, f"ranks-{time.monotonic_ns()}"))
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
            server.listen()
            server.settimeout(1.0)
            arguments = ("-m", "examples.measured.emulated.rank", path, str(self.emulated.group(0).parent))
            self._nodes = [
                self._torchrun(node, count, arguments)
                for node, count in enumerate(one.devices for one in self.emulated.machines.nodes)
            ]
            self._devices = self._joined(server)

    def _joined(self, server: socket.socket) -> dict[int, Connection]:
        found: dict[int, Connection] = {}
        until = time.monotonic() + START_SECONDS
        while len(found) < self.emulated.machines.size:
            if time.monotonic() > until or any(node.poll() is not None for node in self._nodes):
                raise ExecutionError(f"{len(found)} devices started; the launchers say:\n{self._logs()}")
            try:
                connection = Connection(server.accept()[0].detach())
            except TimeoutError:
                continue
            found[connection.recv()] = connection
        return found

    def _torchrun(self, node: int, processes: int, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        start = launcher(self.emulated, node, node, len(self.emulated.machines.nodes), processes, port=PORT)
        own = environment(self.emulated, node, self._folder.name)
        with self._log(node).open("wb") as log:
            return subprocess.Popen([*start, *arguments], env=own, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _log(self, node: int) -> Path:
        return Path(self._folder.name, f"node{node}.log")

    def _logs(self) -> str:
        return "\n".join(self._log(node).read_text()[-TAIL:] for node in range(len(self._nodes)))


def launcher(
    emulated: Emulated, node: int, index: int, launchers: int, processes: int, *, first: int = 0, port: int = PORT + 1
) -> tuple[str, ...]:
    """torch's launcher number `index` of some, in `node`, for so many processes; the first one is in node `first`."""
    return (
        *emulated.inside(node), sys.executable, "-P", str(torchrun.__file__),
        "--nnodes", str(launchers), "--node-rank", str(index), "--nproc-per-node", str(processes),
        "--master-addr", emulated.address(first), "--master-port", str(port),
    )  # fmt: skip


def environment(emulated: Emulated, node: int, cache: str) -> dict[str, str]:
    """What processes of a node are given; calibrations are kept in `cache`."""
    own = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": emulated.interface(node),
        "XDG_CACHE_HOME": cache,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    return {**os.environ, **own}
