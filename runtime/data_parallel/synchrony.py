"""How the replicas of a plan keep together: after every step, or, where that is asked for, less strictly.

synchronous    every step uses the gradients of the whole global batch: the mathematics of one device
local          local SGD (Stich, ICLR 2019): each replica steps alone, and every K steps all take the average
stale          every step uses the summed gradients of S steps before: they travel while the next steps compute

The last two change the mathematics, as `relaxed_sync` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.program.told import told_weights
from placer.runtime.stages.microbatch import microbatch_rows
from placer.spmd.cross_mesh import Mesh

SynchronyKind = Literal["synchronous", "local", "stale"]

CHANGES = "changes the mathematics: losses are not those of one device"
OWN_LOSS = ", and those told are of the first replica's rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchrony:
    """A kind with its number. average_every: the steps between two averages (`local` alone). staleness: by how many
    steps the gradients of an update are late (`stale` alone; 0 is the synchronous step). own_loss: a replica tells the
    loss of its own rows (not with `synchronous`), so that none waits for another to tell that of all. Raises UsageError
    for a number that is missing, wrong or of another kind."""

    kind: SynchronyKind = "synchronous"
    average_every: int | None = None
    staleness: int | None = None
    own_loss: bool = False

    def __post_init__(self) -> None:
        _require_number(self.kind, "local", "--average-every", self.average_every, 1)
        _require_number(self.kind, "stale", "--staleness", self.staleness, 0)
        if self.own_loss and not self.relaxed:
            raise UsageError(
                "--own-loss was given with --synchrony synchronous, whose replicas wait for each other anyway; give "
                "local or stale, or leave it out"
            )

    @property
    def relaxed(self) -> bool:
        """Whether it changes the mathematics."""
        return self.kind != "synchronous"

    def __str__(self) -> str:
        if not self.relaxed:
            return "synchronous"
        if self.kind == "local":
            how = f"synchrony local, averaged every {self.average_every} steps"
        else:
            how = f"synchrony stale, gradients {self.staleness} steps late"
        return f"{how}: {CHANGES}{OWN_LOSS * self.own_loss}"


def _require_number(kind: str, owner: str, option: str, number: int | None, least: int) -> None:
    if kind != owner and number is not None:
        raise UsageError(
            f"{option} {number} was given with --synchrony {kind}, which does not read it; "
            f"give --synchrony {owner}, or leave it out"
        )
    if kind == owner and (number is None or number < least):
        found = "none" if number is None else number
        raise UsageError(
            f"--synchrony {owner} needs {option} with a number of steps from {least} on, {found} was given"
        )


SYNCHRONOUS = Synchrony()


def require_replicas(plan: Plan, synchrony: Synchrony) -> None:
    """Raise UsageError where `plan` has no replicas that could keep together in this way, with the reason."""
    reason = _refusal(plan, synchrony) if synchrony.relaxed else None
    if reason:
        raise UsageError(
            f"--synchrony {synchrony.kind} was asked for, but {reason}; it needs a plan whose stages all have the same "
            "replicas (more than one) of one device each, with unsharded state. Plan so, or leave --synchrony out"
        )


def _refusal(plan: Plan, synchrony: Synchrony) -> str | None:
    if plan.settings.offload != "none":
        return "its optimizer's state is on the host"
    if plan.settings.gradient_compression != "none":
        return f"its gradients are summed in {plan.settings.gradient_compression}, which is of synchronous steps alone"
    if told_weights(plan.graph):
        return "its model has opaque parts: which weights a step did not reach replicas tell each other step by step"
    meshes = [Mesh.of(plan, stage) for stage in plan.meshes]
    for number, stage in enumerate(plan.stages):
        if stage.sharding != "none":
            return f"stage {number} shards its {stage.sharding} over its replicas, so that none can step alone"
        if stage.degree > 1:
            return f"stage {number} splits its tensors over {stage.degree} devices of a replica"
        if plan.cluster.unlike(stage.devices):
            return f"the replicas of stage {number} are on GPUs and on CPUs, which are only summed step by step"
        if stage.replicas == 1:
            return f"stage {number} has one replica, which has nobody to differ from"
    if plan.cluster.unlike(plan.ranks):
        return "some of its stages are on GPUs and others on CPUs, whose sums between stages go step by step"
    if not all(mesh.like(meshes[0]) for mesh in meshes):
        return "its stages divide the batch over different replicas, so that no replica is a whole model"
    idle = [replica for replica in range(plan.meshes[0].replicas) if not rows_of(plan, replica)]
    if idle and (synchrony.kind == "local" or synchrony.own_loss):
        return f"replica {idle[0]} has no rows of the batch, so that it has no gradients of its own"
    return None


def rows_of(plan: Plan, replica: int) -> int:
    """Rows of the global batch that a replica of the first stage computes."""
    return sum(len(rows) for rows in microbatch_rows(plan, 0, replica))
