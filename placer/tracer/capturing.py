"""capture(model) -> Graph: export on meta tensors, at two row counts, repeated layers once; then measure and divide.

model --export at 3 and 5 rows--> two plain graphs --lift--> one graph for any rows
      --play on meta at rows and rows + 1--> facts --partition, assemble--> Graph
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import fx, nn

from placer.errors import CaptureError, UncapturableError
from placer.graph import Granularity, Graph, Loss
from placer.plans.settings import Precision
from placer.rules.opaque import OpaqueCost
from placer.tracer.export.cleaning import Plain, clean, own_state
from placer.tracer.export.evaluation import evaluation_difference
from placer.tracer.export.exporting import LossFunction, Training, export, uncollected, unexportable
from placer.tracer.export.folding import Repeat, UnfoldableError, folded, repeats
from placer.tracer.export.folds.gaps import require_even_gaps
from placer.tracer.export.folds.witness import is_borne_out
from placer.tracer.export.later_steps import require_alike_later
from placer.tracer.export.opaque import calling, part_writes, require_one_writer, watched
from placer.tracer.export.opaque_trials import PartError
from placer.tracer.export.state.dense_state import require_dense
from placer.tracer.export.state.own_tensors import OwnTensors
from placer.tracer.export.state.shared_memory import require_memory_apart
from placer.tracer.export.symbolic_rows import ROWS, OtherRowsError, lifted
from placer.tracer.export.torchs_own.autocast_regions import for_autocast
from placer.tracer.export.torchs_own.failures import EXPORT_NEEDS, MixedDevicesError, RaisedError
from placer.tracer.export.unfolding import grown
from placer.tracer.export.unseen import UnseenError, require_plain_gradients
from placer.tracer.functional import functional
from placer.tracer.functional.buffers import row_updates
from placer.tracer.functional.dropout_apart import dropout_apart
from placer.tracer.functional.paths_that_drop import mark_paths
from placer.tracer.graph_builder import assembled
from placer.tracer.inputs.asked_by_model import in_evaluation, of_checks, of_evaluation, of_places, passed_over
from placer.tracer.inputs.batch_checks import hints, input_names
from placer.tracer.inputs.batches import Batch, BatchLike, normalised, with_integer_labels
from placer.tracer.inputs.casting import RUN_DTYPES, batch_in, in_dtype
from placer.tracer.inputs.models import resolve
from placer.tracer.inputs.weightless import on_meta
from placer.tracer.measure.meta_run import played
from placer.tracer.measure.op_facts import sampled
from placer.tracer.partition.blocks import Partition, partition
from placer.tracer.parts_apart import said_of_rows
from placer.tracer.parts_to_blame import cost_of, in_its_place, mistaken, note, raised_again, to_blame, with_first
from placer.tracer.selections.products import Products


@torch.inference_mode(False)  # gradients are on in it, wherever the caller stands
def capture(
    model: object,
    *,
    batch: BatchLike = None,
    loss_fn: LossFunction | None = None,
    devices: int = 1,
    fold: bool = True,
    opaque: Sequence[str] | Mapping[str, OpaqueCost] = (),
    granularity: Granularity = "block",
    precision: Precision | None = None,
) -> Graph:
    """The Graph of one training step's forward and loss, made without a GPU, and without weights where meta tensors do:
    a model that reads values as it is built, or constants that are no part of it, is captured with them on the CPU.

    model: a module, "package.module:factory", a Hugging Face config or config.json. batch: tensors or shapes by name,
    or text such as "8x128"; None takes what the model implies, one row for each of `devices`, and notes that.
    loss_fn(output, batch) gives the loss where the model has none. fold: export repeated layers once; the Graph is the
    same without. opaque: submodules that are not looked into, by name, with what they cost where that is known; where
    an export fails inside a submodule for what only running it can tell, that one is taken too, with a note.
    granularity: whether layers, or single ops, are what is placed. precision: of the run, whose types weights and
    floating inputs get (None: those they have). What is captured trains, also where the caller is under no_grad, which
    would leave gradients out of it. Raises CaptureError with the model's source line.
    """
    resolved = resolve(model)
    given = resolved.build("meta")
    require_plain_gradients(given)
    require_dense(given)
    require_memory_apart(given)

    theirs = resolved.ref.kind == "module"
    modes = tuple(in_evaluation(given, kept=theirs))

    def cast(one: nn.Module) -> nn.Module:
        one = one if theirs else one.train()
        return one if precision is None else in_dtype(one, RUN_DTYPES[precision], copied=theirs)

    built = cast(on_meta(given))
    _require_names(built)
    _require_python(built)
    example = normalised(built, batch, devices=devices, own_loss=loss_fn is not None)
    example = example if precision is None else batch_in(example, RUN_DTYPES[precision])
    parts = dict(opaque) if isinstance(opaque, Mapping) else dict.fromkeys(opaque, OpaqueCost())
    parted, passed = set[str](), set[str]()
    source = Source(
        model=built, example=example, loss_fn=loss_fn, opaque=parts, granularity=granularity, parted=parted,
        passed=passed, fresh=lambda: cast(on_meta(resolved.build("meta"))), given=given,
    )  # fmt: skip
    with for_autocast(precision == "bfloat16-autocast"):
        try:
            graph = _any_way(source, fold)
        except MixedDevicesError:

            def fresh() -> nn.Module:
                return cast(resolved.build("cpu"))

            graph = _any_way(replace(source, model=fresh(), fresh=fresh, device="cpu"), fold)
    why = min(parted, default="")
    said = (*modes, *passed_over(built), *of_evaluation(why), *of_checks(passed), *of_places(graph))
    return replace(graph, evaluation=why, notes=(*graph.notes, *said))


def _require_names(model: nn.Module) -> None:
    """No parameter or buffer is named as what torch.fx has in every graph. Raises UncapturableError."""
    taken = next((name for name in own_state(model) if hasattr(fx.GraphModule, name)), None)
    if taken is not None:
        raise UncapturableError(f"the model's tensor {taken!r} has a name that torch.fx takes for its own; rename it")


def _require_python(model: nn.Module) -> None:
    """Raises UncapturableError where a part of the model is no Python code any more."""
    name = next((name for name, part in model.named_modules() if isinstance(part, torch.jit.ScriptModule)), None)
    if name is not None:
        raise UncapturableError(
            f"{name or 'the model'} was compiled by torch.jit, which a capture cannot look into; give the module that "
            "it was made of"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is captured: a model that lies on `device`, an example batch, a loss, the parts that are not looked into.

    parted: takes where evaluation parts from what is captured; None where nobody asks. passed: takes the checks of
    values that were not made. fresh: makes the model anew, as it was before any export ran it. products: of the
    rows that masks select. given: the model that was given, of which `model` may be a copy.
    """

    model: nn.Module
    example: Batch
    loss_fn: LossFunction | None
    device: str | torch.device = "meta"
    opaque: Mapping[str, OpaqueCost]
    granularity: Granularity = "block"
    parted: set[str] | None = None
    passed: set[str] = field(default_factory=set)
    fresh: Callable[[], nn.Module] | None = None
    products: Products = field(default_factory=Products)
    given: nn.Module | None = None


