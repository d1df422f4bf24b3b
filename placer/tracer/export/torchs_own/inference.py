"""What torch.inference_mode is in an export, which leaves it out: gradients are off in it, whatever enables them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import torch

from placer.io.usercode import is_of_users


class _Inferring(threading.local):
    """modes: of the regions of inference mode around what is exported now."""

    def __init__(self) -> None:
        self.modes: list[bool] = []

    @property
    def on(self) -> bool:
        return bool(self.modes and self.modes[-1])


_INFERRING = _Inferring()


def _asked_for_inference(before: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: _INFERRING.on if is_of_users(sys._getframe(1)) else before()


def _enabled_where_not_inferred(before: Callable[..., None]) -> Callable[..., None]:
    """Nothing in inference mode has a gradient, whatever enables them."""

    def enter(region: torch.enable_grad) -> None:
        before(region)
        if _INFERRING.on:
            torch._C._set_grad_enabled(False)

    return enter


def _entered_without_gradients(_: object) -> Callable[..., None]:
    """An export leaves torch.inference_mode out; gradients are off in it, and on where it is off, which it keeps."""

    def enter(region: torch.inference_mode) -> None:
        vars(region).setdefault("_before", []).append(torch.is_grad_enabled())
        _INFERRING.modes.append(region.mode)
        torch.set_grad_enabled(not region.mode)

    return enter


def _left_without_gradients(_: object) -> Callable[..., None]:
    def leave(region: torch.inference_mode, *_: object) -> None:
        _INFERRING.modes.pop()
        torch.set_grad_enabled(vars(region)["_before"].pop())

    return leave


#: What is put in the place of what, as the owner, the name and a function of what was there.
INFERENCE: tuple[tuple[object, str, Callable[..., object]], ...] = (
    (torch.inference_mode, "__enter__", _entered_without_gradients),
    (torch.inference_mode, "__exit__", _left_without_gradients),
    (torch, "is_inference_mode_enabled", _asked_for_inference),
    (torch.enable_grad, "__enter__", _enabled_where_not_inferred),
)
