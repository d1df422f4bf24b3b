"""Builtins that people's modules have of their own while their model is exported: `type`, `float`, `int`, `max`, `min`.

They are names of Python's that nobody can answer for otherwise.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from torch import nn

from placer.io.usercode import is_own_module, name_of_users

Names = dict[str, Any]


class InPlaceOf:
    """A class of Python's, which is what it is but for what it gives when it is called."""

    def __init__(self, kind: type, called: Callable[..., Any]) -> None:
        self.kind, self.called = kind, called

    def __call__(self, *given: Any, **keywords: Any) -> Any:
        """`kind(...)`."""
        return self.called(*given, **keywords)

    def __instancecheck__(self, one: object) -> bool:
        """`isinstance(one, kind)`."""
        return isinstance(one, self.kind)

    def __subclasscheck__(self, one: type) -> bool:
        """`issubclass(one, kind)`."""
        return issubclass(one, self.kind)

    def __eq__(self, other: object) -> bool:
        """`type(one) == kind`."""
        return other is self or other is self.kind

    def __hash__(self) -> int:
        """As the class has it."""
        return hash(self.kind)

    def __getattr__(self, name: str) -> Any:
        """`kind.mro`."""
        return getattr(self.kind, name)

    def __or__(self, other: Any) -> Any:
        """`kind | None`."""
        return self.kind | other


def type_that_says(class_of: Callable[[object], type]) -> type:
    """A class that is `type` to those who make classes by it, and says of one object what `class_of` says."""

    class Kinds(type):
        def __call__(cls, *given: Any, **keywords: Any) -> Any:
            if cls is not kind:
                return super().__call__(*given, **keywords)
            if len(given) != 1:
                return made(*given, **keywords)
            found = class_of(given[0])
            return kind if found is type else found

        def __instancecheck__(cls, one: object) -> bool:
            return isinstance(one, type) if cls is kind else type.__instancecheck__(cls, one)

        def __subclasscheck__(cls, one: type) -> bool:
            return issubclass(one, type) if cls is kind else type.__subclasscheck__(cls, one)

        def __eq__(cls, other: object) -> bool:
            return other is cls or (cls is kind and other is type)

        def __hash__(cls) -> int:
            return hash(type) if cls is kind else type.__hash__(cls)

    def made(name: str, bases: tuple[type, ...], names: Names, **keywords: Any) -> type:
        return type(name, tuple(type if base is kind else base for base in bases), names, **keywords)

    kind = Kinds("type", (type,), {})
    return kind


@contextlib.contextmanager
def named(modules: list[Names], names: Mapping[str, object]) -> Iterator[None]:
    """In the body these modules have these names, where they have none of their own."""
    given = [(own, name) for own in modules for name in names if name not in own]
    for own, name in given:
        own[name] = names[name]
    try:
        yield
    finally:
        for own, name in given:
            own.pop(name, None)


def names_of_people(model: nn.Module, loss_fn: object) -> list[Names]:
    """The names of modules that are not installed, and of those of the packages that the parts of a model, and its
    loss, are written in."""
    packages = {file.partition(".")[0] for file in _files(model, loss_fn)}
    theirs = (vars(one) for name, one in _modules() if name.partition(".")[0] in packages or is_own_module(name))
    return _distinct([*theirs, *_written_in(model, loss_fn)])


def names_of_model(model: nn.Module, loss_fn: object) -> list[Names]:
    """Those of the modules that are not installed, and of those that the parts and the loss are written in."""
    return _distinct([*(vars(one) for name, one in _modules() if is_own_module(name)), *_written_in(model, loss_fn)])


def _modules() -> list[tuple[str, ModuleType]]:
    return [(name, one) for name, one in [*sys.modules.items()] if isinstance(one, ModuleType)]


def _files(model: nn.Module, loss_fn: object) -> set[str]:
    parts = [*model.modules(), *(loss_fn.modules() if isinstance(loss_fn, nn.Module) else (loss_fn,))]
    return {kind.__module__ for part in parts for kind in type(part).__mro__}


def _written_in(model: nn.Module, loss_fn: object) -> list[Names]:
    """Also those of functions that are in no module that Python knows."""
    functions = [loss_fn, *(type(part).forward for part in model.modules())]
    inner = [getattr(one, "__globals__", {}) for one in functions]
    return [*(vars(sys.modules[file]) for file in _files(model, loss_fn) if file in sys.modules), *inner]


def _distinct(found: list[Names]) -> list[Names]:
    return [*{id(one): one for one in found if name_of_users(str(one.get("__name__", "")))}.values()]
