"""Dropout in one kernel each way, as on a GPU, beside the same op by op, and attention beside torch's own.

`aot_eager` stands for the compiler of a GPU: functions are captured for it, and run as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch.nn import functional

from placer.runtime.stages import dropout as stage
from placer.runtime.stages import one_kernel
from placer.runtime.stages.dropout import attention, dropout, kept
from placer.runtime.stages.keyed_numbers import above, row_keys
from placer.runtime.stages.pass_context import PassContext

Tensor = torch.Tensor
ROWS = 4


def _mode() -> PassContext:
    keys = row_keys(3, 5, 0, ROWS)
    return PassContext(rows=ROWS, global_rows=ROWS, training=True, keys=keys, batch_key=row_keys(3, 5, 99, 1))


@pytest.fixture
def as_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything that can be is compiled, for all tensors."""
    runs = lambda _: not torch.compiler.is_compiling()  # noqa: E731
    monkeypatch.setattr(one_kernel, "runs_as_one", runs)
    monkeypatch.setattr(stage, "runs_as_one", runs)
    monkeypatch.setattr(one_kernel, "_FAILED", set())
    monkeypatch.setattr(one_kernel, "compiled", partial(torch.compile, backend="aot_eager"))
    yield
    assert not one_kernel._FAILED


def _gradients(made: Tensor, *sources: Tensor) -> tuple[Tensor, ...]:
    slope = torch.linspace(-1.0, 1.0, made.numel(), dtype=made.dtype).view(made.shape)
    return torch.autograd.grad(made, sources, slope)


def _values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32).requires_grad_()


SIZES = [((4, 7), 0), ((4, 3, 5), 0), ((8, 5), 0), ((4, 1), 0), ((6, 5), None), ((3, 4, 5), 1), ((3, 0), None)]


@pytest.mark.in_turns
def test_dropout_in_one_kernel_is_dropout_op_by_op(request: pytest.FixtureRequest) -> None:
    """Also where rows are not in front, or lie otherwise in memory."""
    given = [(_values(*size), rows) for size, rows in SIZES]
    given.append((_values(5, 4).t().detach().requires_grad_(), 0))

    def made() -> list[tuple[Tensor, ...]]:
        found = [(dropout(one, 0.3, 2, rows, _mode()), one) for one, rows in given]
        return [(own, *_gradients(own, one)) for own, one in found]

    expected = made()
    request.getfixturevalue("as_one")
    for own, other in zip(made(), expected, strict=True):
        assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(own, other, strict=True))


@pytest.mark.in_turns
def test_a_piece_has_its_piece_of_the_mask(as_one: None) -> None:
    whole = _values(4, 6).detach()
    piece = dropout(whole[:, 2:5].contiguous(), 0.3, 2, 0, _mode(), ({"dim": 1, "start": 2, "end": 5, "of": 6},))
    assert torch.allclose(piece, dropout(whole, 0.3, 2, 0, _mode())[:, 2:5])


def test_attention_without_keys_gives_zeros(as_one: None) -> None:
    q, none = _values(ROWS, 2, 5, 4), _values(ROWS, 2, 0, 4)
    assert torch.equal(_attended(q, none, none, None, False, False), torch.zeros(ROWS, 2, 5, 4))


def test_autocast_casts_what_attention_reads_and_nothing_within() -> None:
    q, k, v = (_values(ROWS, 2, 5, 4, seed=seed) for seed in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        cast = _attended(q, k, v, None, False, False)
    assert torch.equal(cast, _attended(q.bfloat16(), k.bfloat16(), v.bfloat16(), None, False, False))


def _attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, grouped: bool) -> Tensor:
    return attention(q, k, v, mask, 0.2, causal, None, grouped, 1, True, _mode())


