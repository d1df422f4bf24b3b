"""Bytes that are alive on one rank at once, whatever they are for: each storage counts from the op that makes it until
nobody holds it, as an allocator without slack would count. It slows every op, so one step is enough.

    with Allocated(held) as allocated:
        executor.step(batch)
    allocated.peak

FSDP2 gives up and takes back the memory of storages it keeps, which no op shows: their own `resize_` is watched.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps

import torch
from torch._guards import active_fake_mode
from torch.distributed.tensor import DTensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Allocated(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type it
    """Bytes alive now and at most, of the tensors `held` from the beginning, of `lasting`, which no op may show before
    it is written, and of all that ops make meanwhile."""

    def __init__(self, held: Iterable[torch.Tensor], lasting: Iterable[torch.UntypedStorage] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes: dict[int, int] = {}
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._resize = torch.UntypedStorage.resize_
        self._fake: object = None
        self.alive = 0
        self.peak = 0
        self._count((*_storages(held), *lasting))

    def __enter__(self) -> Allocated:
        self._fake = active_fake_mode()
        torch.UntypedStorage.resize_ = self._resizing()  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: object) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code runs compiled while it is watched: torch would run it op by op, or refuse to."""
        return True

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Run the op and count what it gives."""
        made = func(*args, **(kwargs or {}))
        # DTensor finds out shapes on fake tensors of its own, which take no memory.
        if active_fake_mode() is self._fake:
            leaves = (leaf for leaf in _pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor))
            self._count(_storages(leaves))
        return made

    def _count(self, storages: Iterable[torch.UntypedStorage]) -> None:
        for storage in storages:
            key = id(storage)
            if key not in self._seen:
                self._seen[key] = weakref.ref(storage, partial(self._gone, key))
                self._set(key, storage.nbytes())

    def _set(self, key: int, size: int) -> None:
        self.alive += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak = max(self.peak, self.alive)

    def _gone(self, key: int, reference: object) -> None:
        self._seen.pop(key, None)
        self.alive -= self._sizes.pop(key, 0)

    def _resizing(self) -> Callable[[torch.UntypedStorage, int], object]:
        """`resize_` of storages, seen."""
        original = self._resize

        @wraps(original)
        def resize(storage: torch.UntypedStorage, size: int) -> object:
            done = original(storage, size)
            if id(storage) in self._seen:
                self._set(id(storage), storage.nbytes())
            return done

        return resize


def _storages(tensors: Iterable[torch.Tensor]) -> Iterator[torch.UntypedStorage]:
    for tensor in tensors:
        yield (tensor._local_tensor if isinstance(tensor, DTensor) else tensor).untyped_storage()
