"""What the runtime cannot run of plans whose replicas are several devices, said before anything starts."""

from __future__ import annotations

from collections.abc import Iterator

from placer.errors import IllegalPlanError, UsageError
from placer.plans import Plan
from placer.splitting import block_split, border_state, require_layout, value_state


def require_runnable(plan: Plan) -> None:
    """Raise IllegalPlanError with everything that keeps the plan's layouts from being run."""
    found = tuple(_degrees(plan)) or tuple(_layouts(plan)) or tuple(_borders(plan))
    if found:
        listed = "\n".join(f"- {one}" for one in found)
        raise IllegalPlanError(f"the plan's layouts cannot be run; plan again:\n{listed}")


def _degrees(plan: Plan) -> Iterator[str]:
    """All replicas have as many devices, and every stage whole replicas."""
    degrees = [stage.degree for stage in plan.stages]
    if len(set(degrees)) > 1:
        yield f"replicas have {', '.join(map(str, degrees))} devices in the stages; give all stages equally many"
    for index, stage in enumerate(plan.stages):
        if len(stage.devices) % stage.degree:
            yield f"stage {index} has {len(stage.devices)} devices for replicas of {stage.degree}"


def _layouts(plan: Plan) -> Iterator[str]:
    """Layouts exist, are for as many devices as their stages' replicas have, and fit the model."""
    for index, stage in enumerate(plan.stages):
        if stage.layout is None:
            continue
        if not 0 <= stage.layout < len(plan.layouts):
            yield f"stage {index} wants layout {stage.layout}, the plan has {len(plan.layouts)}"
        elif plan.layouts[stage.layout].degree != stage.degree:
            degree = plan.layouts[stage.layout].degree
            yield f"stage {index} has replicas of {stage.degree} devices and a layout over {degree}"
        else:
            try:
                require_layout(plan.graph, plan.layouts[stage.layout])
            except UsageError as error:
                yield str(error)


def _borders(plan: Plan) -> Iterator[str]:
    """Stages agree about the values between them."""
    for index, stage in enumerate(plan.stages):
        for number in range(stage.first, stage.last):
            block = plan.graph.blocks[number]
            split = block_split(plan, index, block.kind)
            texts = ("whole",) * len(block.inputs) if split is None else split.inputs
            for reference, text in zip(block.inputs, texts, strict=True):
                if value_state(plan, reference) != border_state(text):
                    yield f"block {block.name} takes {reference} as {text}, the stage before makes it otherwise"