def _any_way(source: Source, fold: bool) -> Graph:
    """The Graph, with products of all rows where a mask selects them and there is no other way."""
    try:
        return _with_opaque(source, fold)
    except CaptureError:
        if source.products.missed:
            with contextlib.suppress(CaptureError):
                return _with_opaque(replace(source, products=Products(allowed=True)), fold)
        raise


def _with_opaque(source: Source, fold: bool) -> Graph:
    """The Graph; each submodule inside which the export fails for what only running it can tell becomes opaque.

    So do those in its place in other layers; one of them that cannot run by itself is looked into again."""
    found, like = dict[str, CaptureError](), set[str]()
    while True:
        parts = source.opaque
        try:
            graph = _captured(source, fold).graph
            notes = (*(note(name, why) for name, why in found.items()), *source.products.notes)
            return replace(graph, notes=(*graph.notes, *notes))
        except CaptureError as error:
            if isinstance(error, PartError) and error.part in like & found.keys():
                del found[error.part]
                source = replace(source, opaque={part: cost for part, cost in parts.items() if part != error.part})
                continue
            raised = raised_again(error, found)
            if raised is not None:
                raise raised from error
            name = to_blame(source.model, error, found, source.opaque, functools.partial(_failing, source, error))
            within = {part for part in parts if part.startswith(f"{name}.")}
            if not name or name in parts or not within <= set(found):
                told = with_first(error, found)
                if told is None:
                    raise
                raise told from error
            kept = {part: cost for part, cost in parts.items() if part not in within}
            others = () if isinstance(error, PartError) else in_its_place(source.model, name, like | kept.keys())
            like = {*like, *others} - {name}
            new = {part: cost_of(source.model.get_submodule(part)) for part in (name, *others)}
            source = replace(source, opaque={**kept, **new})
            first = next((found[part] for part in found if part in within), error)
            found = {part: why for part, why in found.items() if part not in within}
            found |= dict.fromkeys(new, first if isinstance(error, PartError) else error)


