"""Plans of one model run in turns: every round each of them, by torchrun, so that what else a machine does hits all.

In: plans by name. Out: of each the seconds of a step, one number a round: the median step of the slowest rank.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from placer.errors import ExecutionError
from placer.plans.plan import Plan

TOLD = 800
# Of a run: its round, from 0, the name of the plan, seconds of a step.
Told = Callable[[int, str, float], object]


def measured_in_turns(
    plans: Mapping[str, Plan], *, rounds: int, steps: int, told: Told = lambda *_: None
) -> dict[str, tuple[float, ...]]:
    """Seconds of a step of each plan in each round, of which `told` hears one by one. Raises ExecutionError where a
    run fails."""
    found: dict[str, list[float]] = {name: [] for name in plans}
    with TemporaryDirectory() as folder:
        files = {name: Path(folder, f"{number}.json") for number, name in enumerate(plans)}
        for name, plan in plans.items():
            plan.save(files[name])
        order = list(plans)
        for turn in range(rounds):
            first = turn % len(order)
            for name in order[first:] + order[:first]:
                seconds = _step_seconds(files[name], plans[name].world_size, steps)
                found[name].append(seconds)
                told(turn, name, seconds)
    return {name: tuple(seconds) for name, seconds in found.items()}


def _step_seconds(plan: Path, ranks: int, steps: int) -> float:
    launched = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    run = [
        *launched,
        "--no-python",
        sys.executable,
        "-m",
        "placer",
        "execute",
        str(plan),
        "--steps",
        str(steps),
        "--json",
    ]
    ended = subprocess.run(run, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise ExecutionError(f"a plan did not run on {ranks} processes: {(ended.stderr or ended.stdout)[-TOLD:]}")
    seconds = float(json.loads(ended.stdout)["median_step_seconds"])
    return seconds
