"""The instructions of a rank: compute, send, receive, reduce, update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from placer.meshes import Ranges
from placer.program.ways import Way
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
    messages from one rank to another. `rows` are the first and last (exclusive) row of the microbatch that it carries;
    `cuts` the ranges of each whole value that it carries, () where all that both ranks hold of those rows (and () at
    all where that is so of each).
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
    rows: tuple[int, int]
    cuts: tuple[Ranges, ...] = ()
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
    that it may run beside the Compute it follows. `dtype`: of its elements. `way`: how ranks on accelerators and on
    CPUs do it together; None where one library does."""

    kind: Literal["all_reduce", "all_gather", "reduce_scatter"]
    engine: Engine
    purpose: Literal["gradients", "parameters", "parts", "tied", "norm", "loss"]
    ranks: tuple[int, ...]
    bytes: int
    stage: int = -1
    unit: str = ""
    overlaps: bool = False
    dtype: str = ""
    way: Way | None = None


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
