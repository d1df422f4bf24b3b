"""Plans on emulated clusters of unequal nodes and links: one-device results, and predicted beside measured seconds.

    python -m examples.measured.emulated                                    3 clusters x 3 models (an hour)
    python -m examples.measured.emulated --cluster links --model gpt        one of them

It takes Linux, root, cgroup v1 and iproute2, and says what is missing (exit 2). Of every model on every cluster the
search's own plan and one sampled plan of each kind (examples/measured/emulated/plans.py) are held to one device,
without brakes, and then timed with brakes, taking turns. Columns: the worst relative error of loss, gradients and
weights; seconds of a step by the closed form, by the simulator, and measured; measured over simulated. `order` is the
rank correlation of simulated and measured seconds. Then one link, and one node, are slowed: the plan chosen before and
the one chosen after are both timed there. The gpt's chosen plan also runs as `torchrun ... placer execute`, one
launcher per node.

Exit 1 where a plan differs from one device, or fails.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from statistics import mean

from examples.measured.emulated.command import executed_losses
from examples.measured.emulated.description import measured_on
from examples.measured.emulated.machines import CLUSTERS
from examples.measured.emulated.models import MODELS
from examples.measured.emulated.plans import Sample, sampled
from examples.measured.emulated.ranks import Ranks
from examples.measured.emulated.slowing import Slowed, slowed
from examples.measured.emulated.system import Emulated
from examples.measured.emulated.tasks import one_device_losses
from examples.measured.emulated.trial import Trial, predicted
from placer.cluster.cluster import Device
from placer.errors import ExecutionError, PlacerError
from placer.plans.plan import Plan

EXECUTED_STEPS = 3
# Losses of the same steps, each on its own weights: a few units of the last place of their type, more in 16 bits.
TOLERANCES = {"float64": 1e-9, "float32": 1e-5}
_SIXTEEN_BITS = 4 * 2**-7
REFERENCE_SECONDS = 300.0


def main(argv: list[str] | None = None) -> int:
    """Bring the clusters up one after the other, run, print, bring them down."""
    options = _options(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed, device = 0, None
    try:
        for name in options.cluster or CLUSTERS:
            with Emulated(CLUSTERS[name]) as emulated, Ranks(emulated) as ranks:
                measured = measured_on(ranks, device)
                device = _told(measured.device, device)
                print(f"\n{name}: {CLUSTERS[name]}", flush=True)
                for model in options.model or MODELS:
                    failed += _told_tables(Trial.of(ranks, measured, model), model, options)
    except PlacerError as error:
        print(f"examples.measured.emulated: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 1 if failed else 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", action="append", choices=tuple(CLUSTERS), help="clusters; all by default")
    parser.add_argument("--model", action="append", choices=tuple(MODELS), help="models; all by default")
    parser.add_argument("--seed", type=int, default=0, help="of the sampled plans")
    parser.add_argument("--steps", type=int, default=3, help="timed steps of a plan in each round")
    parser.add_argument("--rounds", type=int, default=2, help="how often the plans take turns")
    parser.add_argument("--samples", type=int, default=None, help="only so many sampled plans")
    parser.add_argument(
        "--slow", action="append", choices=(*MODELS, "none"), help="models under which links and nodes are slowed; all"
    )
    return parser.parse_args(argv)


def _told(device: Device, before: Device | None) -> Device:
    if before is None:
        rates = ", ".join(f"{rate / 1e9:.1f} GFLOP/s in {name}" for name, rate in device.rates)
        print(f"a core without brakes: {rates}; {device.launch_seconds * 1e6:.1f} us an op", flush=True)
    return device


def _told_tables(trial: Trial, model: str, options: argparse.Namespace) -> int:
    """Both tables; ranks that fail while they are timed end them, and count as one plan that fails."""
    try:
        return _tables(trial, model, options)
    except ExecutionError as error:
        print(f"FAILS: {error}", flush=True)
        return 1


def _tables(trial: Trial, model: str, options: argparse.Namespace) -> int:
    """Both tables of a model on a cluster; how many plans differ or fail."""
    began, precision = time.monotonic(), trial.problem.settings.precision
    print(f"\n{trial.machines.name} x {model} ({precision}, {len(trial.problem.graph.blocks)} blocks)", flush=True)
    chosen = Sample(kind="chosen", plan=trial.chosen())
    seed = f"{trial.machines.name} {model} {options.seed}"
    drawn = sampled(trial.problem, seed, MODELS[model].axis)[: options.samples]
    failed = _measured_table(trial, [chosen, *drawn], options)
    if model == "gpt":
        failed += _executed(trial, chosen.plan)
    if model in (options.slow or MODELS):
        print(f"{'slowed':26} {'simulated':>10} {'measured':>9} {'part':>9}  plan", flush=True)
        for one in slowed(trial, chosen.plan, options.steps, options.rounds):
            failed += not one.verdict.passed
            print(_slowed_lines(one), flush=True)
    print(f"{time.monotonic() - began:.0f} s", flush=True)
    return failed


def _measured_table(trial: Trial, samples: Sequence[Sample], options: argparse.Namespace) -> int:
    """A line for each plan; how many differ, fail or are refused, each of which is told."""
    held = []
    for sample in samples:
        verdict = trial.verified(sample.plan)
        if not verdict.passed:
            print(f"{sample.kind}: {verdict.told}; {shown(sample.plan)}", flush=True)
        if verdict.runs:
            held.append((sample, verdict))
    seconds = trial.seconds([sample.plan for sample, _ in held], options.steps, options.rounds)
    played = []
    print("kind       error     closed  simulated  measured  ratio  plan", flush=True)
    for (sample, verdict), measured in zip(held, seconds, strict=True):
        found = predicted(sample.plan)
        played.append(found.simulated)
        numbers = f"{found.estimated:9.3f}  {found.simulated:9.3f}  {measured:8.3f}  {measured / found.simulated:5.2f}"
        print(f"{sample.kind:9}  {verdict.error:5.0e}  {numbers}  {shown(sample.plan)}", flush=True)
    print(f"order {rank_correlation(played, seconds):.2f}", flush=True)
    return sum(not verdict.passed for _, verdict in held) + len(samples) - len(held)


def _executed(trial: Trial, plan: Plan) -> int:
    """The plan by the command line on every node; 0 where its losses are one device's."""
    theirs = trial.ranks.run([0], one_device_losses, plan, EXECUTED_STEPS, timeout=REFERENCE_SECONDS)[0]
    ours = executed_losses(trial.ranks.emulated, plan, EXECUTED_STEPS)
    worst = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
    equal = worst <= TOLERANCES.get(plan.settings.precision, _SIXTEEN_BITS)
    print(
        f"torchrun placer execute: {len(ours)} losses, worst error {worst:.0e}{'' if equal else ' DIFFERS'}", flush=True
    )
    return 0 if equal else 1


