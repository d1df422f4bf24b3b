"""What is installed, and which machine this is: what shapes a plan besides its inputs."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version

LIBRARIES = ("placer-planner", "torch", "transformers")
MACHINE = "machine"


def versions() -> tuple[tuple[str, str], ...]:
    """The libraries that shape a plan, and this machine, as they stand in plan.json."""
    return ((MACHINE, machine()), *((name, installed(name)) for name in LIBRARIES))


def machine() -> str:
    """Tells this machine from others without naming it."""
    return digest(platform.node())


def installed(name: str) -> str:
    """The installed version of a distribution, or `none`."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def digest(text: str) -> str:
    """Sixteen characters that tell texts apart."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
