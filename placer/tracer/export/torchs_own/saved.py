"""What autograd saves for a backward: its bytes, told by hooks or found in the graph; hooks put aside for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch.autograd.graph import Node, saved_tensors_hooks


def stored(tensor: torch.Tensor) -> tuple[int, int]:
    """What tells the memory of a tensor from others', and its bytes; a sparse one has those of its entries."""
    if tensor.layout in (torch.strided, torch.jagged):
        storage = (tensor.values() if tensor.is_nested and tensor.layout is torch.jagged else tensor).untyped_storage()
        return storage._cdata, storage.nbytes()
    dims = tensor.sparse_dim() if tensor.layout is torch.sparse_coo else 2
    return id(tensor), tensor._nnz() * (tensor.element_size() + dims * torch.int64.itemsize)


class Saved:
    """What is saved for a backward, but for the memory of `own` (parameters, buffers): each once."""

    def __init__(self, own: Iterable[torch.Tensor]) -> None:
        self._own = {stored(tensor)[0] for tensor in own}
        self._kept: dict[int, tuple[int, torch.Tensor]] = {}

    @property
    def bytes(self) -> int:
        """Bytes that were seen."""
        return sum(size for size, _ in self._kept.values())

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """See what is saved in the body, by hooks."""
        with saved_tensors_hooks(self._keep, lambda tensor: tensor):
            yield

    def bytes_behind(self, results: Iterable[torch.Tensor]) -> int:
        """Bytes that the graph behind `results` has, as far as its nodes tell; of those without one their own."""
        results = tuple(results)
        for tensor in (*_saved_behind(results), *(result for result in results if result.grad_fn is None)):
            self._keep(tensor)
        return self.bytes

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        memory, size = stored(tensor)
        if memory not in self._own:
            self._kept[memory] = size, tensor
        return tensor


def _saved_behind(results: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    waiting = [result.grad_fn for result in results if result.grad_fn is not None]
    seen = set[Node]()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        waiting.extend(below for below, _ in node.next_functions if below is not None)
        for name in (name for name in dir(node) if name.startswith("_saved_") or name == "saved_tensors"):
            held = getattr(node, name)
            yield from (one for one in (held if isinstance(held, tuple | list) else (held,)) if _is_tensor(one))


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


@contextlib.contextmanager
def without_saved_hooks() -> Iterator[None]:
    """In the body autograd saves tensors as they are, whatever hooks are on around it: `torch.func.grad` and its like
    run under none."""
    hooks = torch._C._autograd
    aside = []
    while (top := hooks._top_saved_tensors_default_hooks(True)) is not None:
        aside.append(top)
        hooks._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(aside):
            hooks._push_saved_tensors_default_hooks(pack, unpack)
