"""WAYS: every way to train data-parallel that is compared, what it needs, and what of it is compared with what.

world        the processes it runs in: `ranks` are forked and find each other by gloo; others as in `worlds`, those
             of `mpi` started by mpirun
one_process  the whole batch in one process, which has as many threads as others have processes
modules      what must be importable, and what installs it
without      the way from whose seconds what communication adds is counted: same rows and library, no sums
agrees       losses are those of one process; else it changes the mathematics, or trains each process by itself
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from torch import distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # torch exports it unsaid

from placer.runtime.bench.parallel.engines import Horovod, Placer, Zero1, Zero2
from placer.runtime.bench.parallel.mpi_ways import MpiRing
from placer.runtime.bench.parallel.tensorflow_ways import mirrored, multi_worker, unreduced
from placer.runtime.bench.parallel.torch_ways import Alone, Ddp, Fsdp2, LocalSgd, ParameterServer, Threads, Whole
from placer.runtime.bench.parallel.turn import Job, RankTurn, Trainer, take_turn
from placer.runtime.distributed.mpi.started import INSTALL, mpirun

REFERENCE, NO_SUMS, TENSORFLOW_NO_SUMS = "one process", "no communication", "TensorFlow without communication"
TENSORFLOW = "pip install tensorflow-cpu"
HOROVOD = "its 0.28.1 has no wheels and builds with torch 2.1 and newer only after its C++ standard is set to 17"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way; see above."""

    name: str
    make: Callable[[Job, int], Trainer]
    world: str = "ranks"
    one_process: bool = False
    module: str = "torch"
    install: str = ""
    without: str = NO_SUMS
    agrees: bool = True

    @property
    def missing(self) -> str:
        """Why it cannot be tried; empty where it can."""
        if importlib.util.find_spec(self.module) is None:
            return f"the module {self.module} is not installed ({self.install})"
        if self.world == "mpi" and not mpirun():
            return f"no mpirun beside this Python or on the PATH ({self.install})"
        return ""


WAYS: tuple[Way, ...] = (
    Way(name=REFERENCE, make=Whole, world="alone", one_process=True, without=""),
    Way(name=NO_SUMS, make=Alone, without="", agrees=False),
    Way(name="DDP", make=Ddp),
    Way(name="DataParallel", make=Threads, world="alone", one_process=True, without=""),
    Way(name="FSDP2", make=Fsdp2),
    Way(name="parameter server", make=ParameterServer),
    Way(name="local SGD", make=LocalSgd, agrees=False),
    Way(name="placer", make=Placer),
    Way(name="DeepSpeed ZeRO 1", make=Zero1, world="deepspeed", module="deepspeed", install="pip install deepspeed"),
    Way(name="DeepSpeed ZeRO 2", make=Zero2, world="deepspeed", module="deepspeed", install="pip install deepspeed"),
    Way(name="Horovod", make=Horovod, world="horovod", module="horovod", install=HOROVOD),
    Way(
        name=TENSORFLOW_NO_SUMS, make=unreduced, world="tensorflow alone", module="tensorflow", install=TENSORFLOW,
        without="", agrees=False,
    ),
    Way(
        name="TensorFlow Mirrored", make=mirrored, world="mirrored", one_process=True, module="tensorflow",
        install=TENSORFLOW, without=TENSORFLOW_NO_SUMS,
    ),
    Way(
        name="TensorFlow MultiWorkerMirrored", make=multi_worker, world="tensorflow", module="tensorflow",
        install=TENSORFLOW, without=TENSORFLOW_NO_SUMS,
    ),
    Way(name="DDP over MPI", make=Ddp, world="mpi", module="mpi4py", install=INSTALL),
    Way(name="ring all-reduce over MPI", make=MpiRing, world="mpi", module="mpi4py", install=INSTALL),
)  # fmt: skip


def way(name: str) -> Way:
    """The way of this name."""
    return next(one for one in WAYS if one.name == name)


def turn_in_team(name: str, job: Job, *, rank: int) -> RankTurn:
    """What a process of a `Team` does."""
    return take_turn(way(name).make, job, rank)


def turn_of_rank(name: str, job: Job) -> RankTurn:
    """What a rank of a `RankPool` does, which has no world where it is the only one."""
    if dist.is_initialized():
        return take_turn(way(name).make, job, dist.get_rank())
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        return take_turn(way(name).make, job, 0)
    finally:
        dist.destroy_process_group()
