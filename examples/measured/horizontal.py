"""Branches on devices of their own: what plans gain by it, estimated, simulated, checked and measured.

python -m examples.measured.horizontal                   full-size models on 2, 4 and 8 equal devices and two unequal
python -m examples.measured.horizontal --models clip     one of them
python -m examples.measured.horizontal --verify          their small twins, on 2 to 4 processes, against one device
python -m examples.measured.horizontal --run             two towers on 2 processes, measured in turns

A line of the table holds the best plan found whose stages are a chain, each waiting for the one before it, against what
`placer.plan` chooses where they may be any graph: estimated milliseconds, how much shorter the step is when both are
allowed, by estimate and by simulation, and estimated over simulated seconds of both. Chains are what the exact search
finds, where that is one, and what moves find that know no other plans, as many as `placer.plan` tries where a model
branches; as there the one that takes least when it is played. Exits 1 where a plan differs from one device, or an
estimate from its simulation by more than 2%.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import placer
from examples.branching import BRANCHING, branching_batch
from examples.models import MODELS, example_batch
from placer.errors import InfeasibleError
from placer.legality import Violation
from placer.plans.plan import Plan
from placer.plans.transfers import is_chain
from placer.runtime.bench import measured_in_turns
from placer.search.evaluator import Evaluator, Score
from placer.search.problem import Problem, Solution
from placer.strategies.auto.shares import BRANCH_TRIES
from placer.strategies.local.search import best_after, search_from
from placer.strategies.moves.walk import Walk

CLUSTERS = ("h100x2", "h100x4", "h100x8", "h100x1+a100x1")
ROWS = {"two_towers": 256, "clip": 256, "inception": 64, "multi_task": 256, "dlrm": 2048, "t5_base": 32, "unet": 8}
ALLOWED = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One model on one cluster: seconds of the best chain and of the plan chosen, each over its simulation."""

    model: str
    cluster: str
    chain: float
    graph: float
    chain_over_simulated: float
    graph_over_simulated: float

    @property
    def gain(self) -> float:
        """How much shorter the step is when both are allowed."""
        return 1 - min(self.chain, self.graph) / self.chain

    @property
    def gain_simulated(self) -> float:
        """The same of simulated seconds."""
        chain, graph = self.chain / self.chain_over_simulated, self.graph / self.graph_over_simulated
        return 1 - min(chain, graph) / chain


def lines(models: Sequence[str], clusters: Sequence[str]) -> Iterator[Line]:
    """Every model on every cluster."""
    for name in models:
        factory, batch = _full(name)
        for cluster in clusters:
            exact = placer.plan(factory, cluster, batch=batch, strategy="stages")
            (chain, chained), (graph, graphed) = map(
                _seconds, (_best_chain(exact), placer.plan(factory, cluster, batch=batch))
            )
            yield Line(
                model=name, cluster=cluster, chain=chain, graph=graph, chain_over_simulated=chained,
                graph_over_simulated=graphed,
            )  # fmt: skip


class _Chains(Evaluator):
    """Scores of plans whose stages are a chain; every other is broken."""

    def score(self, plan: Plan) -> Score:
        """The score of `plan`."""
        no_chain = Violation(rule="chain", message="its stages do not each wait for the one before")
        return super().score(plan) if is_chain(plan) else Score(broken=(no_chain,))


def _best_chain(exact: Plan) -> Plan:
    """The best chain of stages: that of the exact search, if it is one, or what moves lead to that know only chains."""
    problem = Problem(
        graph=exact.graph, cluster=exact.cluster, settings=exact.settings, model=exact.model, rows=exact.rows,
        budget=BRANCH_TRIES,
    )  # fmt: skip
    walk = Walk(problem)
    walk.evaluator = _Chains(problem.costs)
    found = best_after(walk, "chains", lambda: search_from(walk, walk.seeds(horizontal=False)))
    chains = [exact] if is_chain(exact) else []
    chains += [found.plan] if isinstance(found, Solution) else []
    return min(chains, key=lambda plan: placer.simulate(plan).ledger.step_seconds)


def _seconds(plan: Plan) -> tuple[float, float]:
    """Estimated seconds of a step, and how often they are those of the simulation."""
    seconds = placer.estimate(plan).step_seconds
    return seconds, seconds / placer.simulate(plan).ledger.step_seconds


