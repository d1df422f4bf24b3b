"""What an export does not see: autograd functions with a backward of their own, hooks on gradients, calls that need
values.

An export keeps what such a function's forward computes, and torch would differentiate that. So they are refused; a
submodule in which they are called can be opaque, and then runs as it is.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NoReturn
from unittest import mock

import torch
from torch import _functorch, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules._functions import BackwardHookFunction
from torch.utils import _pytree, checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.weak import WeakIdKeyDictionary

from placer.errors import UncapturableError
from placer.io.usercode import calling_line, is_of_users, is_own_module, said
from placer.tracer.export.torchs_own.autocast_regions import (
    entered_where_enabled,
    in_place_of_none,
    left_where_enabled,
    made_for_meta,
)
from placer.tracer.export.torchs_own.checkpoints import run_once
from placer.tracer.export.torchs_own.indexed import INDEXED
from placer.tracer.export.torchs_own.inference import INFERENCE
from placer.tracer.export.torchs_own.outside import dynamo_remembered, replaced_in_export
from placer.tracer.lookups.counted import counted_by_values

# Where operators that an export holds as they are have their backward.
_OPERATORS = ("torch._library.", "placer.")
_ELSEWHERE = (
    "call it in a submodule of the model, which placer can run as it is (--opaque NAME), or make it an operator of "
    "torch.library with register_fake and register_autograd"
)


# What a model asks to do otherwise where it is compiled or exported.
_ASKING = ("is_compiling", "is_dynamo_compiling", "is_exporting")
# What `torch.func.grad`, `vjp` and `jvp`, and the jacobians made of them, call.
_DERIVING = ("grad_and_value_impl", "grad_impl", "_vjp_with_argnums", "_jvp_with_argnums")
_HOOKING = ("register_hook", "register_post_accumulate_grad_hook")
# What sets or reads the state of torch's generator.
_SEEDING = ("manual_seed", "seed", "set_rng_state", "get_rng_state", "fork_rng")


class UnseenError(UncapturableError):
    """An export does not hold what the model does. module: the path of the module that does it, where it is known."""

    def __init__(self, message: str, module: str = "") -> None:
        super().__init__(message)
        self.module = module


@contextlib.contextmanager
def unseen_refused(model: nn.Module) -> Iterator[None]:
    """In the body `model` is exported. What happens in backward only raises UnseenError.

    What a checkpoint runs is exported in its place, which is the same, unless it writes a buffer: twice, as it runs
    again in backward. torch 2.13 loses what becomes of gradients inside a region in which autocast is off; no autocast
    is on in an export, so that such regions are left out.
    """
    autograd, wrappers, transforms = torch.autograd, _functorch.utils, _functorch.eager_transforms
    places: tuple[tuple[object, str, Callable[..., object]], ...] = (
        (autograd.Function, "apply", partial(_applied, model)),
        (wrappers, "unwrap_dead_wrappers", _applied_as_bound_before),
        *((torch.Tensor, name, partial(_refused_where_exported, "a hook on a gradient, which")) for name in _HOOKING),
        (autograd.graph, "get_gradient_edge", partial(_refused_where_exported, "a node of autograd, whose hooks")),
        (TorchDispatchMode, "__enter__", _dispatched_otherwise),
        (autograd, "grad", partial(_refused_where_exported, "a derivative in forward, which")),
        (autograd, "backward", partial(_refused_where_exported, "a derivative in forward, which")),
        *((transforms, name, partial(_refused_where_exported, "a derivative in forward, which")) for name in _DERIVING),
        (autograd.graph.saved_tensors_hooks, "__enter__", _saved_otherwise),
        (checkpoint, "_checkpoint_without_reentrant_generator", partial(_checkpointed, model)),
        (nn.TransformerEncoder, "forward", _without_padding),
        (nn.init, "_no_grad_trunc_normal_", _drawn_without_values),
        *((owner, name, partial(_reseeded, name)) for owner in (torch, torch.random) for name in _SEEDING),
        (torch, "set_autocast_enabled", _switched),
        *((torch.compiler, name, _as_in_eager) for name in _ASKING),
        (torch.autocast, "__init__", made_for_meta),
        (torch.autocast, "__enter__", entered_where_enabled),
        (torch.autocast, "__exit__", left_where_enabled),
        (sys.modules.get("transformers.utils.generic"), "nullcontext", in_place_of_none),
        *INFERENCE,
        *INDEXED,
    )
    with contextlib.ExitStack() as patched:
        patched.enter_context(dynamo_remembered())
        for owner, name, replacing in places:
            if owner is not None and name in vars(owner):
                patched.enter_context(replaced_in_export(owner, name, replacing(vars(owner)[name])))
        patched.enter_context(mock.patch.object(torch.Tensor, "data", property(_data, _assigned), create=True))
        patched.enter_context(mock.patch.object(torch.Tensor, "grad_fn", property(_grad_fn), create=True))
        yield


_DATA = vars(torch._C.TensorBase)["data"]
# What models were given as `data`, and of which tensor.
_GIVEN = WeakIdKeyDictionary()


def _data(tensor: torch.Tensor) -> torch.Tensor:
    """What a model calls `data` is the tensor without its gradient, as `detach()` gives it, which an export shows."""
    if not is_of_users(sys._getframe(1)):
        seen: torch.Tensor = _DATA.__get__(tensor)
        return seen
    _GIVEN[given := tensor.detach()] = weakref.ref(tensor)
    return given


_GRAD_FN = vars(torch._C.TensorBase)["grad_fn"]


def _grad_fn(tensor: torch.Tensor) -> object:
    node = _GRAD_FN.__get__(tensor)
    return _Node(node) if node is not None and is_of_users(sys._getframe(1)) and _exported(tensor) else node


class _Node:
    """A node of autograd as a model sees it, which takes no hooks."""

    def __init__(self, node: object) -> None:
        self.node = node

    def __getattr__(self, name: str) -> object:
        if name in ("register_hook", "register_prehook"):
            _refuse("a hook on a node of autograd, which")
        found = getattr(self.node, name)
        return tuple((_Node(node), at) for node, at in found) if name == "next_functions" else found


def _assigned(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Nothing where it is given back its own (`w.data = w.data.to(x.device)`)."""
    own = _GIVEN.get(value)  # type: ignore[no-untyped-call]  # torch does not type it
    if own is not None and own() is tensor:
        return
    if is_of_users(sys._getframe(1)):
        raise UncapturableError(
            f"forward assigns to .data of a tensor at {calling_line()}, which an export does not see; keep what steps "
            "change in a buffer, and write into it with copy_"
        )
    _DATA.__set__(tensor, value)


