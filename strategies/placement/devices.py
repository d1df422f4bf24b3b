"""Devices of a folded problem, what its answers are in the problem's own, and the best of them so far."""

from __future__ import annotations

from dataclasses import dataclass

from placer.placement.answers import objective_of
from placer.placement.legality import Form, violations
from placer.placement.problem import Placement, PlacementProblem
from placer.strategies.placement.contraction import Folded

CLOSE = 1e-9


@dataclass(frozen=True, kw_only=True)
class DeviceCounts:
    """How many accelerators and CPUs, in the order of their numbers, and the bytes of an accelerator."""

    accelerators: int
    cpus: int
    memory: float


def device_counts(problem: PlacementProblem, folded: Folded) -> DeviceCounts:
    """The devices of the problem, no more of a kind than there are classes to give them."""
    return DeviceCounts(
        accelerators=min(problem.accelerators, folded.count),
        cpus=min(problem.cpus, folded.count),
        memory=problem.memory,
    )


def node_devices(problem: PlacementProblem, folded: Folded, devices: tuple[int, ...]) -> Placement:
    """The device of every node, given that of every class: CPUs come after all accelerators of the problem."""
    counted = device_counts(problem, folded).accelerators
    spare = problem.accelerators - counted
    return tuple(devices[label] + (spare if devices[label] >= counted else 0) for label in folded.labels)


def class_devices(problem: PlacementProblem, folded: Folded, placement: Placement) -> tuple[int, ...]:
    """The reverse: the device of every class."""
    counted = device_counts(problem, folded).accelerators
    spare = problem.accelerators - counted
    device = dict(zip(folded.labels, placement, strict=True))
    return tuple(d if d < counted else d - spare for _, d in sorted(device.items()))


@dataclass(frozen=True, kw_only=True)
class Incumbent:
    """The best legal placement of a form so far, None while there is none, and its value."""

    form: Form
    placement: Placement | None = None
    value: float = float("inf")

    def or_better(self, problem: PlacementProblem, placement: Placement | None) -> Incumbent:
        """This one, or `placement` where that is legal and better."""
        if placement is None or violations(problem, placement, self.form):
            return self
        value = objective_of(problem, placement, self.form)
        return Incumbent(form=self.form, placement=placement, value=value) if value < self.value else self

    def proved(self, bound: float, close: float = CLOSE) -> bool:
        """Whether only `close` of its value lies between it and the bound."""
        return self.placement is not None and self.value - bound <= close * self.value
