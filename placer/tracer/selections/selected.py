"""What a mask took of a table, among what it did not take: a tensor to the model, without a size in its first dim.

h[mask]         (n, D) where n is what the values say    Selected: values (N, D), rows.mask (N,)
"""

from __future__ import annotations

import dis
import functools
import sys
import weakref
from collections.abc import Callable, Hashable, Mapping
from types import CodeType, FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils import _pytree

from placer.io.usercode import is_of_users

Answer = Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]
_OPERATORS = """add radd sub rsub mul rmul truediv rtruediv floordiv mod rmod pow rpow matmul neg abs invert and rand or
ror xor rxor eq ne lt le gt ge getitem setitem iadd isub imul itruediv ipow ifloordiv imod iand ior ixor
lshift rshift pos"""
_OF_COUNTS = "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv pow rpow neg"
_IN_PLACE = "iadd isub imul itruediv add_ sub_ mul_ div_"
_WITH_COUNTS = frozenset({*_OF_COUNTS.split(), *_IN_PLACE.split(), "div", "true_divide", "floor_divide"})
# What Python asks of numbers and of what holds some, which values alone say.
_VALUES = """bool float int index complex round trunc floor ceil divmod rdivmod contains reversed repr str format array
len iter"""


class SelectionError(Exception):
    """Something is asked of a selection that only its values tell, or that is not known of selections."""


class Rows:
    """The rows that a mask takes.

    mask: bool, of the first dims of a table. name: equal for those who take the same rows. answer: what functions give
    of a selection. within: the rows of which each was taken apart into so many of these, if any.
    """

    def __init__(self, mask: Tensor, name: Hashable, answer: Answer, within: tuple[Rows, int] | None = None) -> None:
        self.shape = tuple(mask.shape)
        self.mask, self.name, self.answer = mask.reshape(-1), name, answer
        self._within = within

    @property
    def within(self) -> tuple[Rows, int]:
        """The rows that these are parts of, and how many of these each has."""
        return self._within or (self, 1)

    def each(self, times: int) -> Rows:
        """These rows, each taken apart into so many."""
        if times == 1:
            return self
        mask = self.mask.view(-1, 1).expand(-1, times)
        return Rows(mask.reshape(-1), (self.name, times), self.answer, (self, times))

    @functools.cached_property
    def count(self) -> Tensor:
        """How many they are: int64, ()."""
        return self.mask.sum()

    @functools.cached_property
    def counted(self) -> Count:
        """How many they are, as a model that asks has it."""
        return Count(self.count)

    def kept(self, values: Tensor, otherwise: float) -> Tensor:
        """`values` (N, ...) of these rows, and `otherwise` in the others, to which no gradient goes."""
        mask = self.mask.view(-1, *(1,) * (values.ndim - 1))
        if values.dtype == torch.bool:
            return values | ~mask if otherwise else values & mask
        return torch.where(mask, values, torch.full((), otherwise, dtype=values.dtype, device=values.device))


class _Unanswered(type):
    """A class that a model's own code may not compare with others, or look up: it would take it for no tensor."""

    def __eq__(cls, other: object) -> bool:
        """Whether it is this class."""
        return cls is other if not is_of_users(sys._getframe(1)) else refused("type()")

    def __hash__(cls) -> int:
        """By identity, as classes are."""
        return type.__hash__(cls) if not is_of_users(sys._getframe(1)) else refused("type()")


class _Asked(metaclass=_Unanswered):
    """What is asked for its values, or what it is, refuses."""

    @property  # type: ignore[misc]  # mypy knows no class that does not say what it is
    def __class__(self) -> type:
        """Its class: a model that asks whether it is a tensor is not answered, which may do something else if not."""
        return refused("isinstance()") if _asks(sys._getframe(1)) else type(self)

    def __hash__(self) -> int:
        """By identity, as tensors are."""
        return id(self)


def _refusing(name: str) -> Callable[..., NoReturn]:
    def asked(one: object, *args: object) -> NoReturn:
        if is_of_users(sys._getframe(1)):
            refused(f"{name}()")
        raise SelectionError(f"{name}()")

    return asked


for _name in _VALUES.split():
    setattr(_Asked, f"__{_name}__", _refusing(_name))