@dataclass(slots=True)
class _Told:
    """What models are told of being exported: that they are not. asked: whether one asked."""

    eager: bool = True
    asked: bool = False


_TOLD = _Told()


@contextlib.contextmanager
def told_of_the_export() -> Iterator[bool]:
    """In the body a model that asks hears that it is exported: it may leave checks of values out. Whether one asked."""
    _TOLD.eager, asked = False, _TOLD.asked
    try:
        yield asked
    finally:
        _TOLD.eager, _TOLD.asked = True, False


def _as_in_eager(before: Callable[[], bool]) -> Callable[[], bool]:
    """A person's own model is told that it is not exported: what runs is held to what it does by itself."""

    def asked() -> bool:
        own = is_own_module(str(sys._getframe(1).f_globals.get("__name__", "")))
        _TOLD.asked |= own
        return not (own and _TOLD.eager) and before()

    return asked


def _applied(model: nn.Module, before: classmethod[object, ..., object]) -> object:
    def apply(kind: type[torch.autograd.Function], /, *arguments: object, **keywords: object) -> object:
        if kind is CheckpointFunction:
            return _run_in_checkpoint(model, *arguments)
        _require_no_backward_of_its_own(kind, (arguments, keywords))
        return before.__func__(kind, *arguments, **keywords)

    return classmethod(apply)


