"""What a person says about a run besides its plan, and the commands that all launchers start."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from placer.errors import UsageError

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
PORT = 29500  # torchrun's own


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchAsked:
    """name: of the job. plan: path of the plan on the machines. checkpoint: folder there; "" for none. image: of the
    containers. queue: partition or queue; "" for the default. time: limit as the launcher writes it. restarts: how
    often a job that failed is started again. volume: `CLAIM:/path` for Kubernetes. flags: further flags of `placer
    execute`.

    Raises UsageError for a name that is no DNS label.
    """

    name: str = "placer"
    plan: str
    checkpoint: str = ""
    image: str = ""
    queue: str = ""
    time: str = ""
    restarts: int = 0
    volume: str = ""
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"the name {self.name[:60]!r} is no name of a job; use a-z, 0-9 and -, at most 40 of them")
        for what in ("plan", "checkpoint", "image", "queue", "time", "volume"):
            if any(not character.isprintable() for character in getattr(self, what)):
                raise UsageError(f"--{what} has characters that cannot be printed; leave them out")
        if any(not character.isprintable() for flag in self.flags for character in flag):
            raise UsageError("a flag has characters that cannot be printed; leave them out")

    @property
    def execute(self) -> tuple[str, ...]:
        """`placer execute` with its flags."""
        kept = ("--checkpoint", self.checkpoint) if self.checkpoint else ()
        return ("placer", "execute", self.plan, *kept, *self.flags)

    def container_image(self, launcher: str) -> str:
        """The image. Raises UsageError where a launcher needs one and none is given."""
        if not self.image:
            raise UsageError(
                f"{launcher} starts containers; name the image with placer in it, as in --image REGISTRY/IMAGE"
            )
        return self.image

    def mount(self) -> tuple[str, str] | None:
        """The claim and the path of the volume. Raises UsageError where it is not `CLAIM:/path`."""
        if not self.volume:
            return None
        claim, colon, path = self.volume.partition(":")
        if not colon or not _NAME.fullmatch(claim) or not path.startswith("/"):
            raise UsageError(f"--volume {self.volume!r} is no volume; write CLAIM:/path")
        return claim, path


def torchrun(nodes: str, ranks: str, node_rank: str, address: str, port: str, execute: Sequence[str]) -> str:
    """The command of one node; what may be shell variables is given as shell words, the rest is quoted here."""
    return (
        f"torchrun --nnodes={nodes} --nproc-per-node={ranks} --node-rank={node_rank} --master-addr={address} "
        f"--master-port={port} --no-python {shlex.join(execute)}"
    )
