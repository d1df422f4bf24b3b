"""simulate(plan): the step of a plan, played event by event from the programs its ranks will execute."""

from placer.simulator.simulation import column_classes, simulate
from placer.simulator.timeline import Timeline

__all__ = ["Timeline", "column_classes", "simulate"]
