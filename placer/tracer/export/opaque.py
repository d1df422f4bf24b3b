"""Parts of a model that cannot be exported: each becomes one call of `placer::opaque`, which runs the part itself.

    placer::opaque(inputs, state, name) -> results        inputs: tensors; state: the part's parameters and buffers

While a model is exported (`calling`), the forward of each part is replaced by that call. On fake and meta tensors the
call only has the shapes of its results; they, the FLOPs and the bytes kept for backward come from trying the part
(`opaque_trials`) at both row counts of the export. On real tensors it runs the part with its own autograd, so that
nothing differs.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree

from placer.errors import CaptureError, ExecutionError, UncapturableError, UsageError, near_names
from placer.graph import Graph
from placer.io.one_device import as_on_one_device
from placer.rules.opaque import OpaqueCost, is_part, part_name
from placer.tracer.export.modes import literals_unheard
from placer.tracer.export.opaque_trials import HERE, OpaquePart, PartError, arguments_of, rows_of, try_part
from placer.tracer.export.state.called_by_state import called_with
from placer.tracer.export.torchs_own.saved import without_saved_hooks
from placer.tracer.selections.selected import is_selected, refused

_PARTS: dict[str, OpaquePart] = {}
_BOUND = itertools.count()


def _such_as(name: str, modules: Mapping[str, nn.Module]) -> str:
    """Names that may have been meant."""
    close = near_names(name, [one for one in modules if one])
    return f"it has {', '.join(close)}" if close else "it has none"


@contextlib.contextmanager
def calling(model: nn.Module, parts: Mapping[str, OpaqueCost]) -> Iterator[None]:
    """While this lasts the parts of `model` are opaque. Raises UsageError for a name that is no submodule."""
    modules = dict(model.named_modules())
    replaced: list[nn.Module] = []
    try:
        for name, cost in parts.items():
            if name not in modules or not name:
                raise UsageError(f"the model has no submodule {name!r} that could be opaque; {_such_as(name, modules)}")
            module = modules[name]
            state = (*dict(module.named_parameters()), *dict(module.named_buffers()))
            _PARTS[name] = OpaquePart(name=name, module=module, state=state, cost=cost)
            object.__setattr__(module, "forward", _caller(_PARTS[name]))
            replaced.append(module)
        yield
    finally:
        for module in replaced:
            vars(module).pop("forward", None)


def bind(graph: fx.Graph, model: nn.Module, names: tuple[str, ...]) -> None:
    """Have a traced graph run the parts `names` by the code of `model`, whatever is captured so named later."""
    modules, number = dict(model.named_modules()), next(_BOUND)
    for name in names:
        _PARTS[f"{name}#{number}"] = replace(_PARTS[name], module=modules[name])
    for node in graph.nodes:
        if node.target is torch.ops.placer.opaque.default:
            inputs, state, name = node.args
            node.args = (inputs, state, f"{name}#{number}")


@contextlib.contextmanager
def part_in_mode(name: str, training: bool) -> Iterator[None]:
    """In the body the modules of an opaque part train, those that the model itself lets train, or evaluate."""
    part = _PARTS.get(name)
    modes = {} if part is None else {module: module.training for module in part.module.modules()}
    training_of = () if part is None else part.training
    try:
        for module, trains in zip(modes, training_of, strict=False):
            module.training = training and trains
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def part_buffers(name: str) -> tuple[str, ...]:
    """The buffers of an opaque part, which are the last of its state."""
    part = _PARTS.get(name)
    return () if part is None else part.state[len(dict(part.module.named_parameters())) :]


def part_writes(name: str) -> frozenset[str]:
    """The buffers that an opaque part writes, as far as trying it showed."""
    part = _PARTS.get(name)
    return frozenset() if part is None else frozenset(part.writes)


def part_draws(name: str) -> bool:
    """Whether an opaque part draws random numbers, as far as trying it showed."""
    part = _PARTS.get(name)
    return part is not None and part.draws


def parts_of(graph: Graph) -> tuple[str, ...]:
    """The names of the opaque parts of a captured graph."""
    return tuple(dict.fromkeys(part_name(op) for _, op in graph.ops if is_part(op)))


def require_one_writer(graph: fx.Graph) -> None:
    """Raise UncapturableError where a buffer that an opaque part writes is read by another of their calls, which may
    be of another device."""
    written: dict[object, str] = {}
    calls = Counter[object]()
    for node in graph.nodes:
        if node.target is torch.ops.placer.opaque.default:
            _, state, name = node.args
            own = [held.target if held.op == "get_attr" else held for held in state]
            calls.update(set(own))
            named, writes = zip(_PARTS[name].state, own, strict=True), part_writes(name)
            written |= {held: f"{name} is opaque and writes its buffer {one}" for one, held in named if one in writes}
    for buffer, told in written.items():
        if calls[buffer] > 1:
            raise UncapturableError(
                f"{told}, which {calls[buffer]} calls of opaque parts read: on different devices each would have its "
                "own; make one part around all of them opaque"
            )


@contextlib.contextmanager
def watched(model: nn.Module) -> Iterator[list[str]]:
    """The submodules whose forward began and did not end, outermost first, as they are when something was raised."""
    inside: list[str] = []
    handles = []
    # Of copies that are tried nothing is heard. Where modules are shared torch 2.13 calls proxies of them in an export,
    # which have the attributes of the module itself.
    names = {id(vars(module)): name for name, module in model.named_modules()}

    def began(module: nn.Module, *_: object) -> None:
        if id(vars(module)) in names:
            inside.append(names[id(vars(module))])

    def ended(module: nn.Module, *_: object) -> None:
        if id(vars(module)) in names:
            inside.pop()

    for module in model.modules():
        handles += [module.register_forward_pre_hook(began), module.register_forward_hook(ended)]
    try:
        yield inside
    finally:
        for handle in handles:
            handle.remove()


def _caller(part: OpaquePart) -> Callable[..., object]:
    """What stands for the part's forward while a model is exported."""

    def forward(*arguments: object, **keywords: object) -> object:
        leaves, call = _pytree.tree_flatten((arguments, keywords))
        if any(map(is_selected, leaves)):
            refused(f"{part.name}, which is opaque, and not looked into")
        inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        constants = tuple(HERE if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
        trailing = tuple(tuple(tensor.shape[1:]) for tensor in inputs)
        if not inputs:
            raise PartError(
                f"{part.name} takes no tensor, and cannot be opaque; make a part around it opaque", part.name
            )
        if part.call is not None and (part.call, part.constants, part.trailing) != (call, constants, trailing):
            raise PartError(
                f"{part.name} is called with other arguments each time, and cannot be opaque; make a part around it "
                "opaque", part.name,
            )  # fmt: skip
        if any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in inputs):
            raise PartError(
                f"{part.name} is called under torch.vmap or another transform of torch.func, and cannot be opaque by "
                "itself; make a part around it opaque", part.name,
            )  # fmt: skip
        part.call, part.constants, part.trailing = call, constants, trailing
        with literals_unheard():
            try_part(part, inputs)
        own = dict((*part.module.named_parameters(), *part.module.named_buffers()))
        made = torch.ops.placer.opaque(inputs, [own[name] for name in part.state], part.name)
        assert part.form is not None
        left = iter(made)
        return _pytree.tree_unflatten([next(left) if is_tensor else None for is_tensor in part.tensors], part.form)

    return forward


