"""What a framework can be told, as a table, and in words what of a layout it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from placer.plans.plan import ScheduleName, Sharding
from placer.plans.settings import Precision, RunSettings
from placer.targets.frameworks.hybrid_layout import HybridLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What the framework called `framework` (with the version its files are for) has words for.

    schedules: of pipelines; none: no pipelines. degrees: which of tensor, context, expert. offloads: whether the
    optimizer's state, and nothing else, can lie on the host. selective: whether all but products can run again;
    some_layers: whether the first layers of each stage alone can.
    """

    framework: str
    schedules: frozenset[ScheduleName] = frozenset()
    shardings: frozenset[Sharding] = frozenset(("none", "optimizer", "gradients", "parameters"))
    degrees: frozenset[str] = frozenset()
    precisions: frozenset[Precision] = frozenset()
    optimizers: frozenset[str] = frozenset(("adamw", "sgd"))
    offloads: bool = False
    selective: bool = False
    some_layers: bool = False

    def lacks(self, layout: HybridLayout) -> Iterator[str]:
        """What of the layout it has no words for."""
        name = self.framework
        if layout.pipeline > 1 and not self.schedules:
            yield f"{name} has no pipelines, and the plan has {layout.pipeline} stages"
        elif layout.pipeline > 1 and layout.schedule not in self.schedules:
            yield f"{name} has no schedule {layout.schedule} (it has {', '.join(sorted(self.schedules))})"
        for degree in ("tensor", "context", "expert"):
            count = getattr(layout, degree)
            if count > 1 and degree not in self.degrees:
                yield f"{name} has no {degree} parallelism, and the plan's degree is {count}"
        if layout.data > 1 and layout.sharding not in self.shardings:
            yield f"{name} cannot shard {SHARDED[layout.sharding]}"
        if layout.recompute == "selective" and not self.selective:
            yield f"{name} runs all of a layer again or nothing, and the plan all but its products"
        if layout.recomputed is not None and not (self.some_layers and layout.recompute is True):
            yield f"{name} cannot run the first {layout.recomputed} layers of each stage again alone"
        yield from self.lacks_of(layout.settings)

    def lacks_of(self, settings: RunSettings) -> Iterator[str]:
        """What of the settings it has no words for, whatever the layout."""
        name = self.framework
        if settings.precision not in self.precisions:
            known = ", ".join(sorted(self.precisions))
            yield f"{name} does not train in {settings.precision} as the plan means it (it has {known})"
        if settings.optimizer not in self.optimizers:
            yield f"{name} has no optimizer {settings.optimizer}"
        if settings.offload == "optimizer" and not self.offloads:
            yield f"{name} cannot keep the optimizer's state alone on the host"
        if settings.gradient_compression != "none":
            yield (
                f"{name} is not told here to sum gradients in {settings.gradient_compression}; plan without "
                "--gradient-compression"
            )


SHARDED = {
    "none": "nothing: it has no replicated state",
    "optimizer": "the optimizer's state alone (ZeRO 1)",
    "gradients": "gradients and the optimizer's state, and gather parameters once a step (ZeRO 2)",
    "parameters": "parameters (ZeRO 3)",
}
