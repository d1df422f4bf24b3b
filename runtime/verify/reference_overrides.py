"""What stands for torch's own functions while the reference run calls the model, so that its steps are the plan's.

A mean cross entropy becomes sum / count of the global batch, dropout masks are those of the rows (`dropout.kept`), and
where stages divide rows differently each batch norm takes the rows of the replicas of its own stage one after the
other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from placer.errors import UsageError
from placer.runtime.stages.dropout import attention, dropout
from placer.runtime.stages.losses import counted
from placer.runtime.stages.pass_context import PassContext

Function = Callable[..., object]
Args = tuple[object, ...]
Named = dict[str, object]

_LABELLED = (functional.cross_entropy, functional.nll_loss)
_UNKEYED = (functional.alpha_dropout, functional.feature_alpha_dropout, functional.dropout1d, functional.dropout2d)


@dataclass
class Counting(TorchFunctionMode):
    """Counts what the labelled means of a forward divide by."""

    counts: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Named | None = None) -> object:
        """Note the count of a labelled mean; everything runs as it is."""
        named = _labelled_arguments(func, args, kwargs or {})
        if named is not None:
            target, weight = cast(torch.Tensor, named["target"]), cast("torch.Tensor | None", named["weight"])
            self.counts.append(counted(target, cast(int, named["ignore_index"]), weight))
        return func(*args, **(kwargs or {}))


class Sharing(TorchFunctionMode):
    """Replaces labelled means by sum / global count, dropout by the mask of the rows, batch norm by that of parts.

    divisions: for each call of batch norm the rows of which it takes the statistics one after the other.
    """

    def __init__(
        self, mode: PassContext, batched: tuple[bool, ...], divisions: tuple[tuple[int, ...], ...] = ()
    ) -> None:
        super().__init__()
        self._mode, self._batched = mode, batched
        self._divisions = iter(divisions)
        self._tracked: torch.Tensor | None = None
        self.labelled = 0
        self._dropouts = 0

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Named | None = None) -> object:
        """Run `func`, or what stands for it."""
        kwargs = kwargs or {}
        named = _labelled_arguments(func, args, kwargs)
        if named is not None:
            count = self._mode.counts[self.labelled]
            self.labelled += 1
            total = func(**{**named, "reduction": "sum"})
            return cast(torch.Tensor, total) / (count or 1.0)
        if func is functional.dropout:
            return self._dropped(*args, **kwargs)  # type: ignore[arg-type]
        if func is torch.Tensor.add_ and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.int64:
            self._tracked = args[0]  # the batches that the norm which follows has seen
        if func is functional.batch_norm and self._mode.training:
            rows = next(self._divisions, None)
            if rows is not None:
                return self._normed(rows, *args, **kwargs)  # type: ignore[arg-type]
        if func is functional.scaled_dot_product_attention:
            return self._attended(*args, **kwargs)  # type: ignore[arg-type]
        if func in _UNKEYED and self._mode.training:
            raise UsageError(
                f"the model draws random numbers by {func.__name__}, which no layout can repeat; turn it off to verify"
            )
        return func(*args, **kwargs)

    def _normed(
        self,
        rows: tuple[int, ...],
        values: torch.Tensor,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        *args: object,
        **kwargs: object,
    ) -> torch.Tensor:
        """Batch norm of each replica's rows; the running statistics are those of replica 0, if it has any."""
        made: list[torch.Tensor] = []
        parts = torch.split(values, [values.shape[0] // sum(rows) * count for count in rows])
        for replica, part in enumerate(parts):
            moving = (running_mean, running_var)
            kept = [one if one is None or replica == 0 else one.clone() for one in moving]
            if part.shape[0]:
                made.append(functional.batch_norm(part, *kept, *args, **kwargs))  # type: ignore[arg-type]
        if not rows[0] and self._tracked is not None:
            self._tracked -= 1
        return torch.cat(made)

    def _dropped(
        self, values: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        if not training or p == 0.0:
            return values
        op = self._next()
        return dropout(values, p, op, self._batched[op], self._mode)

    def _attended(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        op = self._next() if dropout_p else 0
        return attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, grouped=enable_gqa, op=op, mode=self._mode
        )

    def _next(self) -> int:
        self._dropouts += 1
        return self._dropouts - 1


def _labelled_arguments(func: Function, args: Args, kwargs: Named) -> Named | None:
    """The arguments of a mean cross entropy or negative log likelihood by name; None for anything else."""
    if func not in _LABELLED:
        return None
    names = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
    named: Named = {"weight": None, "ignore_index": -100, "reduction": "mean"}
    named.update(zip(names, args, strict=False))
    named.update(kwargs)
    return named if named["reduction"] == "mean" else None
