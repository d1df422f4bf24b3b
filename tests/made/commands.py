"""What the tests of bad input share: a small cluster, a plan of a tiny model, a command run in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from placer.api import plan
from placer.cli import main
from placer.plans.plan import Plan

HERE = Path(__file__).resolve().parent

CLUSTER = """\
name: small
devices:
  chip:
    backend: cpu
    memory: 2 GiB
    memory_bandwidth: 10 GB/s
    rates: {float32: 50 GFLOP/s}
    launch: 5 us
    efficiency: {points: [[1 MFLOP, 50%], [1 GFLOP, 90%]]}
nodes:
  - name: host
    devices: [{kind: chip, count: 2}]
    link: {latency: 50 us, bandwidth: 2 GB/s}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    error: str


Command = Callable[..., Ended]


def command_in(folder: Path, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process, in `folder`, which sees the test models and has the cluster small.yaml."""
    patch.syspath_prepend(str(HERE))
    patch.chdir(folder)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        patch.delenv(name, raising=False)
    (folder / "small.yaml").write_text(CLUSTER)

    def run(*arguments: str) -> Ended:
        patch.setattr(sys, "argv", ["placer", *arguments])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = capture.readouterr()
        assert "Traceback" not in printed.err
        return Ended(code=code, out=printed.out, error=printed.err)

    return run


def plan_in(folder: Path) -> Plan:
    """A plan of the tiny model as two replicas, made in `folder`."""
    (folder / "small.yaml").write_text(CLUSTER)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        return plan("bad_models:tiny", str(folder / "small.yaml"), batch="8x32", strategy="data")


def write_changed(plan: Plan, **fields: object) -> None:
    """plan.json with some top-level fields replaced."""
    document = json.loads(plan.to_json())
    assert set(fields) <= set(document)
    Path("plan.json").write_text(json.dumps(document | fields))
