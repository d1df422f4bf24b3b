"""The instructions of a rank: compute, send, receive, reduce, update.

Programs as JSON: `placer explain PLAN --program --rank N --json` prints one, a dry run takes those of others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import JsonValue, TypeAdapter, ValidationError

from placer.errors import UsageError
from placer.io.files import parsed_json, read_text
from placer.plans.schedule import Action
from placer.program.mixed_allreduce import SumRoute
from placer.program.reductions import ServerRoute
from placer.spmd.cross_mesh import Ranges

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
    all where that is so of each). tells: whether one more tensor follows, the last of `sizes`, with a byte per value
    that says whether it has a gradient.
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
    tells: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of all that it carries."""
        return sum(self.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective of `ranks` over `bytes` (of the full buffer). `engine` says who issues it; placer's are prescribed,
    those of DDP and FSDP2 expected. `purpose`: gradients, parameters, parts (of gradients, summed over the devices of a
    replica), tied, reached (of each weight whether a gradient reached it), norm, loss. `unit` names what is moved (a
    bucket, an FSDP unit, a tied parameter), `overlaps` says that it may run beside the Compute it follows. `dtype`: of
    its elements. `way`: how ranks on accelerators and on CPUs do it together, or those on several hosts as the plan
    says; None where one library does."""

    kind: Literal["all_reduce", "all_gather", "reduce_scatter"]
    engine: Engine
    purpose: Literal["gradients", "parameters", "parts", "tied", "reached", "norm", "loss"]
    ranks: tuple[int, ...]
    bytes: int
    stage: int = -1
    unit: str = ""
    overlaps: bool = False
    dtype: str = ""
    way: SumRoute | ServerRoute | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerStep:
    """Clip and update the parameters of this rank's stages."""

    stages: tuple[int, ...]


# What ranks meet in.
Meeting = Message | Collective
Instruction = Compute | Meeting | OptimizerStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The instructions of one rank, in order; `inner` numbers the devices of its replica."""

    rank: int
    device: int
    replica: int
    stages: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    inner: int = 0

    @property
    def meetings(self) -> Iterator[Meeting]:
        """Its messages and collectives, in order."""
        return (entry for entry in self.instructions if isinstance(entry, Message | Collective))


def partners(entry: Meeting) -> tuple[int, ...]:
    """The ranks that are met, in a collective the own one among them."""
    return (entry.peer,) if isinstance(entry, Message) else entry.ranks


PROGRAM: TypeAdapter[Program] = TypeAdapter(Program)


def program_document(program: Program) -> JsonValue:
    """A program with everything it says; `load_program` reads it back equal."""
    found: JsonValue = PROGRAM.dump_python(program, mode="json")
    return found


def load_program(path: str | Path) -> Program:
    """The program of a file: what `program_document` gives, or a document that has it under `program`.

    Raises UsageError for a file that is neither.
    """
    text = read_text(path, "the program")
    document = parsed_json(text, f"{path} is not a program")
    if isinstance(document, dict) and "program" in document:
        document = document["program"]
    try:
        return PROGRAM.validate_python(document, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(
            f"{path} is not a program: {where}: {first['msg']}; make one with "
            "`placer explain plan.json --program --rank N --json`"
        ) from None
