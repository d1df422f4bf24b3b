"""Whether a plan can be run as asked, as far as both say it: no machine is looked at, and no rank is there."""

from __future__ import annotations

from placer.plans.plan import Plan
from placer.runtime.data_parallel.synchrony import require_replicas
from placer.runtime.deepspeed.limits import require_runnable
from placer.runtime.distributed.backends import require_fit
from placer.runtime.executor.compile import require_compilable
from placer.runtime.executor.evaluable import require_evaluable
from placer.runtime.measuring.expert_tokens import require_alike
from placer.runtime.training.run_report import ExecuteOptions


def require_possible(plan: Plan, options: ExecuteOptions) -> None:
    """Raise UsageError or IllegalPlanError for what no run of `plan` can do that `options` ask for."""
    require_compilable(plan, options.compile)
    require_fit(plan, options.backend)
    require_replicas(plan, options.kept_together)
    if options.engine == "deepspeed":
        require_runnable(plan)
    if options.eval_every:
        require_evaluable(plan)
    if options.save_expert_loads:
        require_alike(plan)
