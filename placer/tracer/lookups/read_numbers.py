"""Numbers that a model reads of tensors, as an export has them: for people they are none, and what is computed with
them is computed in the graph.

    loss.item()                     Read: a number to the model, of a tensor that the graph computes
    self.stats["loss"] = ...        refused: a later step may find it
    loss / max(1, n.item())         computed of tensors
    if loss.item() > best:          refused, but where nothing hangs on it (`raising_checks`)

What Python computes otherwise than tensors is refused: whole numbers that may get large, powers, and errors that
somebody may catch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from placer.tracer.lookups.callers import asking, is_caught, is_checked, is_told, of_a_library
from placer.tracer.lookups.read_places import Places
from placer.tracer.lookups.readings import Readings, WasRead, is_read

Kind = type[float] | type[int] | type[bool]
_COMPARING = ("eq", "ne", "lt", "le", "gt", "ge")
_EXACT = ("add", "radd", "sub", "rsub", "neg", "abs", "pos", *_COMPARING)
_RAISING = ("truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod")
_ARITHMETIC = (*_EXACT, *_RAISING, "mul", "rmul", "pow")
_REFUSED = """rpow and or xor rand ror rxor lshift rshift rlshift rrshift invert divmod rdivmod matmul rmatmul float int
index complex trunc floor ceil hash len iter contains getitem setitem array copy deepcopy reduce reduce_ex"""
# What takes a tensor of no dims for a number that it is given beside a tensor.
_BESIDE = frozenset({
    "add", "radd", "sub", "rsub", "mul", "rmul", "div", "rdiv", "truediv", "rtruediv", "true_divide", "subtract",
    "multiply", "divide", "eq", "ne", "lt", "le", "gt", "ge", "iadd", "isub", "imul", "itruediv", "idiv", "add_",
    "sub_", "mul_", "div_", "pow", "setitem", "fill_", "masked_fill", "masked_fill_", "where", "clamp_min",
    "clamp_max", "clamp", "clip",
})  # fmt: skip
_BOUNDING = ("clamp", "clip")
# What takes it for a place.
_PLACING = frozenset({"select", "getitem", "roll"})
# What writes it into the first.
_INTO = ("setitem", "fill_", "masked_fill", "masked_fill_")
# The largest whole number that one is multiplied by, once: what is counted stays within 64 bits.
_LARGEST = 2**20
# Powers that Python and tensors take alike.
_POWERS = (1, 2, 3, 4)


class _Asked(WasRead):
    """What it is asked for. _kind: what it is to the model. _number: a tensor that the export has of it, None where it
    is not followed."""

    __slots__ = ("__weakref__", "_kind", "_number", "_readings")
    _number: Tensor | None
    _kind: type
    _readings: Readings

    @property  # type: ignore[misc]  # mypy knows no class that does not say what it is
    def __class__(self) -> type:
        """What `isinstance` hears, as in eager."""
        return self._kind

    def __repr__(self) -> str:
        """What people are told, who alone may be: nothing is known of it."""
        return told(self._readings)

    def __str__(self) -> str:
        """The same."""
        return told(self._readings)

    def __format__(self, how: str) -> str:
        """The same."""
        return told(self._readings)

    def __bool__(self) -> bool:
        """Whether it is not 0: known where nothing hangs on it."""
        if self._number is None:
            self._readings.refuse("is asked whether it is true")
        return bool(self._number)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """A tensor and a number, as torch does it with a plain one; an array enters no tensor."""
        named = dict(kwargs or {})
        readings = next(one for one in _pytree.tree_leaves((args, named)) if is_read(one))._readings
        name = getattr(func, "__name__", "").removeprefix("__").removesuffix("__")
        beside = args[:1] if name in _INTO else args
        tensor = next((arg for arg in beside if isinstance(arg, Tensor) and arg.dtype != torch.bool), None)
        if name in _PLACING and args and isinstance(args[0], Tensor):
            return _placed(name, readings, args, named)
        direct = any(type(one) is Read for one in (*args, *named.values()))
        if tensor is None or name not in _BESIDE or (named and name not in _BOUNDING) or not direct:
            return readings.refuse(f"is given to {name}")
        more = {key: _beside(name, tensor, one) for key, one in named.items()}
        return func(*(_beside(name, tensor, one) for one in args), **more)

    def __array_ufunc__(self, function: Any, *given: Any, **named: Any) -> NoReturn:
        """What numpy makes of it is not known."""
        self._readings.refuse(f"is given to numpy's {getattr(function, '__name__', '')}")

    def __getattr__(self, name: str) -> Any:
        """What it has beside is of values."""
        if name.startswith("_") or not hasattr(self._kind, name):
            raise AttributeError(f"{self._kind.__name__!r} object has no attribute {name!r}")
        return self._readings.refuse(f"is asked for its {name}")


class Read(_Asked):
    """A number of a tensor. _number: int64, float64 or bool, (). _fresh: whether it is the tensor's own, of which
    nothing was computed yet."""

    __slots__ = ("_fresh",)
    _kind: Kind

    def __init__(self, number: Tensor | None, kind: Kind, readings: Readings, *, fresh: bool = False) -> None:
        self._number, self._kind, self._readings, self._fresh = number, kind, readings, fresh
        if kind is bool and not is_checked(asking(sys._getframe(1))):
            readings.refuse("is a bool, of which a model may ask whether it is True")
        readings.note(self)

    def __round__(self, digits: int | None = None) -> Read:
        """As people are told it; a whole number without digits."""
        if digits is not None:
            return Read(None, self._kind, self._readings)
        number = self._number if self._fresh else None
        whole = None if number is None else torch.round(number.to(torch.float64)).to(torch.int64)
        return Read(whole, int, self._readings)


class ReadArray(_Asked):
    """An array of numpy, or a long list, of a tensor's numbers: it may be told."""

    __slots__ = ()

    def __init__(self, number: Tensor | None, kind: type, readings: Readings) -> None:
        self._number, self._kind, self._readings = number, kind, readings
        readings.note(self)

    def __array_function__(self, function: Any, *given: Any, **named: Any) -> NoReturn:
        """What numpy makes of it is not known."""
        self._readings.refuse(f"is given to numpy's {getattr(function, '__name__', '')}")