def _applied_as_bound_before(before: Callable[..., object]) -> Callable[..., object]:
    """What torch's own `apply` calls first, also where it was bound before the export: `doubled = Doubled.apply`."""

    def unwrap(arguments: object) -> object:
        kind = sys._getframe(1).f_locals.get("cls")
        if isinstance(kind, type):
            _require_no_backward_of_its_own(kind, arguments)
        return before(arguments)

    return unwrap


def _require_no_backward_of_its_own(kind: type, arguments: object) -> None:
    if kind.__module__.startswith(_OPERATORS) or not _exported(arguments):
        return
    if kind is BackwardHookFunction:
        _refuse("a module's hook on its backward, which")
    _refuse(f"{kind.__name__}, an autograd.Function, whose backward")


def _run_in_checkpoint(model: nn.Module, run: object, keeps_random_state: object, *given: object) -> object:
    assert callable(run)
    with _no_buffer_written(model):
        return run_once(run, keeps_random_state, *given)


def _checkpointed(model: nn.Module, _: object) -> Callable[..., Iterator[None]]:
    def around(*_: object, **__: object) -> Iterator[None]:
        with _no_buffer_written(model):
            yield

    return around


def _refused_where_exported(what: str, before: Callable[..., object]) -> Callable[..., object]:
    def call(*given: object, **keywords: object) -> object:
        return _refuse(what) if _exported((given, keywords)) else before(*given, **keywords)

    return call


def _saved_otherwise(before: Callable[..., object]) -> Callable[..., object]:
    def enter(hooks: object) -> object:
        if is_own_module(str(sys._getframe(1).f_globals.get("__name__"))):
            _refuse("hooks on what is saved for backward, which")
        return before(hooks)

    return enter


def _dispatched_otherwise(before: Callable[..., object]) -> Callable[..., object]:
    def enter(mode: TorchDispatchMode) -> object:
        if is_own_module(type(mode).__module__):
            _refuse(f"{type(mode).__name__}, a TorchDispatchMode, which")
        return before(mode)

    return enter


def _reseeded(name: str, before: Callable[..., object]) -> Callable[..., object]:
    def call(*given: object, **keywords: object) -> object:
        if is_of_users(sys._getframe(1)):
            raise UncapturableError(
                f"{calling_line()}: forward calls {name}, and a run's random numbers are not those of torch's "
                "generator, but keyed by seed, step, op and row; make what is to be the same in every step in __init__"
            )
        return before(*given, **keywords)

    return call


def _switched(before: Callable[..., object]) -> Callable[..., object]:
    def call(*given: object) -> object:
        if is_of_users(sys._getframe(1)):
            raise UncapturableError(
                f"{calling_line()}: forward calls set_autocast_enabled, which an export does not see; do it by a "
                "region (with torch.autocast(...):)"
            )
        return before(*given)

    return call


def _without_padding(before: Callable[..., object]) -> Callable[..., object]:
    """Where it learns nothing torch's encoder leaves padded places out and gives zeros; an export has them all."""

    def forward(encoder: nn.TransformerEncoder, *given: object, **keywords: object) -> object:
        padding = keywords.get("src_key_padding_mask", given[2] if len(given) > 2 else None)
        leaves = _pytree.tree_leaves((list(encoder.parameters()), given, keywords))
        learns = torch.is_grad_enabled() and any(isinstance(one, torch.Tensor) and one.requires_grad for one in leaves)
        nested = padding is not None and getattr(encoder, "use_nested_tensor", False)
        if nested and not encoder.training and not learns and _exported((given, keywords)):
            _refuse("a TransformerEncoder that leaves padding out (enable_nested_tensor), which")
        return before(encoder, *given, **keywords)

    return forward


