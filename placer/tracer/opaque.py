"""Parts of a model that cannot be exported: each becomes one call of `placer::opaque`, which runs the part itself.

    placer::opaque(inputs, state, name) -> results        inputs: tensors; state: the part's parameters and buffers

While a model is exported (`calling`), the forward of each part is replaced by that call. On fake and meta tensors the
call only has the shapes of its results; they, the FLOPs and the bytes kept for backward come from running a copy of the
part with random weights on zeros of the inputs' shapes, on this machine, at both row counts of the export, and a
straight line through them. On real tensors it runs the part with its own autograd, so that nothing differs.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode

from placer.errors import CaptureError, UsageError
from placer.graph import Graph
from placer.rules.opaque import TARGET, Counted, OpaqueCost, state_cost
from placer.usercode import said

# How placer's and torch 2.13's errors name what only running can tell.
_NO_EXPORT = (
    "do not depend on the values", "fake impl", "fake kernel", "Meta tensors", "meta tensor", "no meta",
    "'Meta' backend", "FakeTensor",
)  # fmt: skip
SEED = 0
RUNS = 5
# Half-width of the random weights that a part is tried with.
SCALE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What running a part showed: shapes and types of its results, FLOPs, bytes kept beside its state, forward seconds.

    Seconds are those of this machine, the least of some runs.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    forward_flops: int
    backward_flops: int
    kept: int
    seconds: float = 0.0


@dataclass(slots=True)
class Part:
    """A part that is being captured or run: the module that has its code, how it is called, what trying it showed."""

    name: str
    module: nn.Module
    state: tuple[str, ...]
    cost: OpaqueCost
    call: _pytree.TreeSpec | None = None
    constants: tuple[object, ...] = ()
    trailing: tuple[tuple[int, ...], ...] = ()
    single: bool = True
    tried: dict[int, Tried] = field(default_factory=dict)

    def results(self, rows: int) -> Tried:
        """What a call whose first input has `rows` rows gives: on the line through what was tried."""
        if rows in self.tried:
            return self.tried[rows]
        (low, one), (high, other) = sorted(self.tried.items())[:2] if len(self.tried) > 1 else (self._only(),) * 2

        def at(first: int, second: int) -> int:
            return first if low == high else first + (second - first) * (rows - low) // (high - low)

        return Tried(
            shapes=tuple(tuple(map(at, first, second)) for first, second in zip(one.shapes, other.shapes, strict=True)),
            dtypes=one.dtypes,
            forward_flops=at(one.forward_flops, other.forward_flops),
            backward_flops=at(one.backward_flops, other.backward_flops),
            kept=at(one.kept, other.kept),
        )

    def _only(self) -> tuple[int, Tried]:
        return next(iter(self.tried.items()))


_PARTS: dict[str, Part] = {}


@contextlib.contextmanager
def calling(model: nn.Module, parts: Mapping[str, OpaqueCost]) -> Iterator[None]:
    """While this lasts the parts of `model` are opaque. Raises UsageError for a name that is no submodule."""
    modules = dict(model.named_modules())
    replaced: list[nn.Module] = []
    try:
        for name, cost in parts.items():
            if name not in modules or not name:
                raise UsageError(f"the model has no submodule {name!r} that could be opaque; name one as in h.3.mlp")
            module = modules[name]
            state = (*dict(module.named_parameters()), *dict(module.named_buffers()))
            _PARTS[name] = Part(name=name, module=module, state=state, cost=cost)
            object.__setattr__(module, "forward", _caller(_PARTS[name]))
            replaced.append(module)
        yield
    finally:
        for module in replaced:
            vars(module).pop("forward", None)


def bind(model: nn.Module, names: tuple[str, ...]) -> None:
    """From now on the parts `names` run the code of `model`."""
    modules = dict(model.named_modules())
    for name in names:
        _PARTS[name].module = modules[name]


def parts_of(graph: Graph) -> tuple[str, ...]:
    """The names of the opaque parts of a captured graph."""
    target = f"{TARGET.replace('::', '.')}."
    names = (ast.literal_eval(op.arguments.rpartition(", ")[2]) for _, op in graph.ops if op.target.startswith(target))
    return tuple(dict.fromkeys(names))


@contextlib.contextmanager
def watched(model: nn.Module) -> Iterator[list[str]]:
    """The submodules whose forward began and did not end, outermost first, as they are when something was raised."""
    inside: list[str] = []
    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda *_, own=name: inside.append(own)))
        handles.append(module.register_forward_hook(lambda *_: inside.pop() and None))
    try:
        yield inside
    finally:
        for handle in handles:
            handle.remove()


def unexportable(error: BaseException) -> bool:
    """Whether an export failed for what a part does with values, or for an operator without shapes of its own."""
    text = str(error)
    return any(sign in text for sign in _NO_EXPORT)


def _caller(part: Part) -> Callable[..., object]:
    """What stands for the part's forward while a model is exported."""

    def forward(*arguments: object, **keywords: object) -> object:
        leaves, call = _pytree.tree_flatten((arguments, keywords))
        inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        constants = tuple(_HERE if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
        trailing = tuple(tuple(tensor.shape[1:]) for tensor in inputs)
        if not inputs:
            raise CaptureError(f"{part.name} takes no tensor, and cannot be opaque; make a part around it opaque")
        if part.call is not None and (part.call, part.constants, part.trailing) != (call, constants, trailing):
            raise CaptureError(
                f"{part.name} is called with other arguments each time, and cannot be opaque; make a part around it "
                "opaque"
            )
        part.call, part.constants, part.trailing = call, constants, trailing
        _try(part, inputs)
        own = dict((*part.module.named_parameters(), *part.module.named_buffers()))
        made = torch.ops.placer.opaque(inputs, [own[name] for name in part.state], part.name)
        return made[0] if part.single else tuple(made)

    return forward


def _try(part: Part, inputs: list[torch.Tensor]) -> None:
    """Run a copy of the part on this machine once for this number of rows; tell the rules what it costs."""
    rows = _rows(inputs)
    if rows in part.tried:
        return
    with _disable_current_modes(), torch.random.fork_rng(devices=()):
        torch.manual_seed(SEED)
        try:
            part.tried[rows] = _run(part, inputs)
        except Exception as error:
            raise CaptureError(
                f"{part.name} is to be opaque, and running it on zeros to see what it gives raised {said(error)}; "
                "make a part around it opaque"
            ) from error
    first, other = sorted(part.tried)[0], sorted(part.tried)[-1]
    state_cost(part.name, _counted(part, first, other))


def _run(part: Part, inputs: list[torch.Tensor]) -> Tried:
    module = _real(part.module)
    given = [
        torch.zeros(tuple(t.shape), dtype=t.dtype).requires_grad_(t.is_floating_point() and t.requires_grad)
        for t in inputs
    ]
    own = {t.untyped_storage()._cdata for t in (*module.parameters(), *module.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage()._cdata not in own:
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with FlopCounterMode(display=False) as forward, torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        arguments, keywords = _arguments(part, given)
        made = module(*arguments, **keywords)
    results = [made] if isinstance(made, torch.Tensor) else list(made)
    if not all(isinstance(result, torch.Tensor) for result in results):
        raise TypeError(f"it returns a {type(made).__name__}; an opaque part returns a tensor or a tuple of tensors")
    part.single = isinstance(made, torch.Tensor)
    trained = [result for result in results if result.requires_grad]
    size = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    with FlopCounterMode(display=False) as backward:
        if trained:
            torch.autograd.backward(trained, [torch.ones_like(result) for result in trained])
    return Tried(
        shapes=tuple(tuple(result.shape) for result in results), dtypes=tuple(result.dtype for result in results),
        forward_flops=forward.get_total_flops(), backward_flops=backward.get_total_flops(), kept=size,
        seconds=_timed(part, module, given) if part.cost.timed else 0.0,
    )  # fmt: skip


def _timed(part: Part, module: nn.Module, given: list[torch.Tensor]) -> float:
    """The least of some runs, in seconds."""
    arguments, keywords = _arguments(part, given)
    found = []
    for _ in range(RUNS):
        began = time.perf_counter()
        module(*arguments, **keywords)
        found.append(time.perf_counter() - began)
    return min(found)


def _real(module: nn.Module) -> nn.Module:
    """A copy with small random weights on the CPU."""
    made = copy.copy(module)
    memo: dict[int, object] = {id(t): _filled(t) for t in (*module.parameters(), *module.buffers())}
    forward = vars(module).pop("forward")
    try:
        made = copy.deepcopy(module, memo)
    finally:
        object.__setattr__(module, "forward", forward)
    return made


def _filled(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(tuple(tensor.shape), dtype=tensor.dtype)
    if made.is_floating_point():
        made.uniform_(-SCALE, SCALE)
    return nn.Parameter(made, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


def _counted(part: Part, low: int, high: int) -> Counted:
    """The stated cost, or the line through what was counted."""
    cost, seconds = part.cost, None
    if cost.timed or cost.seconds is not None:
        seconds = (0.0, cost.seconds) if cost.seconds is not None else _line(part, low, high)
    if cost.flops is not None:
        return Counted(forward=(cost.fixed, cost.flops), backward=(2 * cost.fixed, 2 * cost.flops), seconds=seconds)
    pairs = [
        (getattr(part.tried[low], name), getattr(part.tried[high], name))
        for name in ("forward_flops", "backward_flops")
    ]
    each = [(second - first) // (high - low) if high > low else 0 for first, second in pairs]
    lines = [(first - slope * low, slope) for (first, _), slope in zip(pairs, each, strict=True)]
    return Counted(forward=lines[0], backward=lines[1], seconds=seconds)


def _line(part: Part, low: int, high: int) -> tuple[float, float]:
    """Seconds that grow with the rows, from nothing: so few rows tell no slope."""
    return 0.0, part.tried[high].seconds / max(1, high)


def _rows(inputs: list[torch.Tensor] | tuple[torch.Tensor, ...]) -> int:
    return int(inputs[0].shape[0]) if inputs[0].dim() else 1


def _arguments(part: Part, inputs: list[torch.Tensor]) -> tuple[tuple[object, ...], dict[str, object]]:
    """The call's arguments with `inputs` in the places of its tensors."""
    assert part.call is not None
    left = iter(inputs)
    leaves = [next(left) if leaf is _HERE else leaf for leaf in part.constants]
    arguments, keywords = _pytree.tree_unflatten(leaves, part.call)
    return arguments, keywords


def _opaque(inputs: list[torch.Tensor], state: list[torch.Tensor], name: str) -> list[torch.Tensor]:
    """The operator: shapes on fake and meta tensors, the part itself on real ones."""
    part = _PARTS.get(name)
    if part is None:
        raise CaptureError(f"the opaque part {name} is not known in this process; capture its model first")
    if any(tensor.is_meta or isinstance(tensor, FakeTensor) for tensor in (*inputs, *state)):
        trains = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*inputs, *state))
        return list(_Shapes.apply(name, trains, *inputs, *state))  # type: ignore[no-untyped-call]
    arguments, keywords = _arguments(part, inputs)
    made = torch.func.functional_call(part.module, dict(zip(part.state, state, strict=True)), arguments, keywords)
    return [made] if isinstance(made, torch.Tensor) else list(made)


class _Shapes(torch.autograd.Function):
    """Results of the right shapes, gradients of the right shapes, and as many bytes kept between."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, name: str, trains: bool, *tensors: torch.Tensor) -> object:
        found = _PARTS[name].results(_rows(tensors))
        device = tensors[0].device
        if trains:
            ctx.save_for_backward(torch.empty(found.kept, dtype=torch.uint8, device=device))
        ctx.tensors = [(t.shape, t.dtype, t.device, t.requires_grad) for t in tensors]  # type: ignore[attr-defined]
        made = [
            torch.empty(shape, dtype=dtype, device=device)
            for shape, dtype in zip(found.shapes, found.dtypes, strict=True)
        ]
        fixed = [result for result in made if not result.is_floating_point()]
        ctx.mark_non_differentiable(*fixed)
        return tuple(made)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *_: torch.Tensor) -> object:
        wanted = ctx.tensors  # type: ignore[attr-defined]
        made = (torch.zeros(s, dtype=dtype, device=d) if needs else None for s, dtype, d, needs in wanted)
        return None, None, *made


# Stands for a tensor among the leaves of a call.
_HERE = object()
_LIBRARY = torch.library.Library("placer", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("opaque(Tensor[] inputs, Tensor[] state, str name) -> Tensor[]")  # type: ignore[no-untyped-call]
_LIBRARY.impl("opaque", _opaque, "CompositeImplicitAutograd")  # type: ignore[no-untyped-call]
