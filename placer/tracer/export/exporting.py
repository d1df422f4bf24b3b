"""torch.export of a model in training mode, at a fixed number of rows, with errors that name the model's source line.

The loss is part of the graph: `loss_fn(output, batch)` where given, else the output's own: what it calls `loss`, or the
only number in it where that comes first. A model without one gives its output tensors.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from unittest import mock

import torch
from torch import fx, nn
from torch.utils import _pytree

from placer.errors import CaptureError, PlacerError, UncapturableError, UsageError
from placer.io.one_device import as_on_one_device
from placer.io.usercode import source_line
from placer.tracer.export.foreign_draws import foreign_draws_refused
from placer.tracer.export.modes import Literals, in_mode, literals_noted
from placer.tracer.export.state.kept_values import Kept, untouched
from placer.tracer.export.state.module_state import state_written
from placer.tracer.export.state.own_tensors import OwnTensors
from placer.tracer.export.torchs_own import bounded_sizes, names_in_code  # noqa: F401 - they tell torch what it lacks
from placer.tracer.export.torchs_own.failed_calls import failed_calls_left
from placer.tracer.export.torchs_own.failures import (
    RaisedError,
    ValueDependentError,
    called_as,
    capture_error,
    depends_on_values,
    reads_numbers,
)
from placer.tracer.export.torchs_own.own_classes import own_classes
from placer.tracer.export.torchs_own.reading import Reading, numbers_read
from placer.tracer.export.torchs_own.scripted import scripts_as_written
from placer.tracer.export.torchs_own.sparing import sparing
from placer.tracer.export.unseen import UnseenError, told_of_the_export, unseen_refused
from placer.tracer.lookups.constant_values import Constants
from placer.tracer.lookups.counted import counts_by_values, reads_values
from placer.tracer.lookups.library_masks import library_masks_left_out
from placer.tracer.lookups.padded_targets import PaddedTargets
from placer.tracer.lookups.raising_checks import ChecksPassed
from placer.tracer.lookups.readings import Readings
from placer.tracer.lookups.type_names import TypeNames
from placer.tracer.lookups.value_checks import values_unchecked
from placer.tracer.selections.answers import answered
from placer.tracer.selections.mode import Selections
from placer.tracer.selections.products import Products
from placer.tracer.selections.selected import REFUSED, is_selected

LossFunction = Callable[[object, dict[str, torch.Tensor]], torch.Tensor]
_Runs: TypeAlias = "Callable[[Training, dict[str, torch.Tensor]], nn.Module]"


class Training(nn.Module):
    """What is exported: the model followed by its loss. passed: checks that were taken as passed. products: of
    the rows that masks select. kept_on: what joins values with random numbers in evaluation too, if known."""

    def __init__(self, model: nn.Module, loss_fn: LossFunction | None):
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn
        self.kept = Kept()
        self.literals = Literals()
        self.passed: set[str] = set()
        self.constants = Constants()
        self.products = Products()
        self.readings = Readings()
        self.own: OwnTensors | None = None
        self.kept_on: frozenset[tuple[str, object, object]] | None = None

    def forward(self, **batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The loss alone where there is one, a tensor of no dims, else every output tensor."""
        rows = max((tensor.shape[0] for tensor in batch.values() if tensor.dim()), default=1)
        noting = contextlib.nullcontext() if self.own is None else self.own.noting()
        with state_written(self.model, self.loss_fn, self.kept, rows), self.constants.known(batch), noting:
            results = self._results(batch)
        if self.readings.written():
            raise UncapturableError(
                "forward writes into what a number that it reads from a tensor picks of another (table[place] += ..., "
                "with a place that is a tensor), or into that other after it was picked: an export has a copy of it; "
                "use index_copy, or clone() what is picked or written"
            )
        if self.readings.alive():
            raise UncapturableError(
                "forward keeps a number that it reads from a tensor (.item(), float()), which an export does not know; "
                "keep the tensor in a buffer, or read it outside of forward"
            )
        return results

    def run(self, batch: dict[str, torch.Tensor]) -> None:
        """Run the model and its loss, of which nothing is noted."""
        with self.constants.known(batch):
            self._results(batch)

    def _results(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        if self.loss_fn is not None:
            return (_number(self.loss_fn(self.model(**_arguments(self.model, batch)), batch), self.loss_fn),)
        output = self.model(**batch)
        leaves = tuple(leaf for leaf in _pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor))
        loss = _own_loss(output, leaves)
        return leaves if loss is None else (_without_dims(loss),)


