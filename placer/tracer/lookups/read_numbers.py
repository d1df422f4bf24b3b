"""Numbers that a model reads of tensors, as an export has them: for people they are none, and what is computed with
them is computed in the graph.

    loss.item()                     Read: a number to the model, of a tensor that the graph computes
    self.stats["loss"] = ...        kept for people, and by no run
    loss / max(1, n.item())         computed of tensors
    if loss.item() > best:          refused, but where nothing hangs on it (`raising_checks`)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree

_One = TypeVar("_One")
Kind = type[float] | type[int] | type[bool]
_COUNTING = """add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow neg abs pos"""
_ARITHMETIC = _COUNTING.split()
_COMPARING = ("eq", "ne", "lt", "le", "gt", "ge")
_LOGICAL = ("and", "or", "xor", "rand", "ror", "rxor", "lshift", "rshift", "invert", "divmod", "rdivmod", "matmul")
# Of one number, as Python's `math` has them.
_OF_MATH = ("exp", "log", "sqrt", "log2", "log10", "log1p", "expm1", "tanh", "isnan", "isinf", "isfinite", "fabs")
# What writes into an array of numpy, which is the memory of a tensor.
_WRITING = frozenset({
    "fill", "sort", "partition", "put", "itemset", "resize", "setfield", "setflags", "byteswap", "copyto", "place",
    "putmask", "fill_diagonal", "put_along_axis",
})  # fmt: skip
# What takes a tensor of no dims for a number that it is given beside a tensor.
_BESIDE = frozenset({
    "add", "radd", "sub", "rsub", "mul", "rmul", "div", "rdiv", "truediv", "rtruediv", "true_divide", "subtract",
    "multiply", "divide", "eq", "ne", "lt", "le", "gt", "ge", "iadd", "isub", "imul", "itruediv", "idiv", "add_",
    "sub_", "mul_", "div_", "pow", "setitem", "fill_", "masked_fill", "masked_fill_", "where", "clamp_min",
    "clamp_max", "clamp", "clip",
})  # fmt: skip
_BOUNDING = ("clamp", "clip")


class ReadError(Exception):
    """Something is asked of a number that only its value tells."""


class _Asked:
    """What was read. number: a tensor that the export has of it; None where it is not followed. refused: takes what was
    refused of it, which a model may catch."""

    number: Tensor | None
    refused: list[Exception]

    def refuse(self, what: str) -> NoReturn:
        """Raises ReadError."""
        raise refusal(f"a number that is read of a tensor {what}, which is data-dependent", self.refused)

    def __repr__(self) -> str:
        """What people are told: nothing is known of it."""
        return Told("?", self.refused)

    def __format__(self, how: str) -> str:
        """The same."""
        return Told("?", self.refused)

    def __bool__(self) -> bool:
        """Whether it is not 0: known where nothing hangs on it."""
        if self.number is None:
            self.refuse("is asked whether it is true")
        return bool(self.number)

    def __array_ufunc__(self, function: Any, method: str, *given: Any, **named: Any) -> ReadArray:
        """What numpy makes of it."""
        if "out" in named or method == "at":
            self.refuse(f"is written by numpy's {function.__name__}")
        return ReadArray(self.number, self.refused)

    def __array_function__(self, function: Any, types: object, given: Any, named: Any) -> ReadArray:
        """What numpy makes of it."""
        if "out" in named or function.__name__ in _WRITING:
            self.refuse(f"is written by numpy's {function.__name__}")
        return ReadArray(self.number, self.refused)


def refusal(what: str, refused: list[Exception]) -> ReadError:
    """The error, which `refused` takes."""
    error = ReadError(what)
    refused.append(error)
    return error


class Told(str):
    """A text of what is not known: a model may not look for something in it."""

    refused: list[Exception]

    def __new__(cls, text: str, refused: list[Exception]) -> Told:
        """`text`; `refused` takes what is refused of it."""
        made = super().__new__(cls, text)
        made.refused = refused
        return made

    def _refuse(self, *_: object) -> NoReturn:
        raise refusal(
            "the text of a number that is read of a tensor is compared, which is data-dependent", self.refused
        )

    __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = __contains__ = _refuse
    __hash__ = _refuse


class Read(_Asked):
    """A number of a tensor: `kind` to the model. number: int64, float64 or bool, (); None where it is not followed."""

    def __init__(self, number: Tensor | None, kind: Kind, refused: list[Exception]) -> None:
        self.number, self.kind, self.refused = number, kind, refused

    @property  # type: ignore[misc]  # mypy knows no class that does not say what it is
    def __class__(self) -> type:
        """What `isinstance` hears: a number, as in eager."""
        return self.kind

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """A tensor and a number, as torch does it with a plain one."""
        named = dict(kwargs or {})
        read = _first(Read, (args, named))
        name = getattr(func, "__name__", "").removeprefix("__").removesuffix("__")
        tensor = next((arg for arg in args if isinstance(arg, Tensor) and arg.dtype != torch.bool), None)
        if tensor is None or name not in _BESIDE or (named and name not in _BOUNDING):
            read.refuse(f"is given to {name}")
        given = {key: _beside(name, tensor, arg, read) for key, arg in enumerate(args)}
        more = {key: _beside(name, tensor, arg, read) for key, arg in named.items()}
        return func(*given.values(), **more)

    def __round__(self, digits: int | None = None) -> Read:
        """As people are told it; a whole number without digits."""
        known = digits is None and self.number is not None
        return Read(torch.round(self.number.double()).long() if known else None, self.kind, self.refused)  # type: ignore[union-attr]

    def __hash__(self) -> int:
        """Not known."""
        return self.refuse("is looked up")

    def __getattr__(self, name: str) -> Any:
        """What numbers have beside is of values."""
        if name.startswith("__") or not hasattr(self.kind, name):
            raise AttributeError(f"{self.kind.__name__!r} object has no attribute {name!r}")
        return self.refuse(f"is asked for its {name}")


class ReadArray(_Asked):
    """Numbers that are not followed, nor how many they are: they may be kept, told, and computed with by numpy."""

    def __init__(self, number: Tensor | None, refused: list[Exception]) -> None:
        self.number, self.refused = number, refused

    def __call__(self, *given: Any, **named: Any) -> ReadArray:
        """What a method gives."""
        return self

    def __getattr__(self, name: str) -> ReadArray:
        """What it has."""
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _WRITING:
            self.refuse(f"is written by {name}()")
        return self

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """A tensor's function, which it enters nowhere."""
        _first(ReadArray, (args, kwargs)).refuse(f"is given to {getattr(func, '__name__', '')}")


