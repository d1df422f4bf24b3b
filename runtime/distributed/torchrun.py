"""torch's own launcher, ended by the kernel when the process that started it ends. Run as a script, by its path: as a
module it would import all of placer first, which it does not need."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG in <sys/prctl.h>


def die_with_parent() -> None:
    """Have the kernel end this process when the one that started it ends (Linux; elsewhere nothing)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() == 1:  # the parent ended before the call
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    from torch.distributed.run import main

    die_with_parent()
    main()
