"""Blocks through torch.compile: what of each block's graph computes becomes compiled segments, the rest runs as it is.

    mode, values -> [segment] -> talk to other ranks -> [segment] -> ... -> outputs

What talks to other ranks stays out of compiled code, so that every rank does it in the order of its program; so do
opaque parts, whose Python may decide by values, what counts beside the ops, and products that keep their results where
the rest runs again. Ops keep their order. A segment takes all that it reads as arguments and is known by what it does:
those of like blocks are equal, and share their code.

Compiled are functions of tensors below DDP, FSDP2 and recompute, which wrap and hook modules: so these gather, reduce
and run again as they do op by op, and parameters keep their names. A segment is compiled whole or not at all
(`fullgraph`), for each number of rows and for the sizes of what it reads. Where a size depends on values (rows that
come to a rank's experts) torch compiles once more, for any size. Dropout is placer's own, keyed by rows (`dropout`), so
that compiled code draws the same. What no gradient reaches, as opaque parts decide, has none (`told_gradients`).
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import fx, nn

from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.plans.schedule import SPLIT_BACKWARD
from placer.runtime.executor.told_gradients import Reaching, reaching, with_told_gradients
from placer.runtime.spmd import talks, varying, with_written
from placer.runtime.stages.block_code import BlockCode
from placer.runtime.stages.draws import seeded
from placer.runtime.stages.kept_results import Keeping
from placer.runtime.stages.pass_context import PassContext
from placer.runtime.stages.recompute import Tensors
from placer.runtime.stages.rewrite import next_value
from placer.runtime.stages.trained_ops import opaque_part

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

    def __init__(self, backend: str, device: torch.device, *, tells: bool = False) -> None:
        """tells: whether a value may have no gradient in some step."""
        self._backend, self._device, self._tells = backend, device, tells
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
            self._segments[segment.key] = CompiledSegment(segment, self._backend, tells=self._tells)
        return self._segments[segment.key]

    def _held(self, mode: PassContext) -> PassContext:
        """The mode with its counts as tensors: numbers differ from step to step, and would be compiled in."""
        if self._mode is None or self._mode[0] is not mode:
            counts = torch.tensor(mode.counts, dtype=torch.float64, device=self._device)
            self._mode = mode, replace(mode, counts=tuple(counts.unbind()))
        return self._mode[1]


class CompiledSegment(nn.Module):
    """A segment compiled for each way it is run."""

    def __init__(self, segment: Segment, backend: str, *, tells: bool = False) -> None:
        super().__init__()
        self._segment, self._backend, self._tells = segment, backend, tells
        self._ways: dict[Hashable, Callable[..., Tensors]] = {}
        self._reaching: dict[Hashable, Reaching] = {}

    def forward(self, mode: PassContext, *given: object) -> Tensors:
        """What the segment makes of the values it reads."""
        way = (mode.rows, torch.is_grad_enabled(), *map(self._told, given))
        if way not in self._ways:
            # Code of its own for each way: torch compiles the same code anew only a few times. What else it reads of
            # the mode it looks at itself, so that a block that runs again mostly runs the very code of its forward.
            code = fx.GraphModule(nn.Module(), self._segment.graph, "Segment")
            self._ways[way] = torch.compile(code.forward, backend=self._backend, fullgraph=True)
            if self._tells and torch.is_grad_enabled():
                self._reaching[way] = reaching(partial(code.forward, mode), given)
        run = partial(self._ways[way], mode)
        with _compiling():
            return with_told_gradients(run, self._reaching[way], given) if way in self._reaching else run(*given)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of ops. graph: takes the mode and values, gives a tuple; key: equal where two do the same; varies: whether
    sizes depend on values, so that they differ from run to run with as many rows."""

    graph: fx.Graph
    key: Hashable
    varies: bool = False


