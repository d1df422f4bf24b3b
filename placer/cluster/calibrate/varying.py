"""How much the seconds of equal steps vary on this machine, as `placer stragglers` reads it.

Every device repeats the same work while the others repeat theirs, none waiting for another: what differs from step to
step is the machine's and that of whatever else runs on it. Devices of a name are told together.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict

from placer.cluster.calibrate.machine import cpu_name, usable_cores
from placer.io.units import written
from placer.io.versions import installed

# Steps that each device repeats.
STEPS = 100


class DeviceSteps(BaseModel):
    """The seconds of each step of a device."""

    model_config = ConfigDict(frozen=True)
    name: str
    seconds: tuple[float, ...]


class MeasuredSteps(BaseModel):
    """Those of all devices, which were at work at once."""

    model_config = ConfigDict(frozen=True)
    devices: tuple[DeviceSteps, ...]


def ranks_yaml(measured: MeasuredSteps) -> str:
    """The file of ranks: a kind for each name, whose samples are those of all its devices."""
    return "\n".join(_lines(measured)) + "\n"


def _lines(measured: MeasuredSteps) -> Iterator[str]:
    yield f"name: this machine as {len(measured.devices)} devices, each at the same work at once"
    yield f"source: placer calibrate on {cpu_name()}, {usable_cores()} cores, torch {installed('torch')}"
    yield "ranks:"
    for name in dict.fromkeys(one.name for one in measured.devices):
        alike = [one for one in measured.devices if one.name == name]
        samples = ", ".join(written(float(f"{second:.4g}"), "seconds") for one in alike for second in one.seconds)
        yield f"  - name: {name!r}"
        yield f"    count: {len(alike)}"
        yield f"    samples: [{samples}]"
