"""Runs of the loop under torchrun on two ranks: `python -m execute_runs FOLDER` leaves what they gave in FOLDER.

One start of the ranks serves all of them: importing costs more than running.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file, save_file

from execute_plans import capture_of, tiny_plan
from placer.errors import PlacerError
from placer.plans.plan import Plan, Sharding
from placer.plans.settings import RunSettings
from placer.runtime.stages.captured_model import CapturedModel
from placer.runtime.training.execute import execute
from placer.runtime.training.run_report import ExecuteOptions, RunReport

STEPS = 6
SAVED_AT = 3
# Neither interval divides SAVED_AT: the checkpoint itself has to bring the replicas together.
RELAXED: dict[str, dict[str, object]] = {
    "local": {"synchrony": "local", "average_every": 2},
    "stale": {"synchrony": "stale", "staleness": 1},
}
SHARDINGS: tuple[Sharding, ...] = ("optimizer", "gradients", "parameters")
COMPILED: dict[str, object] = {"compile": "aot_eager", "checkpoint_async": True, "checkpoint_every": 1}
CAPTURED = set[str]()
CLIPPING = {"clipped": RunSettings(), "not clipped": RunSettings(clip_norm=None)}
SPOILING = RunSettings(learning_rate=1e30, clip_norm=None)


def main() -> None:
    folder = Path(sys.argv[1])
    pipeline, data, sharded = tiny_plan(2, 2), tiny_plan(2, 1), tiny_plan(2, 1, sharding="parameters")
    whole = run(
        folder, "whole", pipeline, one_device=True, eval_every=2, log=str(folder / "log.jsonl"), decay="cosine",
        warmup_steps=2,
    )  # fmt: skip
    assert whole is not None
    for sharding in SHARDINGS:
        run(folder, sharding, tiny_plan(2, 1, sharding=sharding))
    run(folder, "undisturbed", pipeline, checkpoint=str(folder / "a"))
    run(folder, "first half", pipeline, checkpoint=str(folder / "b"), steps=SAVED_AT)
    for name, plan in {"pipeline": pipeline, "data": data, "sharded": sharded}.items():
        if is_first():
            shutil.copytree(folder / "b", folder / name)
        run(folder, f"second half, {name}", plan, checkpoint=str(folder / name))
    if is_first():
        shutil.copytree(folder / "b", folder / "compiled")
    again = replace(sharded, stages=tuple(replace(stage, recompute=True) for stage in sharded.stages))
    run(folder, "second half, compiled", again, checkpoint=str(folder / "compiled"), eval_every=1, **COMPILED)
    for name, synchrony in RELAXED.items():
        saved = {"checkpoint": str(folder / f"{name} whole"), "checkpoint_every": SAVED_AT, **synchrony}
        run(folder, f"{name}, undisturbed", data, log=str(folder / f"{name}.jsonl"), **saved)
        parted = {**saved, "checkpoint": str(folder / f"{name} parted")}
        run(folder, f"{name}, first half", data, **{**parted, "steps": SAVED_AT})
        run(folder, f"{name}, second half", data, **parted)
        run(folder, f"{name}, refused", pipeline, **synchrony)
        run(folder, f"{name}, spoilt", replace(data, settings=SPOILING), **synchrony)
    spoilt = replace(pipeline, settings=SPOILING)
    run(folder, "spoilt", spoilt, checkpoint=str(folder / "c"), checkpoint_every=1)
    run(folder, "sound", data, steps=1, save_weights=str(folder / "sound"))
    if is_first():
        spoil(folder / "sound", folder / "no numbers")
    run(folder, "begun spoilt", data, steps=1, weights=str(folder / "no numbers"))
    for name, settings in CLIPPING.items():
        rootless = tiny_plan(2, 2, model="rootless", settings=settings)
        for kind, asked in {"checkpoint": "checkpoint", "weights": "save_weights"}.items():
            run(folder, f"{name}, {kind}", rootless, steps=1, **{asked: str(folder / f"{name}, {kind}")})


def spoil(weights: Path, to: Path) -> None:
    """The weights of a folder with one that is no number, without checksums."""
    to.mkdir()
    held = load_file(weights / "model.safetensors")
    next(tensor for _, tensor in sorted(held.items()) if tensor.is_floating_point()).fill_(math.nan)
    save_file(held, to / "model.safetensors")


def is_first() -> bool:
    return os.environ["RANK"] == "0"


def run(folder: Path, name: str, plan: Plan, **options: object) -> RunReport | None:
    """Execute and leave the report, or this rank's error, in the folder."""
    given = ExecuteOptions(**{"steps": STEPS, "data": "stdlib", "progress": False, **options})  # type: ignore[arg-type]
    try:
        report = execute(plan, given, capture=_earlier(plan))
    except PlacerError as error:
        text = json.dumps([type(error).__name__, str(error)])
        (folder / f"{name}.rank{os.environ['RANK']}.error").write_text(text)
        return None
    if is_first():
        report.save(folder / f"{name}.json")
    return report


def _earlier(plan: Plan) -> CapturedModel | None:
    """The capture of the plan's model from its second run on; the first makes its own, as everybody's does."""
    name = plan.model.reference
    if name in CAPTURED:
        return capture_of(plan)
    CAPTURED.add(name)
    return None


if __name__ == "__main__":
    main()
