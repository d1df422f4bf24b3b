"""What a model asks for that a plan decides instead, or keeps, as notes: recompute, precision, parts in evaluation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from placer.graph import Graph
from placer.tracer.export.modes import still_parts
from placer.tracer.lookups.raising_checks import TELLING


def passed_over(model: nn.Module) -> Iterator[str]:
    """What the model asks for and does not get by that, each with what does it."""
    asking = [
        name for name, module in model.named_modules() if getattr(module, "gradient_checkpointing", False) is True
    ]
    if asking:
        yield (
            f"the model has gradient checkpointing switched on ({asking[0] or type(model).__name__}), which a plan "
            "does not follow: it says by itself which stages recompute (settings.recompute, --recompute full for all)"
        )
    config = getattr(model, "config", None)
    asked = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    if isinstance(asked, torch.dtype) and asked is not torch.float32:
        name = str(asked).removeprefix("torch.")
        yield (
            f"the model's configuration names {name}, which a plan does not follow: it computes in its own precision, "
            f"float32 unless given (settings.precision, --precision {name})"
        )


def of_checks(passed: set[str]) -> Iterator[str]:
    """What is said of a model that looks at values; `passed`: what for, and where, of which the first is told."""
    for what_for in sorted({one.partition(" (")[0] for one in passed}):
        first = min(one for one in passed if one.startswith(what_for))
        taken = "no run tells them" if what_for == TELLING else "it takes them for right"
        yield f"a run does not look at values, as the model does {first}: {taken}"


def of_places(graph: Graph) -> Iterator[str]:
    """What is said of a model that fills places of a mask one after another, which divided rows must do alike."""
    if any(op.target.endswith("::masked_scatter") for _, op in graph.ops):
        yield (
            "where the batch is divided, a run stops at rows of which masked_scatter has more or fewer places to fill "
            "than the row has numbers (image tokens, say, and features of its image); if such come, plan with "
            "--pin data=1 --pin microbatches=1"
        )


def of_evaluation(why: str) -> Iterator[str]:
    """What is said of a model whose loss in evaluation a run cannot give, for the reason `why`, if any."""
    if why:
        yield (
            f"a run trains this model and does not evaluate it (--eval-every, Executor.evaluate): {why}. Evaluate the "
            "saved weights with the model itself"
        )


def in_evaluation(model: nn.Module, *, kept: bool) -> Iterator[str]:
    """What becomes of modules that are in evaluation, `kept` so where the model is a person's own instance; another is
    put in training, as a run does, after which parts that override `train()` may be in evaluation still."""
    still = still_parts(model)
    if not kept:
        model.train()
        still = {name: part for name, part in still.items() if part.training}
    more = f" and {len(still) - 1} more modules are" if len(still) > 1 else " is"
    if still and kept:
        yield (
            f"{next(iter(still))}{more} in evaluation (eval()) while the model trains, as in a run: statistics and "
            "dropout there are those of evaluation; call train() on the model before it is planned if they shall train"
        )
    elif still:
        yield (
            f"{next(iter(still))}{more} in evaluation (eval()) as the model is built, and a run puts all in training, "
            "as model.train() does; a part that shall stay so overrides train()"
        )
    elif not model.training and kept:
        yield "the model is in evaluation (eval()), and a run puts it in training, as model.train() does"
