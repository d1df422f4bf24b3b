"""A plan that no longer fits what it was made with is refused, with what changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from examples.parity.cases import processes
from execute_plans import two_rank_plan
from placer.errors import StalePlanError
from placer.io.versions import versions
from placer.plans.provenance import changes, made_elsewhere, require_fresh


def test_a_plan_made_here_is_fresh() -> None:
    plan = replace(two_rank_plan(), versions=versions())
    require_fresh(plan, model=plan.model.fingerprint, cluster=processes(2))
    assert not made_elsewhere(plan)


def test_the_error_says_what_changed() -> None:
    old = tuple((name, "1.0" if name == "torch" else text) for name, text in versions())
    made = two_rank_plan()
    plan = replace(made, versions=old, model=replace(made.model, fingerprint="a"))
    with pytest.raises(
        StalePlanError, match=r"the model \(fingerprint a.*the cluster.*torch \(1\.0 in the plan"
    ) as error:
        require_fresh(plan, model="b", cluster=processes(3))
    assert "plan again" in str(error.value).lower()


def test_a_patch_version_does_not_matter() -> None:
    patched = tuple((name, f"{text.split('+')[0]}.99" if name == "torch" else text) for name, text in versions())
    assert changes(replace(two_rank_plan(), versions=patched)) == ()


def test_another_machine_is_noticed() -> None:
    assert made_elsewhere(replace(two_rank_plan(), versions=(("machine", "elsewhere"),)))