def _opaque(inputs: list[torch.Tensor], state: list[torch.Tensor], name: str) -> list[torch.Tensor]:
    """The operator."""
    return run_part(inputs, state, name)[0]


def run_part(
    inputs: list[torch.Tensor], state: list[torch.Tensor], name: str
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What an opaque part gives, shapes on fake and meta tensors, and its state after: what it writes in place is that
    of `state`, what it assigns anew another tensor."""
    part = _PARTS.get(name)
    if part is None:
        raise CaptureError(f"the opaque part {name} is not known in this process; capture its model first")
    if any(tensor.is_meta or isinstance(tensor, FakeTensor) for tensor in (*inputs, *state)):
        trains = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*inputs, *state))
        return list(_Shapes.apply(name, trains, *inputs, *state)), state  # type: ignore[no-untyped-call]
    arguments, keywords = arguments_of(part, inputs)
    own = dict(zip(part.state, state, strict=True))
    with as_on_one_device(), contextlib.nullcontext() if part.way.hooks else without_saved_hooks():
        made = called_with(part.module, own, (arguments, keywords))
    results = [leaf for leaf in _pytree.tree_leaves(made) if leaf is not None]
    _require_planned(part, rows_of(inputs), results)
    return results, list(own.values())


def _require_planned(part: OpaquePart, rows: int, results: list[torch.Tensor]) -> None:
    """Raise ExecutionError where a call gives tensors of other sizes than trying the part did: the graph behind it has
    branches, divisions and messages of those. Of one number of rows that was tried no line tells others."""
    if rows not in part.tried and len(part.tried) < 2:
        return
    planned, found = part.results(rows).shapes, tuple(tuple(result.shape) for result in results)
    if found != planned:
        raise ExecutionError(
            f"{part.name.partition('#')[0]} is opaque and gave tensors of {found} for the numbers of this step, where "
            f"the plan knows of {planned}; pad them to one size, whatever the numbers, and plan again"
        )


class _Shapes(torch.autograd.Function):
    """Results of the right shapes, gradients of the right shapes, and as many bytes kept between."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, name: str, trains: bool, *tensors: torch.Tensor) -> object:
        found = _PARTS[name].results(rows_of(tensors))
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


_LIBRARY = torch.library.Library("placer", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("opaque(Tensor[] inputs, Tensor[] state, str name) -> Tensor[]")  # type: ignore[no-untyped-call]
_LIBRARY.impl("opaque", _opaque, "CompositeImplicitAutograd")  # type: ignore[no-untyped-call]
