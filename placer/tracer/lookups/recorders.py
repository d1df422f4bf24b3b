"""What a library or a person has look at the layers of a model while they run: then each must run where it stands.

Transformers collects hidden states, attentions and the router's logits of every layer by hooks that do nothing unless
it is asked for them (`output_hidden_states`, `output_router_logits`).
"""

from __future__ import annotations

import sys

from torch import nn
from torch.nn.modules import module as modules

_COLLECTING = "transformers.utils.output_capturing"


def is_collecting() -> bool:
    """Whether transformers collects something of the layers of the model that runs."""
    collector = getattr(sys.modules.get(_COLLECTING), "_active_collector", None)
    return collector is not None and bool(collector.get())


def is_watched(module: nn.Module) -> bool:
    """Whether hooks look at a module, at a part or a weight of it, or at every module, that are not transformers'."""
    every = (modules._global_forward_hooks, modules._global_forward_pre_hooks, modules._global_backward_hooks)
    backward = [hooks for part in module.modules() for hooks in (part._backward_hooks, part._backward_pre_hooks)]
    of_weights = [weight._backward_hooks for weight in module.parameters()]
    return any(map(bool, (*every, *backward, *of_weights))) or any(
        getattr(hook, "__module__", "") != _COLLECTING
        for part in module.modules()
        for hooks in (part._forward_hooks, part._forward_pre_hooks)
        for hook in hooks.values()
    )
