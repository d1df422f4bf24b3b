"""Functions of TorchScript, run as they are written.

`torch.jit.script` runs a function op by op until it has seen it often enough, then a rewritten one, whose ops are
others and have no line of the model. What was rewritten before a capture is forgotten, and nothing is during one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch.jit import _state

# Runs of a function before it is rewritten: more than there are.
NEVER = 2**31 - 1


@contextmanager
def scripts_as_written() -> Iterator[None]:
    """In the body the functions of TorchScript run op by op."""
    told = cast("Callable[[int], int]", torch._C._jit_set_num_profiled_runs)  # whose annotation is another's
    before = told(NEVER)
    try:
        for name in set(_state._jit_caching_layer.values()):
            function = _state._python_cu.find_function(name)
            if function is not None:
                function._debug_flush_compilation_cache()  # type: ignore[attr-defined]  # which torch's stubs leave out
        yield
    finally:
        told(before)
