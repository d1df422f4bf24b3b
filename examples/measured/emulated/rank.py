"""A device of the emulated cluster, started by its node's torchrun: `-m examples.measured.emulated.rank SOCKET GROUPS`.

It enters its own control group and then runs what the program that brought the cluster up sends over the socket.
"""

from __future__ import annotations

import os
import socket
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from placer.io.processes import die_with_parent
from placer.runtime.distributed.rank_pool import serve


def main(path: str, groups: str) -> None:
    """Until the other end of the socket is closed."""
    die_with_parent()
    device = os.environ.pop("RANK")
    del os.environ["WORLD_SIZE"]  # of the devices; a plan's ranks are those that it is run on
    Path(groups, f"device{device}", "cgroup.procs").write_text(str(os.getpid()))
    with socket.socket(socket.AF_UNIX) as ours:
        ours.connect(path)
        connection = Connection(ours.detach())
    connection.send(int(device))
    serve(connection)


if __name__ == "__main__":
    main(*sys.argv[1:])