def _failing(source: Source, error: CaptureError) -> str:
    """The innermost submodule in which the export fails, as it did with `error`; "" where it is the model itself, or
    none, or the model makes the same mistake where nothing exports it."""
    if source.device == "meta":
        batch, wrapper = source.example.tensors(source.example.rows, "meta"), Training(source.model, source.loss_fn)
        wrapper.constants.values = source.example.constants(source.example.rows)
        with calling(source.model, source.opaque):
            if mistaken(error, wrapper, batch):
                return ""
    with watched(source.model) as inside:
        try:
            _lifted(source, ())
        except CaptureError as error:
            return inside[-1] if inside and unexportable(error) else ""
    return ""


def _captured(source: Source, fold: bool) -> Captured:
    """Captured; where that fails, again with what may be the labels of classes taken for integers, then for the rows
    of the example alone."""
    uneven = source.example.uneven
    if uneven:
        found = captured(replace(source, example=source.example.fixed()), fold)
        return _of_these_rows(found, f"the constant {uneven}, whose rows are not alike, would be another")
    try:
        return captured(source, fold)
    except (UncapturableError, MixedDevicesError):
        raise
    except CaptureError as error:
        example, told = source.example, str(error)
        classes = with_integer_labels(example, input_names(source.model))
        if classes is not None:
            with contextlib.suppress(CaptureError):
                return captured(replace(source, example=classes), fold)
        fresh, unseen = source.fresh, None
        if fresh is not None and isinstance(error, RaisedError | OtherRowsError | PartError):
            for one in filter(None, (example, classes)):
                again = replace(source, model=fresh(), example=one.fixed())
                try:
                    return _of_these_rows(captured(again, fold), str(error))
                except UncapturableError as other:
                    told = str(other)  # with the rows that it wants, it is for another reason
                    unseen = other if isinstance(other, UnseenError) and other.module else unseen
                except CaptureError:
                    continue
        if unseen is not None:
            raise unseen from error
        shapes = {entry.name: entry.shape for entry in example.entries}
        guessed = tuple(entry.name for entry in example.entries if entry.guessed and entry.dtype.is_floating_point)
        told = told if EXPORT_NEEDS in told else f"{told}{hints(shapes, guessed)}"
        raise _told_again(error, told) from error


def _told_again(error: CaptureError, told: str) -> CaptureError:
    """The error with more said."""
    if isinstance(error, PartError):
        return PartError(told, error.part)
    return RaisedError(told) if isinstance(error, RaisedError) else CaptureError(told)