@pytest.mark.in_turns
@pytest.mark.parametrize("masked", ["no mask", "causal", "boolean", "added", "trained", "grouped"])
def test_attention_in_one_kernel_is_attention_op_by_op(masked: str, request: pytest.FixtureRequest) -> None:
    heads = 1 if masked == "grouped" else 2
    q, k, v = _values(ROWS, 2, 5, 4), _values(ROWS, heads, 6, 4, seed=1), _values(ROWS, heads, 6, 3, seed=2)
    mask = {
        "boolean": torch.arange(6).expand(ROWS, 1, 5, 6) < torch.arange(ROWS).view(-1, 1, 1, 1) * 2,  # a row sees none
        "added": _values(1, 1, 5, 6, seed=3).detach(),
        "trained": _values(1, 2, 5, 6, seed=3),
    }.get(masked)
    sources = (q, k, v, mask) if mask is not None and mask.requires_grad else (q, k, v)

    def made() -> tuple[Tensor, ...]:
        found = _attended(q, k, v, mask, masked == "causal", masked == "grouped")
        return (found, *_gradients(found, *sources))

    expected = made()
    assert all(torch.isfinite(one).all() for one in expected)
    request.getfixturevalue("as_one")
    for own, other in zip(made(), expected, strict=True):
        assert torch.allclose(own, other, rtol=1e-5, atol=1e-6)


@pytest.mark.in_turns
def test_a_gradient_of_a_gradient_goes_through(request: pytest.FixtureRequest) -> None:
    x, q = _values(4, 6), _values(ROWS, 1, 3, 2)

    def second() -> tuple[Tensor, ...]:
        loss = dropout(x, 0.3, 2, 0, _mode()).pow(3).sum() + _attended(q, q, q, None, False, False).pow(2).sum()
        first = torch.autograd.grad(loss, (x, q), create_graph=True)
        return torch.autograd.grad(torch.stack([one.pow(2).sum() for one in first]).sum(), (x, q))

    expected = second()
    request.getfixturevalue("as_one")
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(second(), expected, strict=True))


def test_numbers_of_64_bits_are_dropped_op_by_op(as_one: None) -> None:
    """A compiler may round the factors to 32 bits."""
    x = _values(4, 7).double()
    mask = kept(x.shape, 0.3, 2, row_keys(3, 5, 0, ROWS))
    assert torch.equal(dropout(x, 0.3, 2, 0, _mode()), x * mask / (1 - 0.3))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kind", ["one query sees none", "padding on the left"])
def test_attention_that_drops_next_to_nothing_is_torchs_own(kind: str, autocast: bool) -> None:
    """Also where a query may look at no key, which torch gives zeros, not what is no number."""
    q, k, v = (_values(ROWS, 2, 5, 4, seed=seed) for seed in range(3))
    allowed = torch.ones(ROWS, 1, 5, 5, dtype=torch.bool)
    if kind == "one query sees none":
        allowed[1, :, 2] = False
    else:
        allowed = allowed.tril() & (torch.arange(5) >= torch.arange(ROWS).view(-1, 1, 1, 1))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        own = attention(q, k, v, allowed, 1e-12, False, None, False, 1, True, _mode())
        torchs = functional.scaled_dot_product_attention(q, k, v, allowed, 1e-12)
    assert own.dtype == torchs.dtype
    ours, theirs = (_gradients(one, q, k, v) for one in (own, torchs))
    tolerance = 2e-2 if autocast else 1e-5
    assert all(torch.allclose(a, b, atol=tolerance) for a, b in zip((own, *ours), (torchs, *theirs), strict=True))


def test_masks_are_the_same_where_the_compiler_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, sizes = row_keys(3, 5, 0, 4), [(4, 7), (4, 3, 5, 5), (8, 5), (4, 1)]
    expected = [kept(torch.Size(size), 0.3, 2, keys) for size in sizes]
    captured = torch.compile(above, backend="aot_eager")
    monkeypatch.setattr(one_kernel, "runs_as_one", lambda _: not torch.compiler.is_compiling())
    monkeypatch.setattr(one_kernel, "compiled", lambda _: captured)
    assert all(map(torch.equal, expected, [kept(torch.Size(size), 0.3, 2, keys) for size in sizes]))

    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(one_kernel, "compiled", lambda _: broken)
    monkeypatch.setattr(one_kernel, "_FAILED", set())
    with pytest.warns(UserWarning, match="torch.compile does not work here"):
        assert torch.equal(kept(torch.Size(sizes[0]), 0.3, 2, keys), expected[0])
    assert torch.equal(kept(torch.Size(sizes[1]), 0.3, 2, keys), expected[1])  # told once
