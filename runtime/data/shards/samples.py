"""What the files of a sample are to a model: its inputs, by the files' suffixes.

INPUT.npy               the row of that input, without the batch dim
INPUT.flat.npy          its numbers without their shape, as TFRecord holds lists of them
jpg, jpeg, png, webp    the one image input (rows, 1 or 3, height, width): the shorter side resized, the middle cut
                        out, values from 0 to 1, or 0 to 255 for integers (needs placer-planner[data])
cls                     the one integer input of a number a row: the class
"""

from __future__ import annotations

import io
import math
from functools import partial

import numpy
import torch

from placer.errors import UsageError, require_extra
from placer.graph import Graph, Input
from placer.runtime.data.batches import Batch, Data, named
from placer.runtime.data.shards.order import Place, ShardOrder
from placer.runtime.data.shards.sample_files import FLAT, Files
from placer.runtime.data.shards.shard_set import ShardSet
from placer.runtime.data.tensors import checked, fitting, signed

IMAGES = ("jpg", "jpeg", "png", "webp")
LABELS = ("cls",)


def shard_data(samples: ShardSet, graph: Graph, *, rows: int, seed: int) -> Data:
    """Shards as the inputs of a model, in the order of `ShardOrder`. Raises UsageError where they do not fit it."""
    order = ShardOrder(samples.counts, seed)
    first = samples.read(order.held_out(0))
    suffixes = {entry.name: _suffix(samples.folder.name, entry, graph, first) for entry in graph.inputs}

    def gather(places: list[Place]) -> Batch:
        read = [samples.read(place) for place in places]
        batch = {}
        for entry in graph.inputs:
            made = [
                _value(entry, files, suffixes[entry.name], samples, place)
                for files, place in zip(read, places, strict=True)
            ]
            stacked = fitting(samples.folder.name, entry, _stacked(entry, made, samples.folder.name))
            batch[entry.name] = checked(entry, stacked, graph, partial(_named, samples, places, suffixes[entry.name]))
        return batch

    stored = f"{len(samples.counts)} shards, {order.samples} samples"
    return Data(
        name=named(stored, trained=order.trained, kept=order.kept, rows=rows),
        batch=lambda at: gather([order.training(index) for index in range(at * rows, (at + 1) * rows)]),
        held_out=lambda at: gather([order.held_out(index) for index in range(at * rows, (at + 1) * rows)]),
        samples=order.samples,
    )


def image_array(
    content: bytes, height: int, width: int, *, channels: int = 3
) -> numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.uint8]]:
    """The middle of an image, height x width x channels, resized to fill them; raises ValueError for no image."""
    require_extra("data", "PIL")
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as opened:
            opened.draft("RGB", (width, height))  # JPEG only: decoded at the next larger of its own scales
            image = opened.convert("RGB" if channels == 3 else "L")
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ValueError(str(error)) from None
    scale = max(width / image.width, height / image.height)
    image = image.resize((max(width, round(image.width * scale)), max(height, round(image.height * scale))))
    left, top = (image.width - width) // 2, (image.height - height) // 2
    array = numpy.asarray(image.crop((left, top, left + width, top + height)), dtype=numpy.uint8)
    return array.reshape(height, width, channels)


def _suffix(folder: str, entry: Input, graph: Graph, files: Files) -> str:
    """The suffix of the file that an input is read from. Raises UsageError naming those that there are."""
    arrays = (f"{entry.name}.npy", f"{entry.name}{FLAT}")
    wanted = (*arrays, *(IMAGES if _is_image(entry) else ()), *(LABELS if _is_label(entry) else ()))
    alike = [one for one in graph.inputs if (_is_image(one), _is_label(one)) == (_is_image(entry), _is_label(entry))]
    known: tuple[str, ...] = wanted if len(alike) == 1 else arrays
    found = next((suffix for suffix in known if suffix in files), None)
    if found is not None:
        return found
    raise UsageError(
        f"{folder}: a sample has the files {', '.join(sorted(files))}; input {entry.name} of the model needs one of "
        f"{', '.join(wanted)}; pack such a file with each sample"
    )


def _is_image(entry: Input) -> bool:
    shape = entry.tensor.shape_at(1)
    return len(shape) == 4 and shape[1] in (1, 3)


def _is_label(entry: Input) -> bool:
    return entry.tensor.dtype in ("int64", "int32") and len(entry.tensor.shape) == 1


def _value(entry: Input, files: Files, suffix: str, samples: ShardSet, place: Place) -> torch.Tensor:
    """A row of an input, without the batch dim. Raises UsageError naming the file that is not what its suffix says."""
    if suffix not in files:
        named = f"{samples.folder.name}: {samples.key(place)}.{suffix}"
        raise UsageError(f"{named} is missing, which other samples have; pack it with each sample")
    try:
        if suffix in LABELS:
            return torch.tensor(int(files[suffix]))
        if suffix in IMAGES:
            _, channels, height, width = entry.tensor.shape_at(1)
            made = torch.from_numpy(image_array(files[suffix], height, width, channels=channels).copy()).permute(
                2, 0, 1
            )
            return made.float() / 255 if getattr(torch, entry.tensor.dtype).is_floating_point else made
        made = torch.from_numpy(numpy.load(io.BytesIO(files[suffix]), allow_pickle=False))
        wanted = entry.tensor.shape_at(1)[1:]
        return made.reshape(wanted) if suffix.endswith(FLAT) and made.numel() == math.prod(wanted) else made
    except (ValueError, EOFError, TypeError) as error:
        named = f"{samples.folder.name}: {samples.key(place)}.{suffix}"
        raise UsageError(f"{named} cannot be read: {error}; pack it again") from None


def _named(samples: ShardSet, places: list[Place], suffix: str, row: int) -> str:
    """The file of a row."""
    return f"{samples.folder.name}: {samples.key(places[row])}.{suffix}"


def _stacked(entry: Input, values: list[torch.Tensor], folder: str) -> torch.Tensor:
    shapes = {tuple(value.shape) for value in values}
    if len(shapes) > 1:
        told = " and ".join(map(str, sorted(shapes)[:2]))
        raise UsageError(f"{folder}: samples have {entry.name} of shapes {told}; give all samples one shape")
    return torch.stack([signed(value) for value in values])