class Count(_Asked):
    """How many rows a mask takes, or what is reckoned with that: an int to the model, or a float.

    number: int64 or float64, ().
    """

    def __init__(self, number: Tensor) -> None:
        self.number = number

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """A tensor, or a selection, and a count: as with a plain number."""
        if kwargs or plain_name(func) not in _WITH_COUNTS:
            refused(f"{plain_name(func)} of a count")
        one = next(arg for arg in args if not isinstance(arg, Count))
        if not isinstance(one, Tensor | Selected) or len(args) != 2:
            refused(f"{plain_name(func)} of counts")
        return _with_number(func, one, args)

    def __getattr__(self, name: str) -> Any:
        """What an int has, which is none of a tensor's."""
        return refused(f".{name} of a count")


def _with_number(func: Callable[..., Any], one: Any, args: tuple[Any, ...]) -> Any:
    """In 16 bits as torch does it with a plain number: in 32, and then rounded."""
    narrow = one.dtype in (torch.float16, torch.bfloat16)
    if narrow and plain_name(func) in _IN_PLACE.split():
        refused("a count in place in 16 bits")
    wide = torch.float32 if narrow else one.dtype

    def bare(arg: Any) -> Any:
        if isinstance(arg, Count):
            return arg.number.to(wide) if wide.is_floating_point else arg.number
        return arg.to(wide) if narrow else arg

    result = func(*map(bare, args))
    return result.to(one.dtype) if narrow else result


def _counting(name: str) -> Callable[..., Any]:
    method = getattr(Tensor, f"__{name}__")

    def operator(count: Count, *others: Any) -> Any:
        if any(isinstance(other, Tensor | Selected) for other in others):
            return Count.__torch_function__(method, (), (count, *others))
        if not all(isinstance(other, int | float | Count) for other in others):
            refused(f"{name} of a count")
        exact = [other.number if isinstance(other, Count) else other for other in others]
        number = count.number.double() if name in ("truediv", "rtruediv", "pow", "rpow") else count.number
        exact = [one.double() if isinstance(one, Tensor) and number.is_floating_point() else one for one in exact]
        if any(isinstance(other, float) for other in others):
            number = number.double()
        return Count(method(number, *exact))

    return operator


for _name in _OF_COUNTS.split():
    setattr(Count, f"__{_name}__", _counting(_name))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Count, f"__{_name}__", _refusing(_name))


class Sizes(tuple[Any, ...]):
    """The sizes of a selection, the first a count: what `torch.Size` has beside is refused."""

    __slots__ = ()

    @property  # type: ignore[misc]  # mypy knows no class that does not say what it is
    def __class__(self) -> type:
        """Its class, which a model that asks is not told."""
        return refused("isinstance()") if _asks(sys._getframe(1)) else Sizes

    def __getattr__(self, name: str) -> Any:
        """What only values say."""
        return refused(f".shape.{name}")


