"""launch_files(plan, launcher, asked) -> the files that start a plan; how they are submitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.targets.launchers import kubernetes, scripts
from placer.targets.launchers.asked import LaunchAsked
from placer.targets.launchers.hosts import host_groups

LAUNCHERS: Mapping[str, Callable[[scripts.Groups, LaunchAsked], dict[str, str]]] = {
    "torchrun": scripts.torchrun_files,
    "slurm": scripts.slurm_files,
    "kubeflow": kubernetes.kubeflow_files,
    "jobset": kubernetes.jobset_files,
    "pytorchjob": kubernetes.pytorchjob_files,
    "skypilot": scripts.skypilot_files,
    "ray": scripts.ray_files,
}
# The command that starts a file; torchrun's on several nodes takes words that only the person at each node knows.
SUBMIT = {
    "torchrun": ("bash",), "slurm": ("sbatch",), "kubeflow": ("kubectl", "apply", "-f"),
    "jobset": ("kubectl", "apply", "-f"), "pytorchjob": ("kubectl", "apply", "-f"),
    "skypilot": ("sky", "launch", "--yes"), "ray": ("ray", "job", "submit", "--working-dir", ".", "--", "python"),
}  # fmt: skip


def launch_files(plan: Plan, launcher: str, asked: LaunchAsked) -> dict[str, str]:
    """The text of each file by its name. Raises UsageError where the launcher cannot start this plan as it is."""
    if launcher not in LAUNCHERS:
        raise UsageError(f"there is no launcher {launcher!r}; known: {', '.join(LAUNCHERS)}")
    if plan.model.kind == "module":
        raise UsageError(
            "the plan's model was built in a process that is gone, and no rank can build it; plan with a "
            "package.module:function or a configuration"
        )
    return LAUNCHERS[launcher](host_groups(plan), asked)
