"""The batch a Hugging Face configuration implies: its own sequence length or image size, and the labels of its loss."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from placer.errors import UsageError
from placer.tracer.inputs.batch_checks import example_batch, input_names

# Sequence lengths where the configuration has none: the length the family was trained with.
DEFAULT_LENGTHS = {"t5": 512}  # Raffel et al. 2020, section 3.1.2: 512 tokens
DEFAULT_IMAGE = 224  # He et al. 2015, section 3.4: the crop of ImageNet training, default of transformers' processors
_LENGTH_FIELDS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")


# Shapes by input, and what was assumed to make them.
Implied = tuple[dict[str, tuple[int, ...]], tuple[str, ...]]


def implied_shapes(model: nn.Module, rows: int, sizes: tuple[int, ...]) -> Implied:
    """Shapes of the inputs of `model` for `rows` rows, with what was assumed; `sizes` overrides the sizes of a row."""
    config = getattr(model, "config", None)
    main = getattr(model, "main_input_name", "")
    if config is None or not main:
        text = "x".join(map(str, (rows, *(sizes or _trained_on(model) or (64,)))))
        raise UsageError(
            f"nothing implies the batch of {type(model).__name__}: it has no configuration; name its inputs, as in "
            f"--batch {example_batch(model, text)} (forward takes {', '.join(input_names(model)) or 'no names'})"
        )
    if main == "pixel_values":
        return _image(config, rows, sizes)
    if main == "input_features":
        return _audio(config, rows, sizes)
    return _text(config, rows, sizes)


def _trained_on(model: nn.Module) -> tuple[int, ...]:
    """The image that a model of timm was trained on, () where none is told."""
    told = getattr(model, "pretrained_cfg", None)
    return tuple(told.get("input_size", ())) if isinstance(told, Mapping) else ()


def label_shapes(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The labels a Hugging Face model wants so that its loss is part of the graph; empty where it has no loss."""
    config = getattr(model, "config", None)
    name = type(model).__name__
    if "pixel_values" in shapes:
        return {"labels": shapes["pixel_values"][:1]} if name.endswith("ForImageClassification") else {}
    if "input_features" in shapes:
        length = getattr(config, "max_target_positions", 448)
        decoder = shapes.get("decoder_input_ids", (shapes["input_features"][0], length))
        return {"labels": decoder} if name.endswith("ForConditionalGeneration") else {}
    main = shapes.get("input_ids") or shapes.get("inputs_embeds", ())[:2]
    if not main:
        return {}
    if name.endswith("ForConditionalGeneration"):
        return {"labels": shapes.get("decoder_input_ids", main)}
    if name.endswith(("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForTokenClassification")):
        return {"labels": main}
    return {"labels": main[:1]} if name.endswith("ForSequenceClassification") else {}


def require_positions(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise UsageError where sequences are longer than the configuration has positions for.

    On meta tensors nobody would notice: positions beyond a learned table fail only when the model runs.
    """
    config = getattr(model, "config", None)
    inputs: tuple[str, ...] = ("input_ids", "inputs_embeds")
    fields: tuple[str, ...] = _LENGTH_FIELDS
    if "input_features" in shapes:
        inputs, fields = ("decoder_input_ids", "labels"), ("max_target_positions",)
    name = next((one for one in inputs if len(shapes.get(one, ())) > 1), "")
    field = next((one for one in fields if isinstance(getattr(config, one, None), int)), "")
    if not name or not field:
        return
    length, limit = shapes[name][1], int(getattr(config, field))
    if 0 < limit < length:
        raise UsageError(
            f"the batch has {name} of {length} tokens, {type(model).__name__} has {limit} positions; "
            f"give at most {limit} tokens, or raise {field} in the configuration"
        )


def _text(config: object, rows: int, sizes: tuple[int, ...]) -> Implied:
    if sizes:
        return {"input_ids": (rows, *sizes)}, ()
    for field in _LENGTH_FIELDS:
        length = getattr(config, field, None)
        if isinstance(length, int) and length > 0:
            return {"input_ids": (rows, length)}, (f"sequences of {length} tokens: {field} of the configuration",)
    family = str(getattr(config, "model_type", ""))
    if family in DEFAULT_LENGTHS:
        length = DEFAULT_LENGTHS[family]
        return {"input_ids": (rows, length)}, (f"sequences of {length} tokens: what {family} was trained with",)
    raise UsageError(f"the configuration of {family!r} has no sequence length; give batch='8x128' or a dict of shapes")


def _image(config: object, rows: int, sizes: tuple[int, ...]) -> Implied:
    channels = int(getattr(config, "num_channels", 3))
    if len(sizes) >= 2:
        return {"pixel_values": (rows, *((channels, *sizes) if len(sizes) == 2 else sizes))}, ()
    if sizes:
        return {"pixel_values": (rows, channels, sizes[0], sizes[0])}, ()
    size = getattr(config, "image_size", None)
    source = "image_size of the configuration"
    if not isinstance(size, (int, tuple, list)):
        size, source = DEFAULT_IMAGE, "the configuration has no image_size"
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    return {"pixel_values": (rows, channels, height, width)}, (f"images of {height} x {width}: {source}",)


def _audio(config: object, rows: int, sizes: tuple[int, ...]) -> Implied:
    bins = int(getattr(config, "num_mel_bins", 80))
    frames = 2 * int(getattr(config, "max_source_positions", 1500))
    if sizes:
        return {"input_features": (rows, bins, sizes[-1])}, ()
    assumed = f"{frames} frames of audio: max_source_positions of the configuration"
    return {"input_features": (rows, bins, frames)}, (assumed,)
