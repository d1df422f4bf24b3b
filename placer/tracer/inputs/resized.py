"""A Hugging Face configuration of another depth or with more positions than it has."""

from __future__ import annotations

import copy

from torch import nn

from placer.errors import UsageError


def with_depth(model: nn.Module, layers: int) -> object:
    """The configuration of `model` with so many layers; lists of a value for each layer go on as they began.

    Raises UsageError for a model without such a configuration.
    """
    config = _config(model, "num_hidden_layers")
    before = config.num_hidden_layers  # type: ignore[attr-defined]
    for name, value in vars(config).items():
        if isinstance(value, list) and len(value) == before and name.endswith("layer_types"):
            setattr(config, name, [value[index % before] for index in range(layers)])
    config.num_hidden_layers = layers  # type: ignore[attr-defined]
    return config


def with_positions(model: nn.Module, length: int) -> object:
    """The configuration of `model` with at least so many positions. Raises UsageError where it has none."""
    config = _config(model, "max_position_embeddings")
    config.max_position_embeddings = max(length, config.max_position_embeddings)  # type: ignore[attr-defined]
    return config


def _config(model: nn.Module, field: str) -> object:
    config = getattr(model, "config", None)
    if not hasattr(config, "to_dict") or getattr(config, field, None) is None:
        raise UsageError(
            f"{type(model).__name__} has no configuration that says its {field}; give a Hugging Face config.json, or "
            "ask for the batch"
        )
    own = copy.deepcopy(config)
    own.architectures = [type(model).__name__]  # type: ignore[union-attr]
    return own