def _first(kind: type[_One], given: object) -> _One:
    return next(one for one in _pytree.tree_leaves(given) if type(one) is kind)


def is_read(one: object) -> bool:
    """Whether it was read of a tensor."""
    return type(one) in (Read, ReadArray, Told)


def like_read(one: object) -> object:
    """What was read, as another step finds it: nothing is known of it."""
    if type(one) is Read:
        return Read(None, one.kind, [])
    return Told("?", []) if type(one) is Told else ReadArray(None, [])


def read(tensor: Tensor, refused: list[Exception]) -> Read:
    """The number of a tensor of one."""
    number = tensor.detach().reshape(())
    if number.dtype == torch.bool:
        return Read(number.clone(), bool, refused)
    if number.is_floating_point():
        return Read(number.to(torch.float64, copy=True), float, refused)
    return Read(number.to(torch.int64, copy=True), int, refused)


def made_of(numbers: Any, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """`torch.tensor(numbers)`, of lists in which some are `Read`."""
    found = [one for one in _pytree.tree_leaves(numbers) if type(one) is Read]
    kinds = {type_of(one) for one in _pytree.tree_leaves(numbers)}
    if any(one.number is None for one in found) or not kinds <= {bool, int, float}:
        found[0].refuse("enters a tensor with what is not known")
    kind = torch.get_default_dtype() if float in kinds else torch.int64 if int in kinds else torch.bool
    return _stacked(numbers, dtype or kind).to(device)


def _stacked(numbers: Any, dtype: torch.dtype) -> Tensor:
    if isinstance(numbers, list | tuple):
        return torch.stack([_stacked(one, dtype) for one in numbers])
    number = numbers.number if type(numbers) is Read else None
    return torch.full((), numbers, dtype=dtype) if number is None else _of_type(number, dtype)


def converted(one: Read, kind: Kind) -> Read:
    """`float(one)`, `int(one)`."""
    if one.number is None:
        return Read(None, kind, one.refused)
    number = one.number.trunc() if kind is int and one.number.is_floating_point() else one.number
    return Read(_of_type(number, torch.float64 if kind is float else torch.int64), kind, one.refused)


def larger(one: Any, other: Any, sign: int) -> Any:
    """`max(one, other)`, or `min` by a sign of -1, of which one is `Read`: the first of equal ones, as in Python."""
    told = one if type(one) is Read else other
    if not isinstance(one, int | float) or not isinstance(other, int | float):
        told.refuse("is compared with what is no number")
    kind: Kind = int if {type_of(one), type_of(other)} <= {int, bool} else float
    first, second = _numbers((one, other), kind)
    if first is None or second is None:
        return Read(None, kind, told.refused)
    return Read(torch.where(second > first if sign > 0 else second < first, second, first), kind, told.refused)


def type_of(one: Any) -> type:
    """The kind of a number."""
    return one.kind if type(one) is Read else type(one)


def of_math(name: str, before: Callable[..., Any]) -> Callable[..., Any]:
    """A function of Python's `math` that knows what was read."""

    def function(*given: Any) -> Any:
        if len(given) != 1 or type(given[0]) is not Read:
            return before(*given)
        one = given[0]
        kind: Kind = bool if name.startswith("is") else float
        number = None if one.number is None else getattr(torch, "abs" if name == "fabs" else name)(one.number.double())
        return Read(number, kind, one.refused)

    return function


OF_MATH = {name: of_math(name, getattr(math, name)) for name in _OF_MATH}


def _beside(name: str, tensor: Tensor, one: Any, read: Read) -> Any:
    """An argument beside `tensor`: in place of a number a tensor of what torch would take it for."""
    if type(one) is not Read:
        plain = name in _BOUNDING and type(one) in (int, float)
        return tensor.new_full((), one) if plain else one
    if one.number is None:
        one.refuse("is computed with in a later step, or after numpy had it")
    whole = one.kind is int and tensor.dtype in (torch.int64, torch.int32) and "div" not in name
    if not (tensor.is_floating_point() or whole):
        one.refuse(f"is given to {name} with numbers of another kind")
    if tensor.dtype in (torch.float16, torch.bfloat16):
        one.refuse(f"is given to {name} in 16 bits")
    return _of_type(one.number, tensor.dtype)


def _numbers(given: tuple[Any, ...], kind: Kind) -> list[Any]:
    """What is computed with: plain numbers as they are, tensors of this kind, and None for what is not followed."""
    to = torch.float64 if kind is float else torch.int64
    read = (one.number if type(one) is Read else one for one in given)
    return [_of_type(one, to) if isinstance(one, Tensor) else one for one in read]


def _of_type(number: Tensor, dtype: torch.dtype) -> Tensor:
    return number if number.dtype == dtype else number.to(dtype)


def _operator(name: str) -> Callable[..., Any]:
    method = getattr(Tensor, f"__{name}__")

    def operator(one: Read, *others: Any) -> Any:
        if any(isinstance(other, Tensor) for other in others):
            return Read.__torch_function__(method, (), (one, *others))
        if not all(isinstance(other, int | float) for other in others):
            one.refuse(f"is given to {name} with what is no number")
        kinds = {type_of(each) for each in (one, *others)}
        whole = kinds <= {int, bool} and "truediv" not in name
        if "pow" in name and whole:
            one.refuse("is a whole number and raised to a power")
        kind: Kind = bool if name in _COMPARING else int if whole else float
        numbers = _numbers((one, *others), int if whole else float)
        return Read(None if any(each is None for each in numbers) else method(*numbers), kind, one.refused)

    return operator


def _refusing(name: str) -> Callable[..., NoReturn]:
    def asked(one: _Asked, *args: object) -> NoReturn:
        one.refuse(f"is asked for {name}()")

    return asked


for _name in (*_ARITHMETIC, *_COMPARING):
    setattr(Read, f"__{_name}__", _operator(_name))
for _name in (*_LOGICAL, "float", "int", "index", "complex", "trunc", "floor", "ceil"):
    setattr(Read, f"__{_name}__", _refusing(_name))
for _name in (*_ARITHMETIC, *_COMPARING, "getitem"):
    setattr(ReadArray, f"__{_name}__", lambda one, *others: one)
for _name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow", "imod", "iand", "ior", "ixor", "imatmul"):
    setattr(ReadArray, f"__{_name}__", _refusing(_name))
for _name in ("float", "int", "index", "len", "iter", "contains", "setitem", "array", "hash"):
    setattr(ReadArray, f"__{_name}__", _refusing(_name))
