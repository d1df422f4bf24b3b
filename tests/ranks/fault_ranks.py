"""What ranks of the fault tests run under torchrun: `python -m fault_ranks FAULT FOLDER`, six steps of a tiny plan."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from execute_plans import tiny_plan
from placer.errors import PlacerError
from placer.runtime.checkpoint.stateful import State
from placer.runtime.checkpoint.training_state import TrainingState
from placer.runtime.checkpoint.writer import CheckpointWriter
from placer.runtime.training.execute import execute
from placer.runtime.training.run_report import ExecuteOptions

STEPS = 6
STRUCK_AT = 4  # as the state of this step is about to be saved
TIMEOUT_SECONDS = 40.0


def kill() -> None:
    """The process is gone, in the first attempt."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    """The process stays and does nothing."""
    os.kill(os.getpid(), signal.SIGSTOP)


def fill() -> None:
    """No file of this process gets longer than some bytes, as on a full disk; the parent ignores SIGXFSZ."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def freeze() -> None:
    """The process stays and does nothing while it writes its part."""
    setattr(CheckpointWriter, "write", lambda self: stop())  # noqa: B010 - as the checkpoint will find it


FAULTS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "kill": kill,
    "stop": stop,
    "fill": fill,
    "freeze": freeze,
}


def main() -> None:
    fault, folder, rank = FAULTS[sys.argv[1]], Path(sys.argv[2]), os.environ["RANK"]
    real, calls = TrainingState.state_dict, 0

    def struck(self: TrainingState) -> State:
        nonlocal calls
        calls += 1
        if rank == "1" and calls == STRUCK_AT:  # a run that begins anew asks for its state only to save it
            fault()
        return real(self)

    setattr(TrainingState, "state_dict", struck)  # noqa: B010 - as the run will find it
    options = ExecuteOptions(
        steps=STEPS, data="stdlib", progress=False, checkpoint=str(folder / "checkpoints"), checkpoint_every=1,
        checkpoint_async="async" in sys.argv, timeout_seconds=TIMEOUT_SECONDS,
    )  # fmt: skip
    try:
        report = execute(tiny_plan(2, 1), options)
    except PlacerError as error:
        print(f"placer (rank {rank}): {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
    (folder / f"rank{rank}.json").write_text(json.dumps([report.first_step, *report.losses]))


if __name__ == "__main__":
    main()
