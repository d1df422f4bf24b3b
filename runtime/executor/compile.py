"""Blocks through torch.compile: what of each block's graph computes becomes compiled segments, the rest runs as it is.

Compiled are functions of tensors below DDP, FSDP2 and recompute, which wrap and hook modules: so these gather, reduce
and run again as they do op by op, and parameters keep their names. A segment is compiled whole or not at all
(`fullgraph`), for each number of rows and for the sizes of what it reads; blocks that do the same share it. Where a
size depends on values (rows that come to a rank's experts) torch compiles once more, for any size. Dropout is placer's
own, keyed by rows (`dropout`), so that compiled code draws the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import fx, nn

from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.plans.schedule import SPLIT_BACKWARD
from placer.runtime.executor.compiled_segments import Segment, divided
from placer.runtime.stages.block_code import BlockCode
from placer.runtime.stages.pass_context import PassContext
from placer.runtime.stages.recompute import Tensors

#: Those that give one device's results; others (cudagraphs) hand out memory that the next microbatch overwrites.
BACKENDS = ("inductor", "aot_eager")

#: Ranks wait at least so long for each other where one may be compiling.
COMPILING_SECONDS = 600.0


def patience(timeout_seconds: float, backend: str) -> float:
    """Seconds that ranks wait for each other: a rank that compiles does not answer."""
    return max(timeout_seconds, COMPILING_SECONDS) if backend else timeout_seconds


def require_compilable(plan: Plan, backend: str) -> None:
    """Raise UsageError with the reason where `backend` ("": none) cannot run the blocks of `plan`."""
    if not backend:
        return
    if backend not in BACKENDS:
        raise UsageError(f"there is no backend {backend!r} to compile with; give one of {', '.join(BACKENDS)}")
    if plan.schedule in SPLIT_BACKWARD and plan.positions > 1:
        raise UsageError(
            f"--compile was asked for, and the plan's schedule {plan.schedule} runs a backward in two parts, which "
            "compiled code has as one; plan with --pin schedule=1f1b, or leave --compile out"
        )


def require_ready(backend: str, device: torch.device, unkeyed: Sequence[str]) -> None:
    """Raise UsageError where `backend` lacks what it needs for `device`, or the ops `unkeyed` draw torch's own random
    numbers, of which compiled code draws others."""
    if backend == "inductor":
        _require_inductor(device)
    if unkeyed:
        raise UsageError(
            f"--compile was asked for, and the model draws random numbers by {', '.join(unkeyed[:3])}, of which "
            "compiled code draws others than the model; turn that off, or leave --compile out"
        )


def _require_inductor(device: torch.device) -> None:
    """Inductor writes C++ for CPUs and Triton for GPUs."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler
    from torch.utils._triton import has_triton

    try:
        found = bool(get_cpp_compiler()) if device.type == "cpu" else has_triton()
    except InvalidCxxCompiler:
        found = False
    if not found:
        wanted = "a C++ compiler (g++, or the one that CXX names)" if device.type == "cpu" else "triton"
        raise UsageError(
            f"--compile was asked for, and inductor needs {wanted}, which is not here; install it, or give "
            "--compile-backend aot_eager"
        )


class Compiler:
    """Runs the code of blocks by a backend of torch.compile, each compiled when it first runs."""

    def __init__(self, backend: str, device: torch.device) -> None:
        self._backend, self._device = backend, device
        self._blocks: dict[fx.GraphModule, fx.GraphModule] = {}
        self._segments: dict[Hashable, CompiledSegment] = {}
        self._mode: tuple[PassContext, PassContext] | None = None

    def run(self, code: BlockCode, mode: PassContext, *given: torch.Tensor | None) -> Tensors:
        """The outputs of `code`."""
        if code.module not in self._blocks:
            self._blocks[code.module] = divided(code.module, self._compiled)
        made: Tensors = self._blocks[code.module].forward(self._held(mode), *given)
        return made

    def _compiled(self, segment: Segment) -> nn.Module:
        if segment.key not in self._segments:
            self._segments[segment.key] = CompiledSegment(segment, self._backend)
        return self._segments[segment.key]

    def _held(self, mode: PassContext) -> PassContext:
        """The mode with its counts as tensors: numbers differ from step to step, and would be compiled in."""
        if self._mode is None or self._mode[0] is not mode:
            counts = torch.tensor([count or 1.0 for count in mode.counts], dtype=torch.float64, device=self._device)
            self._mode = mode, replace(mode, counts=tuple(counts.unbind()))
        return self._mode[1]


class CompiledSegment(nn.Module):
    """A segment compiled for each way it is run."""

    def __init__(self, segment: Segment, backend: str) -> None:
        super().__init__()
        self._segment, self._backend = segment, backend
        self._ways: dict[Hashable, Callable[..., Tensors]] = {}

    def forward(self, mode: PassContext, *given: object) -> Tensors:
        """What the segment makes of the values it reads."""
        way = (mode.rows, torch.is_grad_enabled(), *map(self._told, given))
        if way not in self._ways:
            # Code of its own for each way: torch compiles the same code anew only a few times. What else it reads of
            # the mode it looks at itself, so that a block that runs again mostly runs the very code of its forward.
            code = fx.GraphModule(nn.Module(), self._segment.graph, "Segment")
            self._ways[way] = torch.compile(code.forward, backend=self._backend, fullgraph=True)
        with _compiling():
            return self._ways[way](mode, *given)

    def _told(self, one: object) -> Hashable:
        """What a way to run it is known by, of a value that it reads."""
        if isinstance(one, torch.Tensor):
            return (one.requires_grad, *(() if self._segment.varies else one.shape))
        return one


@contextmanager
def _compiling() -> Iterator[None]:
    """Without what DDP asks of a compiler: a block is compiled by itself, so that buckets fill early anyway."""
    with torch._dynamo.config.patch(optimize_ddp=False), warnings.catch_warnings():
        # torch looks at `.grad` of what other segments made, and hides the warning but not where warnings are errors.
        warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
        yield
