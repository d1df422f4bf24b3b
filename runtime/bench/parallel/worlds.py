"""How the processes of an engine find each other: `WORLDS[name](rank, ranks, folder)`, once in the life of a process.

folder: of this world alone; what one process chooses (a port) the others read there.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from placer.errors import ExecutionError
from placer.runtime.deepspeed.config import deepspeed

PATIENCE_SECONDS = 60.0
_KEPT: list[Any] = []


def _alone(rank: int, ranks: int, folder: Path) -> None:
    """Nobody to find."""


def _gloo(rank: int, ranks: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=ranks)


def _deepspeed(rank: int, ranks: int, folder: Path) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    _gloo(rank, ranks, folder)
    deepspeed().init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)


def _mpi(rank: int, ranks: int, folder: Path) -> None:
    """That of the processes that mpirun started, each of which has begun MPI."""
    from placer.runtime.distributed.mpi.process_group import NAME, register  # an extra

    torch.set_num_threads(1)
    register()
    dist.init_process_group(NAME, init_method=f"file://{folder / 'store'}", rank=rank, world_size=ranks)


def _mirrored(rank: int, ranks: int, folder: Path) -> None:
    """One process whose CPU is `OMP_NUM_THREADS` logical devices: as many as there are replicas."""
    tf: Any = importlib.import_module("tensorflow")
    replicas = int(os.environ["OMP_NUM_THREADS"])
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * replicas
    )


def _tensorflow(rank: int, ranks: int, folder: Path) -> None:
    ports = told(folder, rank, lambda: free_ports(ranks))
    workers = [f"127.0.0.1:{port}" for port in ports]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
    tf: Any = importlib.import_module("tensorflow")
    tf.config.threading.set_intra_op_parallelism_threads(1)


def _tensorflow_alone(rank: int, ranks: int, folder: Path) -> None:
    tf: Any = importlib.import_module("tensorflow")
    tf.config.threading.set_intra_op_parallelism_threads(1)


def _horovod(rank: int, ranks: int, folder: Path) -> None:
    (port,) = told(folder, rank, lambda: [_rendezvous(ranks)])
    os.environ.update(
        HOROVOD_RANK=str(rank), HOROVOD_SIZE=str(ranks), HOROVOD_LOCAL_RANK=str(rank), HOROVOD_LOCAL_SIZE=str(ranks),
        HOROVOD_CROSS_RANK="0", HOROVOD_CROSS_SIZE="1", HOROVOD_HOSTNAME="127.0.0.1", HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo", HOROVOD_GLOO_IFACE="lo", HOROVOD_GLOO_RENDEZVOUS_ADDR="127.0.0.1",
        HOROVOD_GLOO_RENDEZVOUS_PORT=str(port),
    )  # fmt: skip
    importlib.import_module("horovod.torch").init()


def _rendezvous(ranks: int) -> int:
    """The port of Horovod's own server, which `horovodrun` would start."""
    server = importlib.import_module("horovod.runner.http.http_server").RendezvousServer(0)
    hosts = importlib.import_module("horovod.runner.common.util.hosts")
    port: int = server.start()
    server.init(hosts.get_host_assignments([hosts.HostInfo("127.0.0.1", ranks)], ranks))
    _KEPT.append(server)
    return port


def told(folder: Path, rank: int, make: Callable[[], Sequence[int]]) -> list[int]:
    """What process 0 made, on every process. Raises ExecutionError where it does not come."""
    path = folder / "told.json"
    if rank == 0:
        path.with_suffix(".new").write_text(json.dumps(list(make())))
        path.with_suffix(".new").rename(path)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise ExecutionError(f"process 0 did not tell its ports within {PATIENCE_SECONDS:.0f} s")
        time.sleep(0.05)
    found: list[int] = json.loads(path.read_text())
    return found


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


WORLDS: dict[str, Callable[[int, int, Path], None]] = {
    "alone": _alone,
    "gloo": _gloo,
    "deepspeed": _deepspeed,
    "mpi": _mpi,
    "mirrored": _mirrored,
    "tensorflow": _tensorflow,
    "tensorflow alone": _tensorflow_alone,
    "horovod": _horovod,
}
