"""Functions of TorchScript, run as they are written.

`torch.jit.script` runs a function op by op until it has seen it often enough, then a rewritten one, whose ops are
others and have no line of the model. What was rewritten before a capture is forgotten, and nothing is during one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from torch.jit import _state
from torch.jit._fuser import optimized_execution

# Runs of a function before it is rewritten: more than there are.
NEVER = 2**31 - 1


@contextmanager
def scripts_as_written() -> Iterator[None]:
    """In the body the functions of TorchScript run op by op.

    Where a library chose torch's older executor, which rewrites a function before its first run, nothing is rewritten.
    """
    told = cast("Callable[[int], int]", torch._C._jit_set_num_profiled_runs)  # whose annotation is another's
    before = told(NEVER)
    try:
        with nullcontext() if _forgotten() else optimized_execution(False):
            yield
    finally:
        told(before)


def _forgotten() -> bool:
    """Whether all functions could forget what was rewritten of them."""
    functions = [_state._python_cu.find_function(name) for name in set(_state._jit_caching_layer.values())]
    forgot = [_forgets(function) for function in functions if function is not None]
    return all(forgot)


def _forgets(function: torch._C.ScriptFunction[..., Any]) -> bool:
    try:
        function._debug_flush_compilation_cache()  # type: ignore[attr-defined]  # which torch's stubs leave out
    except RuntimeError:  # "Not Implemented for Legacy Executor"
        return False
    return True
