"""Forwards that read numbers of tensors, as people do: `RIGHT` run as in eager, `REFUSED` hang on the values."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 4
Case = Callable[["Reader", Tensor, Tensor, Tensor, Tensor], Tensor]
RIGHT: dict[str, Case] = {}
REFUSED: dict[str, Case] = {}


class Reader(nn.Module):
    """A layer, its errors, and what a case makes of them."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.case = nn.Linear(WIDTH, WIDTH), case
        self.stats: dict[str, object] = {}
        self.previous, self.best, self.total = 1.0, 1e9, 0.0
        self.last: float | None = None
        self.held: object = None

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = self.layer(x)
        errors = (h - labels) ** 2
        given: Tensor = self.case(self, h, errors, errors.mean(), labels > 0)
        return given


def right(case: Case) -> Case:
    RIGHT[case.__name__] = case
    return case


def refused(case: Case) -> Case:
    REFUSED[case.__name__] = case
    return case


@right
def divided_by_a_count(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    return (e * taken).sum() / max(1, int(taken.sum()))


@right
def divided_by_a_count_of_a_selection(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    return e[taken].sum() / max(taken.sum().item(), 1)


@right
def two_weights(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    one, other = loss.item(), h.abs().mean().item()
    return loss * (one / (one + other)) + h.abs().mean() * (other / (one + other))


@right
def listed(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    numbers: list[float] = h.mean(0).tolist()
    divisor: float = 2 + numbers[1] ** 2
    return loss * numbers[0] - h.sum() / divisor


@right
def whole_numbers(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    count = int(taken.sum())
    return loss * (count // 2) + loss * (count % 3) - loss * int(h.detach().sum()) + loss * round(loss.item())


@right
def of_math(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    root = math.sqrt(float(h.detach().abs().max()))
    return loss * math.exp(-loss.item()) * root * min(loss.item(), 1.0, abs(h.min().item()))


@right
def in_tensors(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    made = torch.tensor([loss.item(), 2.0, h.max().item()], dtype=h.dtype)
    made[1] = e.max().item()
    held = h.masked_fill(taken, loss.item()).clamp(max=h.abs().mean().item(), min=-1)
    return (loss * made).sum() + held.abs().pow(loss.item()).mean() + torch.where(taken, h, loss.item()).mean()


@right
def below_the_mean(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    return (e * (e < e.mean().item())).sum()


@right
def what_it_is(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    number = loss.item()
    plain = isinstance(number, float) and not isinstance(number, Tensor) and not hasattr(number, "item")
    return loss * 2 if plain and number is not None else loss


@refused
def kept_for_people(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    m.stats["loss"] = round(loss.item(), 3)
    m.stats["perplexity"] = math.exp(loss.item())
    m.stats["outputs"] = h.detach().cpu().numpy()
    m.total += loss.item() * len(h)
    m.best = min(m.best, float(loss.detach()))
    m.last = loss.item()
    return loss


@right
def told(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    print(f"loss {loss.item():.3f} of {h.mean()}", loss.item())
    logging.getLogger().info("loss %s", loss.item())
    if loss.item() > 1e6:
        print("large", loss.item())
    if h.abs().max() > 1e6 or float(loss.detach()) > 1e6:
        warnings.warn("large", stacklevel=1)
    return loss


@right
def checked(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    with torch.no_grad():
        assert torch.isfinite(h).all(), "not finite"
    if torch.isnan(loss):
        raise ValueError(f"loss {loss}")
    if math.isnan(loss.item()) or taken.isnan().any().item() or not math.isfinite(float(loss.detach())):
        print("not finite", loss)
        raise FloatingPointError
    assert 0 <= loss.item() <= 1e9
    return loss


@right
def read_before_it_is_written(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    with contextlib.nullcontext():
        total = h.detach().sum()
        before: float = total.item()
    listed: list[float] = total.reshape(1).tolist()
    total.add_(1)
    return loss * before + h.sum() * listed[0]


@refused
def on_the_next_step(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    loss = loss / m.previous
    m.previous = loss.item()
    return loss


@refused
def on_whether_there_was_a_step(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    if m.last is not None:
        loss = loss * 2
    m.last = loss.item()
    return loss


@refused
def on_what_is_kept(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    if "loss" in m.stats:
        loss = loss * 2
    m.stats["loss"] = loss.item()
    return loss


@refused
def on_an_average(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    m.previous = 0.9 * m.previous + 0.1 * loss.item()
    return loss / m.previous


@refused
def on_the_best(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    m.best = min(m.best, loss.item())
    return loss - m.best


@refused
def on_a_branch(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    return loss * 2 if float(loss) > 0.5 else loss


@refused
def on_a_branch_that_catches(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    try:
        if loss > 0.5:
            loss = loss * 2
    except Exception:
        loss = loss * 3
    return loss


@refused
def on_a_number_that_catches(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    try:
        loss = loss * (2 if loss.item() > 0.5 else 3)
    except Exception:
        loss = loss * 3
    return loss


@refused
def on_a_check_that_is_caught(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    try:
        if loss > 0.5:
            raise ValueError("large")
    except ValueError:
        loss = loss * 3
    return loss


@refused
def on_a_check_that_does_more(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    if loss > 0.5:
        print("large", loss := loss * 2)
    return loss


@refused
def on_a_text(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    return loss * 2 if str(loss.item()) != "nan" else loss


@refused
def on_a_format(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    return loss * 2 if f"{loss:.1f}" == "0.5" else loss


@refused
def on_a_size(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    return h[: int(taken.sum()) % 3].mean() * loss


@refused
def on_what_is_looked_up(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    return loss * {0.0: 1}.get(loss.item(), 2)


@refused
def on_what_numpy_makes(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    return loss * torch.from_numpy(h.detach().numpy()).mean()


@refused
def on_what_numpy_writes(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    held = h * 1
    array = held.detach().numpy()
    array *= 2
    return (held * loss).sum()


@refused
def on_what_numpy_fills(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    held = h * 1
    np.clip(held.detach().numpy(), 0, 1, out=held.detach().numpy())
    return (held * loss).sum()


@right
def made_anew_of_numbers(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    count, share = int(taken.sum()), taken.double().mean().item()
    torch.tensor(count).add_(1)
    torch.tensor(share, dtype=torch.float64).add_(1)
    return loss * count + loss * share


@refused
def on_an_error_of_python(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    count = (h > 100).sum().item()
    try:
        return loss / (1 / count)
    except ZeroDivisionError:
        return loss


@refused
def on_a_large_number(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    count = int(taken.sum())
    return loss * (count * count * count % 97)


@refused
def on_a_root(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    number: float = loss.item() ** 0.5
    return loss * number


@refused
def on_a_part_of_a_check(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    held = [1, 2]
    if loss.item() > 0.01 and held.pop() > 5:
        raise ValueError("large")
    return loss * len(held)


@refused
def on_what_is_told(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    held = [1, 2]
    if loss.item() > 0.01:
        print("large", held.pop())
    return loss * len(held)


def _print(held: list[int]) -> None:
    held.append(1)


@refused
def on_who_tells(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    print, held = _print, [1, 2]
    if loss.item() > 0.01:
        print(held)
    return loss * len(held)


def _raising(loss: Tensor) -> float:
    if loss.item() > 0.01:
        raise ValueError("large")
    return 2.0


@contextlib.contextmanager
def _passing() -> Iterator[None]:
    with contextlib.suppress(ValueError):
        yield


_caught = _passing()(_raising)


@refused
def on_a_decorator(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    return loss * (_caught(loss) or 3.0)


@refused
def on_a_key(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    try:
        number = max([loss, loss * 2], key=_raising)
    except ValueError:
        number = loss * 5
    return number


@refused
def on_a_closure(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    if m.held is not None:
        loss = loss * 2
    number = loss.item()
    m.held = lambda: number
    return loss


@refused
def on_what_is_bound(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    if m.held is not None:
        loss = loss * 2
    m.held = functools.partial(abs, loss.item())
    return loss


@refused
def on_a_long_list(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    if m.stats.setdefault("list", [None] * 150)[140] is not None:  # type: ignore[index]
        loss = loss * 2
    m.stats["list"][140] = loss.item()  # type: ignore[index]
    return loss


@refused
def on_a_flag(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    loss = loss * 2 if m.held else loss
    m.held = taken.any().item()
    return loss


@refused
def on_a_joined_text(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    return loss * len(f"class {int(taken.sum())}")


@refused
def on_the_text_of_a_tensor(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    return loss * 2 if str(loss).startswith("tensor") else loss


@refused
def on_a_place_that_numpy_writes(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    held = h * 1
    np.clip(held.detach().numpy(), 0, 1, held.detach().numpy())
    return (held * loss).sum()


@refused
def on_whole_bounds(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    return loss * (h * 3).long().clamp(min=0.5, max=int(taken.sum())).sum()


@refused
def on_whether_it_is_true(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    return loss * 2 if taken.any().item() is True else loss


@refused
def on_a_comparison(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    match loss.item() > 0:
        case True:
            return loss * 2
    return loss


@refused
def on_what_numpy_says(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    return loss * 2 if np.isfinite(loss.item()) is np.True_ else loss


@refused
def on_digits(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    return loss * round(loss.item(), 1)


@refused
def on_classes(m: Reader, h: Tensor, e: Tensor, loss: Tensor, taken: Tensor) -> Tensor:
    return functional.cross_entropy(h, (h.argmax(-1) + int(taken.any())) % int(taken.sum()))


def counting() -> Reader:
    """Divides by how many labels it takes."""
    return Reader(divided_by_a_count)


def checking() -> Reader:
    """Checks its values."""
    return Reader(checked)
