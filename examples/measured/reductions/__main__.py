"""How replicas on several hosts sum their gradients: the way that is chosen beside the fastest one measured.

    python -m examples.measured.reductions                          every case (some minutes)
    python -m examples.measured.reductions --plot reductions.svg    and a picture (needs placer-planner[plot])

It takes what `examples.measured.emulated` takes (Linux, root, cgroup v1, iproute2): nodes are network namespaces behind
shaped links. Messages and one ring are measured on the first machines; from that alone all machines are described and
every way is predicted (`placer.costs.communication.reductions`). Then the ways take turns on each of them.

Seconds are those of the slowest rank, the median of the rounds. A choice counts as fastest where its measured seconds
are within 3% of the least ones, less than what differs between repetitions. Exit 1 where fewer than 9 of 10 are.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from examples.measured.emulated.description import Measured
from examples.measured.emulated.ranks import Ranks
from examples.measured.emulated.system import Emulated
from examples.measured.reductions.cases import Summed, cases
from examples.measured.reductions.links import described
from examples.measured.reductions.outcome import ENOUGH, Outcome
from examples.measured.reductions.picture import draw
from examples.measured.reductions.tasks import ROUNDS, summed_seconds
from placer.costs.communication.reductions import reduction_seconds
from placer.errors import PlacerError, require_extra

SECONDS = 300.0


def main(argv: Sequence[str] | None = None) -> int:
    """Predict, measure, print, draw where asked."""
    options = _options(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    found = []
    try:
        if options.plot:
            require_extra("plot", "matplotlib")  # before minutes are spent on what could not be drawn
        for outcome in _measured(options.rounds, options.case):
            found.append(outcome)
            print(outcome, flush=True)
        if options.plot:
            draw(found, options.plot)
    except PlacerError as error:
        print(f"examples.measured.reductions: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    right = sum(outcome.right for outcome in found)
    print(f"chosen is the fastest measured, or within 3% of it, in {right} of {len(found)}; wanted: 9 of 10")
    return 0 if right >= ENOUGH * len(found) else 1


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often the ways take turns")
    parser.add_argument("--case", type=int, action="append", help="cases by number, from 0; all by default")
    parser.add_argument("--plot", type=Path, help="file to draw into: .svg, .png or .pdf")
    return parser.parse_args(argv)


def _measured(rounds: int, wanted: Sequence[int] | None) -> Iterator[Outcome]:
    """Every case on its machines; those of one shape are brought up once."""
    asked = [case for number, case in enumerate(cases()) if wanted is None or number in wanted]
    known: Measured | None = None
    for _, own in groupby(asked, lambda case: [node.devices for node in case.machines.nodes]):
        alike = list(own)
        with Emulated(alike[0].machines) as emulated, Ranks(emulated) as ranks:
            if known is None:
                known = described(ranks)
                print(f"{_told(known)}\n\n{Outcome.header()}", flush=True)
            for case in alike:
                emulated.reshape(case.machines)
                yield _outcome(ranks, known, case, rounds)


def _told(found: Measured) -> str:
    """What was measured before."""
    return (
        f"a message {found.latency * 1e6:.0f} us and {found.wire:.0%} of a link's rate, a core "
        f"{1e-9 / found.core_seconds:.2f} GB/s; a ring {found.collective_share:.0%} of that and "
        f"{found.setup * 1e6:.0f} us before it"
    )


def _outcome(ranks: Ranks, known: Measured, case: Summed, rounds: int) -> Outcome:
    cluster, devices = known.cluster(case.machines), tuple(range(case.machines.size))
    every = ranks.run(devices, summed_seconds, cluster, case.size, rounds, timeout=SECONDS)
    return Outcome.of(case, reduction_seconds(cluster, devices, case.size), every)


if __name__ == "__main__":
    sys.exit(main())
