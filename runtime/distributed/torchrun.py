"""torch's own launcher, with ranks that are forked from one process that has imported placer, and ended by the kernel
when the process that started it ends. Run as a script, by its path: as a module it would import all of placer itself.

Importing torch and placer takes seconds of processor time, more than many a check of a plan: the server that ranks are
forked from does it once. It has one thread, unlike the launcher, whose threads hold locks while they fork.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
import traceback
from multiprocessing import forkserver

from placer.io.processes import collect_seldom, die_with_parent

# What the ranks of every command import, and that imports nothing of the user's. The last two come with torch's export,
# which captures the model on every rank.
PRELOADED = ["placer.io.rank_server", "placer.cli", "placer.runtime", "torch._dynamo", "torch.export._trace"]


def run_rank(module: str, *arguments: str) -> None:
    """What `python -m MODULE ARGUMENTS` does, in this process, its traceback and exit code included."""
    gc.freeze()  # what the server imported stays
    sys.path.insert(0, os.getcwd())
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Exception:  # torch would tell it in four tracebacks
        traceback.print_exc()
        sys.exit(1)


def main() -> None:
    """`torchrun OPTIONS -m MODULE ARGUMENTS`."""
    die_with_parent()
    collect_seldom()
    forkserver.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()  # it imports beside this process, which imports torch now
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    options = parse_args(sys.argv[1:])  # type: ignore[no-untyped-call]  # torch does not type it
    config, _, _ = config_from_args(options)
    config.start_method = "forkserver"
    elastic_launch(config, run_rank)(options.training_script, *options.training_script_args)


if __name__ == "__main__":
    main()