def _slowed_lines(one: Slowed) -> str:
    """The plan chosen before, the one chosen after, and what the change gave."""
    lines = []
    for name, side in ((f"{one.what}, before", one.before), ("after", one.after)):
        part = f"{side.part / 1e6:6.1f} MB" if one.what.startswith("link") else f"{side.part:8.0%} "
        lines.append(f"{name:26} {side.predicted:10.3f} {side.measured:9.3f} {part}  {shown(side.plan)}")
    paid = one.before.measured / one.after.measured
    lines.append(f"{'':26} {paid:.2f} times as fast, direction {one.direction}, error {one.verdict.error:.0e}")
    return "\n".join(lines if one.verdict.passed else [*lines, one.verdict.told])


def shown(plan: Plan) -> str:
    """A plan in a line: of each position its blocks, devices, shares and how they work together."""
    stages = []
    for stage in plan.stages:
        words = [f"{stage.last - stage.first} on {','.join(map(str, stage.devices))}"]
        words += [f"shares {':'.join(map(str, stage.shares))}"] * bool(stage.shares)
        words += [plan.layouts[stage.layout].shape] if stage.layout is not None else []
        words += [stage.sharding] * (stage.sharding != "none") + ["recompute"] * bool(stage.recompute)
        stages.append(" ".join(words))
    schedule = f"; {plan.schedule}" if plan.positions > 1 else ""
    return f"{' | '.join(stages)}{schedule}; {len(plan.microbatches)} microbatches"


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's: the correlation of the two orders; nan where there is no order."""
    a, b = _ranked(first), _ranked(second)
    spread = (sum((x - mean(a)) ** 2 for x in a) * sum((y - mean(b)) ** 2 for y in b)) ** 0.5
    together = sum((x - mean(a)) * (y - mean(b)) for x, y in zip(a, b, strict=True))
    return together / spread if spread else float("nan")


def _ranked(values: Sequence[float]) -> list[float]:
    """The place of each value in their order; equal ones share the mean of theirs."""
    return [mean(place for place, other in enumerate(sorted(values)) if other == value) for value in values]


if __name__ == "__main__":
    sys.exit(main())
