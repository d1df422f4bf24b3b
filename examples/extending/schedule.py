"""A schedule of one's own: for each position the order of its actions, judged and timed before anything runs it.

`2F0` is stage 2, forward, microbatch 0; B is its backward. Here, forwards run in pairs: memory of two microbatches a
position, whatever their number. To stay, it is a function in placer/plans/schedule.py, its name a line of NAMES there
and of `ScheduleName` in placer/plans/plan.py, its closed form in placer/costs/timing/step.py and
placer/costs/memory/in_flight.py; the program, the simulator and the runtime follow any order that `violations` has
nothing against.
"""

from __future__ import annotations

from placer.plans.schedule import Action, ActionKind, Actions, in_flight, timetable, violations

KINDS: tuple[ActionKind, ActionKind] = ("F", "B")


def pairs(positions: int, microbatches: int) -> Actions:
    """Every position: two forwards, then their two backwards, and so on."""
    return tuple(
        tuple(
            Action(position, kind, microbatch)
            for first in range(0, microbatches, 2)
            for kind in KINDS
            for microbatch in range(first, min(first + 2, microbatches))
        )
        for position in range(positions)
    )


def main() -> None:
    """Print what the judge says, the microbatches in flight, and how long it takes."""
    schedule = pairs(positions=2, microbatches=4)
    print("broken rules:", violations(schedule, stages=2, microbatches=4) or "none")
    print("microbatches in flight:", in_flight(schedule))
    print("units of time:", max(end for _, end in timetable(schedule, stages=2).values()))


if __name__ == "__main__":
    main()