def verified(models: Sequence[str]) -> Iterator[tuple[str, int, str]]:
    """(model, processes, what `placer verify` found wrong, nothing where all is equal) of the small twins."""
    for name in models:
        factory, batch = _small(name)
        for processes in (2, 3, 4):
            try:
                plan = placer.plan(
                    factory, f"localx{processes}", batch=batch, strategy="horizontal", pins=[f"pipeline={processes}"]
                )
            except InfeasibleError as error:
                yield name, processes, f"no plan: {error}"
                continue
            with tempfile.TemporaryDirectory() as folder:
                plan.save(Path(folder, "plan.json"))
                ran = _placer("verify", str(Path(folder, "plan.json")), "--steps", "2")
            yield name, processes, "" if ran.returncode == 0 else ran.stdout[-500:] + ran.stderr[-500:]


def measured(rounds: int, steps: int) -> dict[str, tuple[float, ...]]:
    """Median seconds of a step of two towers on 2 processes, by a chain of 2 stages and by their graph, in turns."""
    batch = branching_batch(BRANCHING["two_towers"][0](), 128)
    plans = {
        name: placer.plan(
            "examples.branching:two_towers", "localx2", batch=batch, strategy=strategy,
            pins=["pipeline=2", "data=1", "microbatches=1"],
        )
        for name, strategy in (("chain", "stages"), ("graph", "horizontal"))
    }  # fmt: skip
    return measured_in_turns(plans, rounds=rounds, steps=steps)


def _placer(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "placer", *arguments], capture_output=True, text=True, check=False)


def _full(name: str) -> tuple[str, dict[str, torch.Tensor] | dict[str, tuple[int, ...]]]:
    """The factory of a model by name, and a batch."""
    if name in BRANCHING:
        return f"examples.branching:{name}", branching_batch(BRANCHING[name][0](), ROWS[name])
    length = 512 if name == "t5_base" else 12
    return f"examples.models:{name}", example_batch(MODELS[name][0](), ROWS[name], length)


def _small(name: str) -> tuple[str, dict[str, torch.Tensor] | dict[str, tuple[int, ...]]]:
    if name in BRANCHING:
        return f"examples.branching:tiny_{name}", branching_batch(BRANCHING[name][1](), 8)
    small = MODELS[name][1]
    return f"examples.models:{small.__name__}", example_batch(small(), 8)


def main(arguments: Sequence[str] | None = None) -> int:
    """What was asked; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=tuple(ROWS), default=tuple(ROWS))
    parser.add_argument("--clusters", nargs="+", default=CLUSTERS)
    parser.add_argument("--verify", action="store_true", help="run small twins against one device")
    parser.add_argument("--run", action="store_true", help="measure two towers on 2 processes")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args(arguments)
    if asked.verify:
        return _verify(asked.models)
    return _run(asked.rounds) if asked.run else _compare(asked.models, asked.clusters)


def _compare(models: Sequence[str], clusters: Sequence[str]) -> int:
    table = Table("model", "cluster", "chain ms", "chosen ms", "gain", "simulated", "chain est/sim", "chosen est/sim")
    wrong = 0
    for line in lines(models, clusters):
        wrong += any(abs(each - 1) > ALLOWED for each in (line.chain_over_simulated, line.graph_over_simulated))
        gains = (f"{gain:.1%}" for gain in (line.gain, line.gain_simulated))
        ratios = (f"{ratio:.4f}" for ratio in (line.chain_over_simulated, line.graph_over_simulated))
        table.add_row(line.model, line.cluster, f"{1e3 * line.chain:.3f}", f"{1e3 * line.graph:.3f}", *gains, *ratios)
    Console().print(table)
    return int(wrong > 0)


def _verify(models: Sequence[str]) -> int:
    wrong = 0
    for name, processes, found in verified(models):
        print(f"{name} on {processes} processes: {found or 'equal'}", flush=True)
        wrong += bool(found) and not found.startswith("no plan")
    return int(wrong > 0)


def _run(rounds: int) -> int:
    found = measured(rounds, steps=6)
    for name, seconds in found.items():
        print(f"{name}: {', '.join(f'{each:.3f}' for each in seconds)} s a step")
    ratio = statistics.median(found["graph"]) / statistics.median(found["chain"])
    print(f"graph over chain: {ratio:.3f}")
    return int(ratio >= 1)


if __name__ == "__main__":
    sys.exit(main())
