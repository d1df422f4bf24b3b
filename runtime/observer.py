"""What watches a step: the executor tells an `Observer` where time goes and which communication was really done.

`placer.runtime.measuring.measurement` is the one of a run. What must see every op, which
nobody tells it, is an `OpWatch`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, Protocol

from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from placer.program.instructions import Collective, Message


class Observer(Protocol):
    """Hook points of one rank's step, called in the order things happen."""

    def during(self, category: Category) -> AbstractContextManager[None]:
        """Surrounds work of `category`; nested calls take their time out of the outer one."""
        ...

    def message(self, message: Message, sizes: tuple[int, ...]) -> None:
        """A point-to-point transfer was posted (send) or is complete (receive); `sizes` are bytes of each value."""
        ...

    def collective(self, collective: Collective) -> None:
        """A collective was issued; `bytes` are those really moved (of the full buffer)."""
        ...


_NOTHING = nullcontext()


class Relay:
    """Passes everything on to `target`, which may be exchanged while parts of the executor hold the relay; to nobody
    where that is None."""

    def __init__(self) -> None:
        self.target: Observer | None = None

    def during(self, category: Category) -> AbstractContextManager[None]:
        """Passes it on."""
        return _NOTHING if self.target is None else self.target.during(category)

    def message(self, message: Message, sizes: tuple[int, ...]) -> None:
        """Passes it on."""
        if self.target is not None:
            self.target.message(message, sizes)

    def collective(self, collective: Collective) -> None:
        """Passes it on."""
        if self.target is not None:
            self.target.collective(collective)


Category = Literal["forward", "backward", "recompute", "communication", "reduction", "bubble", "optimizer", "data"]


class OpWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type it
    """What every op in the body of `with` passes, below autograd: `op` does it, or something in its place."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code runs compiled while it is watched: torch would run it op by op, or refuse to."""
        return True

    def __torch_dispatch__(
        self, func: OpOverload, types: Iterable[type], args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:  # fmt: skip
        return self.op(func, args, kwargs or {})

    @abstractmethod
    def op(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """What `func` gives."""
