"""While it is entered, numbers that a model reads of tensors are `Read`, not what an export makes of them.

loss.item(), tolist()       float(loss), int(n)         max(1, n.item())            math.exp(loss.item())
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from placer.io.usercode import is_of_users
from placer.tracer.export.torchs_own.names_of_python import InPlaceOf, named, names_of_model
from placer.tracer.lookups.callers import asking, package
from placer.tracer.lookups.checks_in_code import parsed
from placer.tracer.lookups.number_functions import OF_MATH, converted, larger, made_of
from placer.tracer.lookups.read_numbers import KINDS, Read, array_of, read, told
from placer.tracer.lookups.readings import Readings, is_read

# Elements of what `tolist` gives that are followed.
_MOST = 64
_READING = frozenset(
    {"item", "tolist", "numpy", "__format__", "__bool__", "__float__", "__int__", "__index__", "__repr__"}
)
_REPLACED = frozenset({"float", "int", "max", "min"})


class Reading(TorchFunctionMode):
    """While it is entered, forward reads `Read` of tensors, of which `readings` takes note, also of what is asked of
    tensors that have no values and a model may catch."""

    def __init__(self, readings: Readings) -> None:
        super().__init__()
        self._readings = readings

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Calls it, or reads."""
        name = getattr(func, "__name__", "")
        texts = name in ("__format__", "__repr__") and args and isinstance(args[0], FakeTensor)
        if texts or (name in _READING and args and _is_exported(args[0])):
            return self._asked(name, func, args, kwargs or {})
        if name in ("tensor", "as_tensor") and args and any(map(is_read, _pytree.tree_leaves(args[0]))):
            return made_of(self._readings, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def number(self, kind: type[float] | type[int], *given: Any, **keywords: Any) -> Any:
        """`float(...)`, `int(...)`."""
        one: Any = given[0] if len(given) == 1 and not keywords else None
        if _is_exported(one) and one.numel() == 1:
            one = read(one, self._readings)
        return converted(one, kind) if type(one) is Read else kind(*given, **keywords)

    def _asked(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What Python asks of a tensor. torch's own checks have what an export gives them, which it holds."""
        one, frame = args[0], asking(sys._getframe(1))
        checked = frame is not None and package(frame) == "torch" and frame.f_code.co_name.startswith("_check")
        if name == "item" and one.numel() == 1 and not checked:
            return read(one, self._readings)
        if name in KINDS:
            many = name == "numpy" or one.numel() > _MOST
            return array_of(one, KINDS[name], self._readings) if many else self._listed(one)
        if name == "__format__" or (name == "__repr__" and is_of_users(frame)):
            return told(self._readings)
        try:
            return func(*args, **kwargs)
        except Exception as error:
            self._readings.refused.append(error)
            raise

    def _listed(self, one: Tensor) -> Any:
        return [self._listed(one[at]) for at in range(len(one))] if one.dim() else read(one, self._readings)


def _is_exported(one: Any) -> bool:
    """Whether it is a tensor whose values an export does not know."""
    return isinstance(one, FakeTensor) and one.constant is None


@contextlib.contextmanager
def numbers_read(mode: Reading, model: nn.Module, loss_fn: Callable[..., object] | None) -> Iterator[None]:
    """In the body Python's own functions of numbers know what was read, too."""
    kinds = {kind.__name__: InPlaceOf(kind, functools.partial(mode.number, kind)) for kind in (float, int)}
    names = {**kinds, **{name: functools.partial(_extreme, name) for name in ("max", "min")}}
    own = [one for one in names_of_model(model, loss_fn) if _only_called(str(one.get("__file__", "")))]
    with contextlib.ExitStack() as patched:
        patched.enter_context(named(own, names))
        for name, function in OF_MATH.items():
            patched.enter_context(mock.patch.object(math, name, function))
        yield


def _extreme(name: str, *given: Any, **keywords: Any) -> Any:
    """`max(...)`, `min(...)`."""
    before = getattr(builtins, name)
    several = given if len(given) > 1 else given[0] if given and isinstance(given[0], list | tuple) else ()
    if keywords or not any(type(one) is Read for one in several):
        return before(*given, **keywords)
    found = several[0]
    for one in several[1:]:
        found = larger(found, one, 1 if name == "max" else -1)
    return found


@functools.cache  # of every file of a person's own, however many: they are asked for once an export
def _only_called(filename: str) -> bool:
    """Whether a file only calls what is replaced, asks for instances of it, and annotates: else it must be Python's."""
    code = parsed(filename)
    meant, named_there = set[int](), list[int]()
    for one in ast.walk(code):
        meant |= {id(part) for place in _places(one) for part in ast.walk(place)}
        if isinstance(one, ast.Call):
            meant.add(id(one.func))
        elif isinstance(one, ast.Name) and one.id in _REPLACED:
            named_there.append(id(one))
    return bool(code.body) and meant.issuperset(named_there)


def _places(one: ast.AST) -> Iterator[ast.AST]:
    """Where a class is named as such."""
    if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id in ("isinstance", "issubclass"):
        yield from one.args[1:]
    for field in ("annotation", "returns"):
        named_as = getattr(one, field, None)
        if isinstance(named_as, ast.AST):
            yield named_as
