"""executed_losses(...): a plan by `torchrun ... placer execute` on the nodes of an emulated cluster, without brakes.

torchrun numbers the ranks of a launcher one after the other: each run of ranks on one node gets a launcher.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from itertools import groupby
from pathlib import Path

from examples.measured.emulated.ranks import environment, launcher
from examples.measured.emulated.system import Emulated
from placer.errors import ExecutionError
from placer.plans.plan import Plan

SECONDS = 400.0
TAIL = 2000


def executed_losses(emulated: Emulated, plan: Plan, steps: int) -> tuple[float, ...]:
    """The losses it reports. Raises ExecutionError with the end of what a launcher says where one fails."""
    parts = [(node, len(list(ranks))) for node, ranks in groupby(plan.cluster.node_of[device] for device in plan.ranks)]
    with tempfile.TemporaryDirectory(prefix="placer-emulated-") as folder:
        file, report = Path(folder, "plan.json"), Path(folder, "report.json")
        plan.save(file)
        command = ("-m", "placer", "execute", str(file), "--steps", str(steps), "--report", str(report))
        logs = [Path(folder, f"launcher{index}.log") for index in range(len(parts))]
        running = []
        try:
            for index, (node, count) in enumerate(parts):
                start = launcher(emulated, node, index, len(parts), count, first=parts[0][0])
                with logs[index].open("wb") as log:
                    own = environment(emulated, node, folder)
                    running.append(subprocess.Popen([*start, *command], env=own, stdout=log, stderr=log))
            codes = [process.wait(SECONDS) for process in running]
        except subprocess.TimeoutExpired:
            codes = [1]
        finally:
            for process in running:
                process.kill()  # its ranks die with it
                process.wait()
        if any(codes):
            said = "\n".join(log.read_text(errors="replace")[-TAIL:] for log in logs)
            raise ExecutionError(f"placer execute failed on the emulated nodes:\n{said}")
        losses: list[float] = json.loads(report.read_text())["losses"]
        return tuple(losses)