def _of_these_rows(found: Captured, why: str) -> Captured:
    """What was captured for one number of rows, whose batch is not divided; `why` other numbers failed."""
    graph = found.graph
    why = why.partition("; correct that line")[0]
    said = f"the model is captured for batches of {graph.rows} rows alone: with other numbers of them {why}"
    loss = graph.loss if graph.loss.reduction == "none" else replace(graph.loss, reduction="other", why=said)
    return replace(found, graph=replace(graph, loss=loss, notes=(*graph.notes, said)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A Graph together with the plain fx graph it was made from and its division into blocks."""

    graph: Graph
    plain: Plain
    parts: Partition


@uncollected()
def captured(source: Source, fold: bool = True) -> Captured:
    """Capture `source`; without `fold` every layer is exported by itself.

    So it is where parts are opaque: each is known by its own name.
    """
    plain = _exported(source, fold and not source.opaque)
    require_one_writer(plain.graph)
    example = source.example
    first, second = (played(plain, example.tensors(example.rows + more, "meta")) for more in (0, 1))
    samples = sampled(plain.graph, example.rows, first, second)
    pieces = partition(plain, source.model, samples.first, source.granularity)
    graph = assembled(type(source.model).__name__, plain, pieces, samples, example.assumptions)
    loss = _with_buffers(_whole(graph.loss, source.opaque), plain, example)
    values = {entry.name: entry.values for entry in example.entries}
    inputs = tuple(replace(entry, values=values[entry.name]) for entry in graph.inputs)
    graph = replace(graph, loss=loss, inputs=inputs, granularity=source.granularity)
    return Captured(graph=graph, plain=plain, parts=pieces)


def _with_buffers(loss: Loss, plain: Plain, example: Batch) -> Loss:
    """The loss; where forward writes a buffer from the rows at hand, one that does not add up over them."""
    found = row_updates(plain.graph, (entry.name for entry in example.entries if entry.batched))
    if not found or loss.reduction == "none":
        return loss
    one = found[0]
    why = (
        f"the buffer {one.buffer} is written from the rows at hand by {one.op} at {one.source}, which gives what one "
        "device writes only where it sees the whole batch at once"
    )
    return replace(loss, reduction="other", why=why)


def _whole(loss: Loss, parts: Mapping[str, OpaqueCost]) -> Loss:
    """The loss; where an opaque part may mix rows of the batch, one that does not add up over them."""
    if loss.reduction == "none":
        return loss
    writing = next((name for name, cost in parts.items() if cost.rows_apart and part_writes(name)), None)
    if writing is not None:
        why = (
            f"{writing} is opaque and writes its buffer {min(part_writes(writing))}, once a step where it sees the "
            "whole batch at once, and once for each piece of a batch that is divided; write it outside of the part"
        )
        return replace(loss, reduction="other", why=why)
    mixing = [name for name, cost in parts.items() if not cost.rows_apart]
    if not mixing:
        return loss
    return replace(loss, reduction="other", why=said_of_rows(mixing))


def _exported(source: Source, fold: bool) -> Plain:
    found = repeats(source.model) if fold else ()
    given = source.example.tensors(ROWS[0], source.device), source.example.constants(ROWS[0])
    if found and is_borne_out(source.model, source.loss_fn, source.opaque, given, found):
        with contextlib.suppress(UnfoldableError, CaptureError, LookupError):
            return grown(_lifted(source, found), found, own_state(source.model))
    return _lifted(source, ())


def _lifted(source: Source, found: tuple[Repeat, ...], known: bool = False) -> Plain:
    """known: what forward makes of numbers has them, also where it is made on meta."""
    wrapper = Training(source.model, source.loss_fn)
    wrapper.products, wrapper.literals.known = source.products, known
    own = OwnTensors(own_state(source.model), own_state(source.given or source.model))
    wrapper.own = own
    numbers = set[tuple[str, ...]]()

    def plain(rows: int) -> Plain:
        made = _plain(wrapper, source, rows, own, found)
        numbers.add(tuple(wrapper.literals.training))
        return made

    with folded(source.model, found), calling(source.model, source.opaque):
        try:
            made = lifted(plain, tuple(one.name for one in source.example.entries if one.batched), source.example.rows)
        except OtherRowsError:
            if known or source.device != "meta" or len(numbers) < 2:
                raise
        else:
            if wrapper.kept.left:
                require_alike_later(source.model, wrapper.kept, source.device, plain)
            if known or source.device != "meta" or len(numbers) < 2:
                return made
    return _lifted(source, found, known=True)  # it makes other numbers of other rows


def _plain(wrapper: Training, source: Source, rows: int, own: OwnTensors, found: tuple[Repeat, ...]) -> Plain:
    """The graph for so many rows, which computes values and writes nothing but buffers, these once."""
    given, inputs = source.example.tensors(rows, source.device), source.example.tensors(rows, "meta")
    wrapper.constants.values = source.example.constants(rows)

    @functools.cache
    def evaluated() -> Plain:
        return dropout_apart(clean(export(wrapper, given, training=False), own), inputs)

    buffers = frozenset(name for name, _ in wrapper.model.named_buffers())
    plain = dropout_apart(clean(export(wrapper, given), own), inputs)
    require_even_gaps(plain, found)
    plain = functional(plain, inputs, buffers, evaluated)
    wrapper.kept_on = mark_paths(plain, evaluated, wrapper.kept_on)
    if source.parted is not None and rows == ROWS[0]:
        source.parted.update(_parted(wrapper, plain, lambda: functional(evaluated(), inputs, buffers, evaluated)))
        source.passed.update(wrapper.passed)
    return plain


def _parted(wrapper: Training, plain: Plain, evaluated: Callable[[], Plain]) -> set[str]:
    """Why the graph does not give what the model gives in evaluation, where that is so or cannot be known."""
    try:
        why = evaluation_difference(plain, evaluated())
        if not why and wrapper.literals.training != wrapper.literals.evaluation:
            why = "the model makes tensors of other numbers in evaluation than in training"
    except CaptureError as error:
        why = f"the model cannot be captured in evaluation ({error})"
    return {why} if why else set()
