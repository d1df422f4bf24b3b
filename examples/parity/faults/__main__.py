"""Faults planted into the runtime, one at a time: does each change a result, and does `verify` find it?

python -m examples.parity.faults                    all of them (some minutes), at most 4 processes
python -m examples.parity.faults --only dropout     those whose name or subject holds the word

Each subject first runs without a fault: `verify` must say equal. A fault's result is held to a plain loop of its own
(`plain`): one that changes it by no more than rounding is no fault. Exit 1 where a fault is missed or changes nothing,
or `verify` finds one where none is.
"""

from __future__ import annotations

import argparse
import sys

from examples.parity.faults.running import FAULTS, Outcome, outcomes


def main() -> int:
    """Run, print the table, count."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="faults whose name or subject holds this word")
    only = parser.parse_args().only
    chosen = [fault for fault in FAULTS if only in f"{fault.name}, {fault.subject}"]
    if not chosen:
        parser.error(f"no fault holds {only!r}")
    found: list[Outcome] = []
    for outcome in outcomes(chosen):
        found.append(outcome)
        print(line(outcome), flush=True)
    planted = [outcome for outcome in found if outcome.planted]
    print(
        f"{len(planted)} faults: {sum(o.changes for o in planted)} change a result, of these "
        f"{sum(o.changes and o.caught for o in planted)} caught; {len(found) - len(planted)} subjects without a fault: "
        f"{sum(not o.caught for o in found if not o.planted)} equal"
    )
    return 0 if all(outcome.right for outcome in found) else 1


def line(outcome: Outcome) -> str:
    """One fault in one line."""
    mark = "ok  " if outcome.right else "FAIL"
    changed = f"changes by {outcome.error:.1e}" if outcome.changes else f"changes nothing ({outcome.error:.1e})"
    caught = f"caught: {outcome.named}" if outcome.caught else ("MISSED" if outcome.planted else "equal")
    return f"{mark}  {outcome.name} [{outcome.subject}]: {changed}; {caught} ({outcome.seconds:.1f} s)"


if __name__ == "__main__":
    sys.exit(main())