def without_read(given: list[object]) -> list[object]:
    """What is given, with None in place of what was read."""
    made: list[object] = _pytree.tree_map(lambda one: None if is_read(one) else one, given)
    return made


def _placed(name: str, readings: Readings, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """What a call gives that takes one for a place."""
    if is_caught(asking(sys._getframe(2))):
        readings.refuse("is given for a place where errors may be caught")

    def number(one: object) -> Tensor:
        if type(one) is not Read or one._kind is not int or one._number is None:
            return readings.refuse(f"is given to {name} beside what is no such number")
        return one._number

    readings.answer(sys._getframe(2))
    try:
        return getattr(Places(number, readings.note_copy), name)(*args, **named)
    except TypeError:
        return readings.refuse(f"is given to {name}")


def told(readings: Readings) -> str:
    """The text of what is not known, where people are told it: of the texts of a library of models no more becomes."""
    frame = asking(sys._getframe(1))
    if not is_told(frame) and not (frame is not None and of_a_library(frame)):
        readings.refuse("is made a text")
    return "?"


def kind_of(one: object) -> type:
    """What it is to the model, of a number that was read too."""
    return one._kind if isinstance(one, _Asked) else type(one)


def read(tensor: Tensor, readings: Readings) -> Read:
    """The number of a tensor of one, as it is now."""
    frame = asking(sys._getframe(1))
    if is_caught(frame):
        readings.refuse("is read where errors may be caught")
    number = tensor.detach().reshape(())
    if number.dtype == torch.bool:
        return Read(number.clone(), bool, readings, fresh=True)
    if number.is_floating_point():
        return Read(number.to(torch.float64, copy=True), float, readings, fresh=True)
    return Read(number.to(torch.int64, copy=True), int, readings, fresh=True)


def array_of(tensor: Tensor, kind: type, readings: Readings) -> ReadArray:
    """The numbers of a tensor, which are not followed."""
    if is_caught(asking(sys._getframe(1))):
        readings.refuse("is read where errors may be caught")
    return ReadArray(tensor, kind, readings)


def require_uncaught(one: Read) -> None:
    """Python raises for some numbers where a tensor has one that is none: nobody may catch that."""
    if is_caught(asking(sys._getframe(1))):
        one._readings.refuse("is computed with where errors may be caught")


def _beside(name: str, tensor: Tensor, one: Any) -> Any:
    """An argument beside `tensor`: in place of a number a tensor of what torch would take it for."""
    if type(one) is not Read:
        plain = name in _BOUNDING and type(one) in (int, float)
        return tensor.new_full((), one) if plain else one
    if one._number is None:
        one._readings.refuse("is computed with in a later step, or of what is not followed")
    bounded = name not in _BOUNDING and "div" not in name and name != "pow"
    whole = one._kind is int and tensor.dtype in (torch.int64, torch.int32) and bounded
    if not (tensor.is_floating_point() or whole):
        one._readings.refuse(f"is given to {name} with numbers of another kind")
    if tensor.dtype in (torch.float16, torch.bfloat16):
        one._readings.refuse(f"is given to {name} in 16 bits")
    return of_type(one._number, tensor.dtype)


def numbers_of(given: tuple[Any, ...], kind: Kind) -> list[Any]:
    """What is computed with: plain numbers as they are, tensors of this kind, and None for what is not followed."""
    to = torch.float64 if kind is float else torch.int64
    known = (one._number if type(one) is Read else one for one in given)
    return [of_type(one, to) if isinstance(one, Tensor) else one for one in known]


def of_type(number: Tensor, dtype: torch.dtype) -> Tensor:
    """The number in this type."""
    return number if number.dtype == dtype else number.to(dtype)


def _operator(name: str) -> Callable[..., Any]:
    method = getattr(Tensor, f"__{name}__")

    def operator(one: Read, *others: Any) -> Any:
        if any(isinstance(other, Tensor) for other in others):
            return Read.__torch_function__(method, (), (one, *others))
        kinds = {kind_of(each) for each in (one, *others)}
        if not kinds <= {bool, int, float}:
            return NotImplemented if name in _COMPARING else one._readings.refuse(f"is given to {name}")
        whole = kinds <= {int, bool} and "truediv" not in name
        _require_alike(name, one, others, whole)
        numbers = numbers_of((one, *others), int if whole else float)
        kind: Kind = bool if name in _COMPARING else int if whole else float
        fresh = name in ("neg", "pos", "abs") and one._fresh
        unknown = any(each is None for each in numbers)
        return Read(None if unknown else method(*numbers), kind, one._readings, fresh=fresh)

    return operator


def _require_alike(name: str, one: Read, others: tuple[Any, ...], whole: bool) -> None:
    """Python and tensors compute the same. Raises ReadError."""
    if name in _RAISING:
        require_uncaught(one)
    if name == "pow" and (whole or others[0] not in _POWERS or type(others[0]) is not int):
        one._readings.refuse("is raised to a power")
    small = one._fresh and all(type(other) is int and abs(other) < _LARGEST for other in others)
    if whole and "mul" in name and not small:
        one._readings.refuse("is a whole number and multiplied, and may get large")
    if whole and any(type(other) is int and abs(other) >= 2**62 for other in others):
        one._readings.refuse("is a whole number beside a large one")


def _refusing(name: str) -> Callable[..., NoReturn]:
    def asked(one: _Asked, *args: object) -> NoReturn:
        one._readings.refuse(f"is asked for {name}() of it", sys._getframe(1))

    return asked


for _name in _REFUSED.split():
    setattr(_Asked, f"__{_name}__", _refusing(_name))
for _name in _ARITHMETIC:
    setattr(Read, f"__{_name}__", _operator(_name))
    setattr(ReadArray, f"__{_name}__", _refusing(_name))
for _name in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "matmul"]:
    setattr(ReadArray, f"__i{_name}__", _refusing(f"i{_name}"))
KINDS = {"numpy": np.ndarray, "tolist": list}
