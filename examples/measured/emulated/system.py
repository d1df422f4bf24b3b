"""Emulated(machines): a network namespace per node on a bridge, shaped links, a control group per device.

Links are shaped with tbf in both directions; a device's share of a core is a quota of its control group (cgroup v1).
Quotas are multiples of the kernel's tick: shorter ones are not kept. Groups get the kernel's largest weight, so that
other work on the machine does not take what the quota gives. Whatever was brought up is brought down at the end,
after errors and Ctrl-C too, and what an earlier run left behind before.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from examples.measured.emulated.machines import Machines
from placer.errors import UsageError

NAME = "plemu"
NETWORK = "10.99.0."
MOST_NODES = 16
# What is called, and where it comes from.
TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}
# One tick of a kernel of 250 Hz: throttling is only decided then.
TICK_MICROSECONDS = 4000
LARGEST_WEIGHT = 262144
ENDING_SECONDS = 5.0


class Emulated:
    """The machines while they are up. Raises UsageError naming what the system lacks."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self._lock: IO[str] | None = None

    def __enter__(self) -> Emulated:
        reason = obstacle()
        if reason:
            raise UsageError(f"clusters cannot be emulated here: {reason}")
        self._lock = _locked()
        try:
            _down()
            self._up()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _down()
        if self._lock is not None:
            self._lock.close()

    def address(self, node: int) -> str:
        """Where a node is reached from the others."""
        return f"{NETWORK}{node + 1}"

    def inside(self, node: int) -> tuple[str, ...]:
        """What runs the command that follows it in a node. `ip netns exec` would hide the control groups."""
        return ("nsenter", f"--net=/var/run/netns/{_namespace(node)}")

    def interface(self, node: int) -> str:
        """A node's way out."""
        return f"{NAME}v{node}"

    def group(self, device: int) -> Path:
        """The control group of a device."""
        return _groups() / f"device{device}"

    def reshape(self, machines: Machines) -> None:
        """Give every link the rate it has in `machines`, of as many nodes."""
        for node, one in enumerate(machines.nodes):
            self._shape(node, one.megabits, "change")

    def _up(self) -> None:
        _ip("link", "add", f"{NAME}br", "type", "bridge")
        _ip("link", "set", f"{NAME}br", "up")
        for node, one in enumerate(self.machines.nodes):
            self._connect(node)
            self._shape(node, one.megabits, "add")
        for device in range(self.machines.size):
            group = self.group(device)
            group.mkdir(parents=True)
            for path in (group, group.parent):
                (path / "cpu.shares").write_text(str(LARGEST_WEIGHT))
            release(group)

    def _connect(self, node: int) -> None:
        name, inner, outer = _namespace(node), self.interface(node), f"{NAME}b{node}"
        _ip("netns", "add", name)
        _ip("link", "add", inner, "type", "veth", "peer", "name", outer)
        _ip("link", "set", inner, "netns", name)
        _ip("link", "set", outer, "master", f"{NAME}br", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "addr", "add", f"{self.address(node)}/24", "dev", inner)
        _ip("-n", name, "link", "set", inner, "up")

    def _shape(self, node: int, megabits: float, verb: str) -> None:
        for prefix, device in (("-n", self.interface(node)), ("", f"{NAME}b{node}")):
            where = (prefix, _namespace(node)) if prefix else ()
            rate = ("rate", f"{megabits * 1000:.0f}kbit", "burst", "16kb", "latency", "400ms")
            _run("tc", *where, "qdisc", verb, "dev", device, "root", "tbf", *rate)


def brake(group: Path, share: float) -> None:
    """Give a control group `share` of a core from now on."""
    (group / "cpu.cfs_quota_us").write_text("-1")
    (group / "cpu.cfs_period_us").write_text(str(round(TICK_MICROSECONDS / share)))
    (group / "cpu.cfs_quota_us").write_text(str(TICK_MICROSECONDS))


def release(group: Path) -> None:
    """Let a control group have all it can get."""
    (group / "cpu.cfs_quota_us").write_text("-1")


def obstacle() -> str:
    """Why the system does not allow clusters to be emulated; empty where it does. What it tries it takes back."""
    if os.name != "posix" or not Path("/proc/mounts").exists():
        return "it takes Linux"
    if os.geteuid() != 0:
        return "it takes root, for namespaces and control groups"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return "; ".join(f"{tool} not found, install {TOOLS[tool]}" for tool in missing)
    if cgroup_controller("cpu") is None:
        return "no cpu controller of cgroup v1 is mounted (looked in /proc/mounts)"
    return _refused()


def _refused() -> str:
    """What the kernel says to a namespace, a shaped link and a group with a quota."""
    trial, group = f"{NAME}-trial", _groups().with_name(f"{NAME}-trial")
    try:
        _ip("netns", "add", trial)
        _ip("-n", trial, "link", "add", f"{NAME}t", "type", "veth", "peer", "name", f"{NAME}u")
        _run("tc", "-n", trial, "qdisc", "add", "dev", f"{NAME}t", "root", "tbf", *_TRIAL)
        group.mkdir(exist_ok=True)
        brake(group, 0.5)
    except (OSError, subprocess.CalledProcessError) as error:
        said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
        return f"the kernel refuses: {said}"
    finally:
        _ip("netns", "del", trial, check=False)
        with suppress(OSError):
            group.rmdir()
    return ""


_TRIAL = ("rate", "1mbit", "burst", "16kb", "latency", "400ms")


def _down() -> None:
    """End every process of the groups and remove groups, namespaces and the bridge, as far as they are there."""
    for group in sorted(_groups().glob("device*")):
        _end(group)
    with suppress(OSError):
        _groups().rmdir()
    for node in range(MOST_NODES):
        _ip("netns", "del", _namespace(node), check=False)
        _ip("link", "del", f"{NAME}b{node}", check=False)
    _ip("link", "del", f"{NAME}br", check=False)


def _end(group: Path) -> None:
    until = time.monotonic() + ENDING_SECONDS
    with suppress(OSError):
        release(group)
        while (processes := (group / "cgroup.procs").read_text().split()) and time.monotonic() < until:
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            time.sleep(0.05)
        group.rmdir()


def _locked() -> IO[str]:
    """A file that one run at a time holds."""
    file = Path(tempfile.gettempdir(), f"{NAME}.lock").open("w")  # noqa: SIM115 - closed with the machines
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UsageError("another run emulates a cluster on this machine; wait for it to end") from None
    return file


def _groups() -> Path:
    controller = cgroup_controller("cpu")
    if controller is None:
        raise UsageError("no cpu controller of cgroup v1 is mounted")
    return controller / NAME


def cgroup_controller(name: str) -> Path | None:
    """Where a controller of cgroup v1 is mounted; None where it is not."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup" and name in options.split(","):
            return Path(where)
    return None


def _namespace(node: int) -> str:
    return f"{NAME}{node}"


def _ip(*words: str, check: bool = True) -> None:
    _run("ip", *words, check=check)


def _run(*words: str, check: bool = True) -> None:
    subprocess.run(words, check=check, capture_output=True, text=True)