class Selected(_Asked):
    """The `rows` of `values` (N, ...), which is what a tensor of them alone would be asked for.

    places: of which dims of its mask these are the places of what the mask takes, where they are such. viewed: whether
    another selection may hold the same memory. part: the only one that does, where it was taken by an index, and that;
    whole: of which this is such a part, or itself.
    """

    def __init__(self, values: Tensor, rows: Rows) -> None:
        self.values, self.rows, self.viewed = values, rows, False
        self.places: tuple[int, ...] = ()
        self.part: tuple[weakref.ref[Selected], Any] | None = None
        self.whole: Selected = self

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """What `func` gives, asked of the first selection among its arguments."""
        return first_of((args, kwargs or {})).rows.answer(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        """A tensor's method of that name."""
        method = getattr(Tensor, name, None)
        if name.startswith("__") or not callable(method):
            refused(f".{name}")
        return functools.partial(_called, self, method)

    @property
    def shape(self) -> Sizes:
        """The sizes, the first of which is a count."""
        return Sizes((self.rows.counted, *self.values.shape[1:]))

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return self.values.ndim

    @property
    def dtype(self) -> torch.dtype:
        """Of the values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Of the values."""
        return self.values.device

    @property
    def requires_grad(self) -> bool:
        """Whether gradients go to the values."""
        return self.values.requires_grad

    @property
    def is_cuda(self) -> bool:
        """Whether the values lie on a GPU."""
        return self.values.is_cuda

    @property
    def _version(self) -> int:
        return self.values._version


def _called(selected: Selected, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return selected.rows.answer(method, (selected, *args), kwargs)


def _operator(name: str) -> Callable[..., Any]:
    method = getattr(Tensor, name)

    def operator(selected: Selected, *args: Any) -> Any:
        return _called(selected, method, *args)

    return operator


for _name in _OPERATORS.split():
    setattr(Selected, f"__{_name}__", _operator(f"__{_name}__"))


def require_unasked(question: str) -> None:
    """The model's own code that is running calls no builtin of this name, to which a selection, or how many rows it
    has, would say something else than a tensor, or an int. Raises SelectionError."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_of_users(frame):
        frame = frame.f_back
    if frame is not None and question in _builtins_of(frame.f_code):
        refused(f"{question}()")


def _asks(frame: FrameType) -> bool:
    """Whether it is a model's own code that asks for a class, and not torch, which it calls and which does so too."""
    if frame.f_code.co_name == "is_tensor":
        return True
    return is_of_users(frame) and "isinstance" in _builtins_of(frame.f_code)


@functools.lru_cache(maxsize=1024)
def _builtins_of(code: CodeType) -> frozenset[str]:
    """Which of `type` and `isinstance` it calls, or does the same as."""
    steps = list(dis.get_instructions(code))
    loads = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLOSURE", "LOAD_FAST")
    called = {step.argval for step in steps if step.opname in loads} & {"type", "isinstance"}
    by_class = any(step.opname == "MATCH_CLASS" or step.argval == "__class__" for step in steps)
    return frozenset({*called, "isinstance"} if by_class else called)


def is_selected(one: object) -> bool:
    """Whether it is a selection."""
    return type(one) is Selected


def first_of(arguments: object) -> Selected:
    """The first selection among them. Raises StopIteration where there is none."""
    return next(one for one in _pytree.tree_leaves(arguments) if type(one) is Selected)


def taken(table: Tensor, rows: Rows) -> Selected:
    """These rows of `table`, whose first dims are those of their mask."""
    values = table.reshape(-1, *table.shape[len(rows.shape) :])
    return Selected(rows.kept(values, resting(values)), rows)


def resting(values: Tensor) -> float:
    """What rows that are not taken are put to: finite in what most functions give, and in their derivatives."""
    return 0.5 if values.is_floating_point() else 0


#: What was refused since it was emptied: a model may catch what is raised, and do something else.
REFUSED: list[str] = []


def refused(what: str) -> NoReturn:
    """Raises SelectionError."""
    REFUSED.append(what)
    raise SelectionError(what)


def require_alike(one: Selected, arguments: object, beside: bool = False) -> None:
    """All selections among them take the rows that `one` takes, and are of as many dims; all other tensors are weights
    (beside), of fewer dims, or of one row. Raises SelectionError."""
    for other in _pytree.tree_leaves(arguments):
        if is_selected(other):
            if other.rows.name != one.rows.name:
                refused("a function of two selections, of which it is not known that they take the same rows")
            if other.ndim != one.ndim:
                refused("a function of two selections of unlike dims")
        elif isinstance(other, Tensor) and not beside and _has_rows(other, one):
            refused("a function of a selection and of a tensor that has rows of its own")


def _has_rows(other: Tensor, one: Selected) -> bool:
    return other.ndim > one.ndim or (other.ndim == one.ndim and other.shape[0] != 1)


def plain_name(func: Callable[..., Any]) -> str:
    """`add` of `Tensor.add` and of `Tensor.__add__`; what writes in place keeps its mark."""
    name = getattr(func, "__name__", "")
    return (name.strip("_") if name.startswith("__") else name).removeprefix("linalg_")


class Same:
    """A tensor in a name: equal to itself alone, and alive as long as the name."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        """Whether it is the same tensor."""
        return isinstance(other, Same) and other.tensor is self.tensor

    def __hash__(self) -> int:
        """Of the tensor's identity."""
        return id(self.tensor)