def divided(module: fx.GraphModule, runs: Callable[[Segment], nn.Module]) -> fx.GraphModule:
    """The same function as `module`, each of its segments run by what `runs` gives for it."""
    outer, root = fx.Graph(), nn.Module()
    root._modules.update(module._modules)
    root._buffers.update(module._buffers)
    known: dict[fx.Node, fx.Node] = {}
    unsized = varying(module.graph)
    for number, part in enumerate(_parts(module.graph)):
        if isinstance(part, fx.Node):
            known[part] = outer.node_copy(part, known.__getitem__)
            continue
        cut = _Extract(module, part, varies=not unsized.isdisjoint(part))
        root.add_module(f"segment{number}", runs(cut.segment()))
        made = outer.call_module(f"segment{number}", tuple(known[node] for node in (cut.mode, *cut.reads)))
        for index, node in enumerate(cut.makes):
            known[node] = outer.call_function(_item, (made, index))
    outer.lint()
    return fx.GraphModule(root, outer, type(module).__name__)


def _item(made: tuple[object, ...], index: int) -> object:
    return made[index]


def _parts(graph: fx.Graph) -> Iterator[fx.Node | list[fx.Node]]:
    """The nodes that stay as they are, and the runs between them; what is only named comes before its run."""
    run: list[fx.Node] = []
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr") or _counts(node):
            yield node
        elif node.op == "call_function" and not talks(node) and not _is_opaque(node) and not _is_result(node):
            run.append(node)
        else:
            yield from _whole(run)
            run = []
            yield node


def _whole(run: list[fx.Node]) -> Iterable[fx.Node | list[fx.Node]]:
    """A run as one where it has several ops: nothing is gained by compiling one."""
    return [run] if sum(map(_computes, run)) > 1 else run


def _computes(node: fx.Node) -> bool:
    """Whether it is more than a size, or a name for a part of a result."""
    ours = str(getattr(node.target, "__module__", "")).startswith("placer.")
    return ours or isinstance(node.target, torch._ops.OpOverload)


def _counts(node: fx.Node) -> bool:
    """Whether it makes the next value of a buffer from buffers alone, as the batches that a norm has seen."""
    return node.target is next_value and all(source.op == "placeholder" for source in node.all_input_nodes)


def _is_opaque(node: fx.Node) -> bool:
    # Those after the part are told the operator that they call; compiled, the last would count as a write.
    return node.target in (opaque_part, seeded, next_value, with_written) or isinstance(node.target, Keeping)


def _is_result(node: fx.Node) -> bool:
    """Whether it takes a result of an opaque part from their list."""
    return node.target is operator.getitem and isinstance(node.args[0], fx.Node) and _is_opaque(node.args[0])


@dataclass(slots=True)
class _Extract:
    """A run of the graph of `module`: what it reads from before it, and what of it is read behind it."""

    module: fx.GraphModule
    nodes: list[fx.Node]
    varies: bool
    reads: list[fx.Node] = field(default_factory=list)

    @property
    def mode(self) -> fx.Node:
        """The graph's first argument."""
        first: fx.Node = next(iter(self.module.graph.nodes))
        return first

    @property
    def makes(self) -> list[fx.Node]:
        """The nodes that are read behind it."""
        inside = set(self.nodes)
        return [node for node in self.nodes if any(user not in inside for user in node.users)]

    def segment(self) -> Segment:
        """As a graph of its own."""
        graph = fx.Graph()
        own: dict[fx.Node, fx.Node | None] = {self.mode: graph.placeholder("mode")}
        inside = set(self.nodes)
        for source in (source for node in self.nodes for source in node.all_input_nodes):
            if source not in own and source not in inside:
                own[source] = self._given(source, graph)
        told = []
        for number, node in enumerate(self.nodes):
            args = fx.map_arg(node.args, own.__getitem__)
            kwargs = fx.map_arg(node.kwargs, own.__getitem__)
            own[node] = graph.create_node("call_function", node.target, args, kwargs, name=f"made{number}")
            told.append((node.target, str(args), str(kwargs)))
        outputs = tuple(own[node] for node in self.makes)
        graph.output(outputs)
        return Segment(graph=graph, key=(tuple(told), str(outputs), self.varies), varies=self.varies)

    def _given(self, source: fx.Node, graph: fx.Graph) -> fx.Node | None:
        """What stands for a node before the run: nothing for an axis, as what needs it stays outside."""
        if source.op == "get_attr" and str(source.target) in self.module._modules:
            return None
        self.reads.append(source)
        return graph.placeholder(f"given{len(self.reads)}")
