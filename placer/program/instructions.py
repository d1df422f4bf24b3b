"""The instructions of a rank: compute, send, receive, reduce, update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from placer.schedule import Action

Engine = Literal["placer", "ddp", "fsdp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Run `action` on `rows` rows."""

    action: Action
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A point-to-point transfer of the values `values` (global references) of a microbatch between two stages.

    kind `activation` goes from the producing stage to the consuming one, `gradient` back: the gradients of `values`.
    `source_stage` is the stage of the rank that sends and `target_stage` that of the rank that receives, for both
    kinds. `sizes` are bytes, one per value, as are `shapes` and `dtypes`; `tag` is unique within a step for all
    messages of a replica.
    """

    direction: Literal["send", "receive"]
    kind: Literal["activation", "gradient"]
    peer: int
    source_stage: int
    target_stage: int
    microbatch: int
    values: tuple[str, ...]
    sizes: tuple[int, ...]
    tag: int
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of all values."""
        return sum(self.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective of `ranks` over `bytes` (of the full buffer). `engine` says who issues it; placer's are prescribed,
    those of DDP and FSDP2 expected. `purpose`: gradients, parameters, parts (of gradients, summed over the devices of a
    replica), tied, norm, loss. `unit` names what is moved (a bucket, an FSDP unit, a tied parameter), `overlaps` says
    that it may run beside the Compute it follows. `dtype`: of its elements."""

    kind: Literal["all_reduce", "all_gather", "reduce_scatter"]
    engine: Engine
    purpose: Literal["gradients", "parameters", "parts", "tied", "norm", "loss"]
    ranks: tuple[int, ...]
    bytes: int
    stage: int = -1
    unit: str = ""
    overlaps: bool = False
    dtype: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerStep:
    """Clip and update the parameters of this rank's stages."""

    stages: tuple[int, ...]


Instruction = Compute | Message | Collective | OptimizerStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The instructions of one rank, in order; `inner` numbers the devices of its replica."""

    rank: int
    device: int
    replica: int
    stages: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    inner: int = 0
