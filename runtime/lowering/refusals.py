"""What the runtime cannot run of legal plans whose replicas are several devices, said before anything starts."""

from __future__ import annotations

from collections.abc import Iterator

from placer.errors import IllegalPlanError
from placer.plans import Plan
from placer.splitting import block_split, border_state, value_state


def require_runnable(plan: Plan) -> None:
    """Raise IllegalPlanError where stages disagree about how the values between them lie."""
    found = tuple(_borders(plan))
    if found:
        listed = "\n".join(f"- {one}" for one in found)
        raise IllegalPlanError(f"the layouts of the plan's stages do not fit each other; plan again:\n{listed}")


def _borders(plan: Plan) -> Iterator[str]:
    for index, stage in enumerate(plan.stages):
        for block in plan.graph.blocks[stage.first : stage.last]:
            split = block_split(plan, index, block.kind)
            texts = ("whole",) * len(block.inputs) if split is None else split.inputs
            for reference, text in zip(block.inputs, texts, strict=True):
                if value_state(plan, reference) != border_state(text):
                    yield f"block {block.name} takes {reference} as {text}, the stage that makes it lays it otherwise"