def _drawn_without_values(before: Callable[..., object]) -> Callable[..., object]:
    """torch 2.13 draws nothing into a tensor on meta, and elsewhere again until all numbers lie within the bounds."""

    def call(*given: object, **keywords: object) -> object:
        if _exported((given, keywords)):
            raise UncapturableError(
                f"{calling_line()}: forward draws by trunc_normal_, which looks at what it drew; draw by uniform_ and "
                "erfinv_"
            )
        return before(*given, **keywords)

    return call


@contextlib.contextmanager
def _no_buffer_written(model: nn.Module) -> Iterator[None]:
    before = {name: (buffer, buffer._version) for name, buffer in model.named_buffers()}
    yield
    for name, buffer in model.named_buffers():
        if name in before and (before[name][0] is not buffer or before[name][1] != buffer._version):
            raise UncapturableError(
                f"{calling_line()}: a checkpoint runs again in backward, and writes the buffer {name} twice; leave the "
                "checkpoint out, and placer runs blocks again where that helps (--pin recompute=yes)"
            )


def _exported(values: object) -> bool:
    """Whether there is a tensor among them that is being exported, and not one that an opaque part is tried on."""
    return any(isinstance(_within(leaf), FakeTensor) for leaf in _pytree.tree_leaves(values))


def _within(leaf: object) -> object:
    """What `torch.vmap` and its like have wrapped."""
    wraps = torch._C._functorch
    while isinstance(leaf, torch.Tensor) and wraps.is_functorch_wrapped_tensor(leaf):
        leaf = wraps.get_unwrapped(leaf)
    return leaf


def require_plain_gradients(model: nn.Module) -> None:
    """No parameter has hooks on its gradient, no module one of torch's older kind on its backward, which torch puts on
    what it makes. Raises UncapturableError naming the first that has."""
    for path, module in model.named_modules():
        if module._backward_hooks and module._is_full_backward_hook is False:
            raise UncapturableError(
                f"{path or 'the model'} has a backward hook of torch's older kind, which an export does not see; take "
                "it off"
            )
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise UncapturableError(
                f"the parameter {name} has a hook on its gradient, which a run cut into stages and pieces would not "
                "call as one device does; take it off, or do in forward or in the loss what it does"
            )


#: What to write instead of an op whose sizes follow from values.
_MASKED = "write it with a mask of fixed size (torch.where(mask, a, b))"
_OF_FIXED_SIZE: dict[object, str] = {
    torch.ops.aten.bincount.default: "count into a fixed size (torch.zeros(n).index_add(0, x, torch.ones(len(x))))",
}


def unplayable(call: str, target: object, source: str, module: str, error: Exception) -> UnseenError:
    """A call of the graph that cannot be run on tensors without values."""
    if counted_by_values(target) and isinstance(error, NotImplementedError):
        why = "gives more or fewer numbers by the values of tensors, and placer plans for sizes that are known before"
        advice = f"{_OF_FIXED_SIZE.get(target, _MASKED)}, or {_ELSEWHERE}"
        return UnseenError(f"the model cannot be captured: {source}: {call} {why}; {advice}", module)
    if "BatchedTensorImpl" in str(error):
        why = "is called by torch.vmap, under which an export sees no dim of what is mapped over"
        advice = f"write the call with that dim (matmul, einsum and most ops take leading ones), or {_ELSEWHERE}"
        return UnseenError(f"the model cannot be captured: {source}: {call} {why}; {advice}", module)
    return UnseenError(
        f"the model cannot be captured: {source}: {call} raised {said(error)} as it was run without "
        f"values; {_ELSEWHERE}",
        module,
    )


def _refuse(what: str) -> NoReturn:
    raise UnseenError(f"the model cannot be captured: {calling_line()} has {what} an export does not see; {_ELSEWHERE}")
