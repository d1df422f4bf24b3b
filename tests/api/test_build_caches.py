"""Constants that a factory's functions remember (`functools.lru_cache`) are made anew after a build on meta."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, wraps

import pytest
import torch
from torch import Tensor, nn

from placer.errors import UsageError
from placer.tracer import resolve

pytestmark = pytest.mark.in_turns

SIZE = 4
_KEPT: dict[int, Tensor] = {}


@lru_cache(maxsize=8)
def basis(size: int) -> Tensor:
    return torch.linspace(-1, 1, size * size).view(size, size)


@cache
def checked(size: int) -> Tensor:
    """As e3nn makes its coefficients: reads values of what another such function remembers."""
    assert torch.all(basis(size).abs() < 2)
    return basis(size) * 2


class Tables:
    @staticmethod
    @lru_cache
    def fixed(size: int) -> Tensor:
        return torch.linspace(-1, 1, size * size).view(size, size)

    @classmethod
    @cache
    def of_class(cls, size: int) -> Tensor:
        return torch.linspace(-1, 1, size * size).view(size, size)


def counted(function: Callable[[int], Tensor]) -> Callable[[int], Tensor]:
    @wraps(function)
    def call(size: int) -> Tensor:
        return function(size)

    return call


@counted
@lru_cache
def wrapped(size: int) -> Tensor:
    return torch.linspace(-1, 1, size * size).view(size, size)


def kept(size: int) -> Tensor:
    return _KEPT.setdefault(size, torch.ones(size, size))


def model(table: Tensor) -> nn.Module:
    made = nn.Linear(SIZE, SIZE)
    made.register_buffer("table", table)
    return made


def remembering() -> nn.Module:
    return model(basis(SIZE))


def checking() -> nn.Module:
    return model(checked(SIZE))


def cloning() -> nn.Module:
    return model(basis(SIZE).clone())


def fixed() -> nn.Module:
    return model(Tables.fixed(SIZE))


def of_class() -> nn.Module:
    return model(Tables.of_class(SIZE))


def under_another() -> nn.Module:
    return model(wrapped(SIZE))


def keeping() -> nn.Module:
    return model(kept(SIZE))


@pytest.mark.parametrize("name", ["remembering", "checking", "cloning", "fixed", "of_class", "under_another"])
def test_a_build_after_one_without_values_has_values(name: str) -> None:
    resolved = resolve(f"test_build_caches:{name}")
    for _ in range(2):
        resolved.build("meta")
        expected = torch.linspace(-1, 1, SIZE * SIZE).view(SIZE, SIZE) * (2 if name == "checking" else 1)
        assert torch.equal(resolved.build("cpu").get_buffer("table"), expected)


def test_what_was_remembered_before_is_not_asked_for_again() -> None:
    before = basis(SIZE)
    resolve("test_build_caches:remembering").build("meta")
    assert basis(SIZE) is before


def test_what_a_factory_keeps_itself_of_a_build_without_values_is_refused() -> None:
    resolved = resolve("test_build_caches:keeping")
    with pytest.raises(UsageError, match=r"table .* an earlier build"):
        resolved.build("cpu")