def _own_loss(output: object, leaves: tuple[torch.Tensor, ...]) -> torch.Tensor | None:
    """The loss in what a model gives: what is called so, the only tensor, or the first of several, where that alone is
    one number."""
    loss = output.get("loss") if isinstance(output, Mapping) else None
    loss = getattr(output, "loss", None) if loss is None else loss
    if isinstance(loss, torch.Tensor):
        return loss
    known = [leaf for leaf in leaves if not is_selected(leaf)]
    numbers = [leaf for leaf in known if leaf.numel() == 1 and leaf.is_floating_point()]
    return numbers[0] if len(numbers) == 1 and numbers[0] is leaves[0] else None


def _arguments(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What of the batch forward takes by name; the rest is for the caller's loss. Bare `**inputs` take everything."""
    formal = inspect.signature(model.forward).parameters.values()
    named = {one.name for one in formal if one.kind is not one.VAR_KEYWORD and one.kind is not one.VAR_POSITIONAL}
    takes_any = not named and any(one.kind is one.VAR_KEYWORD for one in formal)
    return batch if takes_any else {name: tensor for name, tensor in batch.items() if name in named}


def _number(loss: object, loss_fn: LossFunction) -> torch.Tensor:
    name = getattr(loss_fn, "__qualname__", type(loss_fn).__name__)
    if not isinstance(loss, torch.Tensor):
        made = called_as(loss_fn) if isinstance(loss_fn, type) else ""
        raise UsageError(f"the loss {name} gave a {type(loss).__name__}; it must return a tensor of one number{made}")
    if loss.numel() != 1:
        raise UsageError(
            f"the loss {name} gave a tensor of shape {tuple(loss.shape)}; it must return one number: "
            "end it in .mean() or .sum()"
        )
    return _without_dims(loss)


def _without_dims(loss: torch.Tensor) -> torch.Tensor:
    """A loss of shape (1,) is one number too."""
    return loss.reshape(()) if loss.dim() and loss.numel() == 1 else loss


def unexportable(error: BaseException) -> bool:
    """Whether an export failed where running the model itself may not: for values, for what backward does, or for
    anything that an export raised."""
    return isinstance(error, UnseenError | ValueDependentError | RaisedError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """What torch.export gave: the module, its placeholders' names in the batch's order, whether it ends in a loss."""

    module: fx.GraphModule
    wrapper: Training
    input_names: tuple[str, ...]


def export(wrapper: Training, batch: dict[str, torch.Tensor], *, training: bool = True) -> Raw:
    """The exported module for exactly these shapes. Raises CaptureError naming the model's source line."""
    REFUSED.clear()
    try:
        module = _exported(wrapper, batch, None, training)
        module = _sized(wrapper, batch, training, module)
    except PlacerError:
        raise
    except Exception as error:
        own = _own_error(error)
        if own is not None:
            raise own from None
        module = (
            _told(wrapper, batch, error, training)
            or _with_numbers_known(wrapper, batch, error, training)
            or (_selecting(wrapper, batch, training) if depends_on_values(error) else None)
            or (_selecting(wrapper, batch, training, numbers=True) if reads_numbers(error) else None)
            or _with_default_device(wrapper, batch, error, training)
        )
    if not isinstance(module, fx.GraphModule):
        raise CaptureError(f"torch.export gave a {type(module).__name__}, not a graph; report this as a bug of placer")
    return Raw(module=module, wrapper=wrapper, input_names=tuple(batch))


def _exported(
    wrapper: Training, batch: dict[str, torch.Tensor], device: torch.device | None, training: bool,
    selections: Selections | None = None, numbers: bool = False,
) -> nn.Module:  # fmt: skip
    """Exported; where that draws by random numbers that are not torch's, refused. numbers: whether Python's functions
    know the numbers that are read of tensors."""
    again = None if selections is None else _selections(wrapper)
    with foreign_draws_refused(wrapper.model, lambda: _looked_into(wrapper, batch, device, training, again, numbers)):
        return _looked_into(wrapper, batch, device, training, selections, numbers)


def _looked_into(
    wrapper: Training, batch: dict[str, torch.Tensor], device: torch.device | None, training: bool,
    selections: Selections | None, numbers: bool, run: _Runs | None = None,
) -> nn.Module:  # fmt: skip
    """run: instead of an export."""
    wrapper.readings = Readings()
    read = Reading(wrapper.readings)
    with (
        numbers_read(read, wrapper.model, wrapper.loss_fn) if numbers else contextlib.nullcontext(), read,
        selections or contextlib.nullcontext(), untouched(wrapper.model), in_mode(wrapper, training) as cached,
        _quiet(), uncollected(), unseen_refused(wrapper.model), literals_noted(wrapper.literals, training),
        values_unchecked(), library_masks_left_out(cached),
        ChecksPassed(wrapper.passed), PaddedTargets(), TypeNames(), device or contextlib.nullcontext(),
        torch.set_grad_enabled(training), scripts_as_written(), as_on_one_device(), sparing(),
        own_classes(wrapper.model, wrapper.loss_fn),
    ):  # fmt: skip
        made = (run or _by_torch)(wrapper, batch)
        if wrapper.readings.refused:
            raise wrapper.readings.refused[0]
        return made


def _by_torch(wrapper: Training, batch: dict[str, torch.Tensor]) -> nn.Module:
    with failed_calls_left():
        made: nn.Module = torch.export.export(wrapper, (), batch, strict=False).module(check_guards=False)
    return made


def run_as_exported(
    wrapper: Training, batch: dict[str, torch.Tensor], within: contextlib.AbstractContextManager[object]
) -> None:
    """Run what is exported, within a context, as it is in an export, but for torch's own part of that."""

    def run(wrapper: Training, batch: dict[str, torch.Tensor]) -> nn.Module:
        with (
            mock.patch.object(torch.compiler, "_is_compiling_flag", True),
            mock.patch.object(torch.compiler, "_is_exporting_flag", True), within,
        ):  # fmt: skip
            wrapper.run(batch)
        return wrapper

    _looked_into(wrapper, batch, None, True, None, False, run)


def _selecting(
    wrapper: Training, batch: dict[str, torch.Tensor], training: bool, device: torch.device | None = None,
    numbers: bool = False,
) -> nn.Module | None:  # fmt: skip
    """The model where what masks select is summed, averaged or a loss, and numbers that are read are computed with;
    None where something else becomes of it. numbers: see `_exported`."""
    REFUSED.clear()
    with contextlib.suppress(Exception):
        made = _exported(wrapper, batch, device, training, _selections(wrapper), numbers)
        return None if counts_by_values(made) or REFUSED or (numbers and reads_values(made)) else made
    return None


def _selections(wrapper: Training) -> Selections:
    return Selections(wrapper.products, answered)


def _own_error(error: BaseException | None) -> PlacerError | None:
    """What placer refused within what torch raises of it: dynamo, which exports branches, wraps what it meets, also in
    what it raises `from None`."""
    while error is not None and not isinstance(error, PlacerError):
        error = error.__cause__ or (error.__context__ if error.__suppress_context__ else None)
    return error


def _told(wrapper: Training, batch: dict[str, torch.Tensor], error: Exception, training: bool) -> nn.Module | None:
    """A model that asks whether it is exported, and else looks at values, as it is where it hears so."""
    with told_of_the_export() as asked, contextlib.suppress(Exception):
        return _exported(wrapper, batch, None, training) if asked and depends_on_values(error) else None
    return None


def _with_numbers_known(
    wrapper: Training, batch: dict[str, torch.Tensor], error: Exception, training: bool
) -> nn.Module | None:
    """A model that looks at values of what it makes of plain numbers (`torch.arange(2, 4).tolist()`), with these known.

    Then alone, as what is known enters the graph as constants where its sizes depend on it.
    """
    return _with_numbers(wrapper, batch, training) if depends_on_values(error) else None


def _sized(
    wrapper: Training, batch: dict[str, torch.Tensor], training: bool, made: nn.Module,
    device: torch.device | None = None,
) -> nn.Module:  # fmt: skip
    """What was exported, again where values say sizes in it: of selections, or of masks that the model makes of plain
    numbers (`h[~torch.eye(8).bool()]`); as it is where neither helps."""
    if not counts_by_values(made):
        return made
    selected = _selecting(wrapper, batch, training, device)
    if selected is not None:
        return selected
    before = wrapper.constants.numbers
    known = _with_numbers(wrapper, batch, training)
    if known is None or counts_by_values(known):
        wrapper.constants.numbers = before
        return made
    return known


def _with_numbers(wrapper: Training, batch: dict[str, torch.Tensor], training: bool) -> nn.Module | None:
    """Exported with what is made of plain numbers known; None where that fails, or they are known already."""
    if wrapper.constants.numbers:
        return None
    wrapper.constants.numbers = True
    meta = {tensor.device for tensor in batch.values()} == {torch.device("meta")}
    for device in (None, torch.device("meta"))[: 2 if meta else 1]:
        try:
            return _exported(wrapper, batch, device, training)
        except UncapturableError:
            raise
        except Exception:  # the first error says what is wrong
            continue
    wrapper.constants.numbers = False
    return None


def _with_default_device(
    wrapper: Training, batch: dict[str, torch.Tensor], error: Exception, training: bool
) -> nn.Module:
    """A model that makes tensors without naming a device mixes devices on meta: there they are made on meta."""
    devices = {tensor.device for tensor in batch.values()}
    if devices != {torch.device("meta")}:
        raise capture_error(wrapper.model, batch, error, wrapper.loss_fn) from error
    meta = torch.device("meta")
    try:
        return _sized(wrapper, batch, training, _exported(wrapper, batch, meta, training), meta)
    except UncapturableError:
        raise
    except Exception as other:
        found = _selecting(wrapper, batch, training, meta) if depends_on_values(other) else None
        found = found or (_selecting(wrapper, batch, training, meta, numbers=True) if reads_numbers(other) else None)
        if found is None:
            raise capture_error(wrapper.model, batch, error, wrapper.loss_fn) from error
        return found


def line_raised(wrapper: Training, batch: dict[str, torch.Tensor]) -> str:
    """`file:line (code)` at which the model or its loss raises where nothing exports it, on tensors without values; ""
    where it raises nothing."""
    try:
        with untouched(wrapper.model), in_mode(wrapper, True), as_on_one_device(), torch.device("meta"):
            wrapper(**batch)
    except Exception as error:
        return source_line(error)
    return ""


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected in the body; what it leaves is collected after it.

    A collection in the middle of an export ended in a segmentation fault where torch 2.13 takes down stack traces
    (torch/utils/_traceback.py), on two ranks at a time; so did one while the exported graph was being copied.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Nothing of torch's on the screen: its warnings, its log and its print of a failure, said here in one line.

    What the model itself writes to standard error is shown where the export succeeds.
    """
    before, written = logging.root.manager.disable, io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stderr(written):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)
    sys.stderr.write(written.getvalue())
