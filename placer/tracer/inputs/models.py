"""What a model may be given as: a module, "package.module:factory", a Hugging Face config, config.json or Hub name."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeGuard

import torch
from torch import nn

from placer.errors import UsageError
from placer.io.bounds import MOST_COUNTED
from placer.io.files import parsed_json, read_text
from placer.io.one_device import as_on_one_device
from placer.io.refusals import short
from placer.io.usercode import UNLOADED, blamed, named, said
from placer.plans.plan import ModelRef
from placer.tracer.inputs.build_caches import forgotten
from placer.tracer.inputs.hub import hub_config, is_hub_name
from placer.tracer.inputs.seeding import drawing_alike

# Which of transformers' tables names the class of a configuration without `architectures`, first match wins.
_TABLES = (
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_MAPPING_NAMES",
)

# Fields of a configuration that count something; other fields may be negative (a token that is not there is -1).
_COUNTS = re.compile(r"(n|num)_.*|.*_(size|layers|heads|dim)")


@dataclass(frozen=True, kw_only=True)
class ResolvedModel:
    """A model found: how to refer to it and how to build it."""

    ref: ModelRef
    _make: Callable[[], nn.Module]

    def build(self, device: str | torch.device = "meta", seed: int = 0) -> nn.Module:
        """The model on `device`; on "meta" without weights, elsewhere initialised from `seed`. One that reads values as
        it is built, which "meta" has none of, comes on the CPU in its place.

        A module given by the caller is given back as it is where it already lies on `device`.
        """
        return _built(self._make, device, seed)


def resolve(model: object) -> ResolvedModel:
    """Find `model`. Raises UsageError for what is none, CaptureError never."""
    if isinstance(model, ResolvedModel):
        return model
    if isinstance(model, ModelRef):
        return _from_reference(model)
    if isinstance(model, nn.Module):
        given = model
        return _resolved("module", _class_name(given), lambda: given)
    if isinstance(model, str) and not model.strip():
        raise UsageError("the model has no name; give package.module:factory, or a Hugging Face config.json")
    if isinstance(model, str) and ":" in model and not Path(model).exists():
        return _resolved("factory", model, _factory(model))
    if isinstance(model, str) and is_hub_name(model) and not Path(model).exists():
        return _from_config(_config(hub_config(model), f"the model {model}"))
    if isinstance(model, (str, Path)):
        return _from_config(_config_of_file(Path(model)))
    if hasattr(model, "to_dict") and hasattr(model, "model_type"):
        return _from_config(model)
    raise UsageError(
        f"{short(repr(model))} is no model; give a torch.nn.Module, 'package.module:factory', a Hugging Face config or "
        "config.json"
    )


def fingerprint(model: nn.Module, main: str = "", floating: torch.dtype | None = None) -> str:
    """Identifies code names, shapes and configuration: the same model gives the same text, weights do not matter.

    main: the name under which others import the module that is being run, whose own name is `__main__`. floating: the
    type that floating tensors are told to have, whatever they have. Raises UsageError for parameters that have no size
    yet.
    """
    lazy = next((name for name, one in model.named_parameters() if nn.parameter.is_lazy(one)), None)
    if lazy is not None:
        raise UsageError(
            f"the model's parameter {lazy} has no size before forward ran once (a lazy module); give its sizes, or run "
            "the model on a batch where it is built"
        )
    parts = [f"{name} {_class_name(module, main)} {_settings(module)}" for name, module in model.named_modules()]
    for name, parameter in model.named_parameters(remove_duplicate=False):
        parts.append(f"{name} {tuple(parameter.shape)} {_told(parameter, floating)} {parameter.requires_grad}")
    for name, tensor in model.named_buffers(remove_duplicate=False):
        parts.append(f"{name} {tuple(tensor.shape)} {_told(tensor, floating)}")
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "to_dict"):
        parts.append(_config_text(config, _class_names(config)[:1]))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _settings(module: nn.Module) -> str:
    """What a module says of itself; lists and dicts of parameters tell where these lie, and of what type they are."""
    return "" if isinstance(module, nn.ParameterDict | nn.ParameterList) else module.extra_repr()


def _told(tensor: torch.Tensor, floating: torch.dtype | None) -> torch.dtype:
    return floating if floating is not None and tensor.is_floating_point() else tensor.dtype


def _resolved(
    kind: Literal["module", "factory", "config"], reference: str, make: Callable[[], nn.Module]
) -> ResolvedModel:
    known = fingerprint(make() if kind == "module" else _built(make, "meta", 0))
    return ResolvedModel(ref=ModelRef(kind=kind, reference=reference, fingerprint=known), _make=make)


def _from_reference(ref: ModelRef) -> ResolvedModel:
    if ref.kind == "module":
        raise UsageError(
            f"the plan was made for a module built by its caller ({ref.reference}), which the plan cannot rebuild; "
            "pass the module, or plan again with 'package.module:factory'"
        )
    if ref.kind == "factory":
        return ResolvedModel(ref=ref, _make=_factory(ref.reference))
    config = _config(parsed_json(ref.reference, "the plan's model"), "the plan's model")
    return ResolvedModel(ref=ref, _make=_maker(config))


def _from_config(config: object) -> ResolvedModel:
    return _resolved("config", _config_text(config, [_class_of(config).__name__]), _maker(config))


def _config_text(config: object, architectures: list[str]) -> str:
    """The configuration, with the architectures that are meant where it names none."""
    content = dict(config.to_dict())  # type: ignore[attr-defined]
    content["architectures"] = content.get("architectures") or architectures
    # The attention kernel changes the graph, and to_dict leaves it out.
    content["attn_implementation"] = getattr(config, "_attn_implementation", None)
    content.pop("transformers_version", None)
    return json.dumps(content, sort_keys=True, default=str)


def _config_of_file(path: Path) -> object:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise UsageError(
            f"the model {path} does not exist; give a config.json, 'package.module:factory' with a colon, or the name "
            "of a model on the Hub, organisation/model"
        )
    return _config(parsed_json(read_text(file, "the model"), f"the model {file}"), str(file))


def _config(content: object, where: str) -> object:
    import transformers

    if not isinstance(content, dict) or "model_type" not in content:
        raise UsageError(f"{where} is no Hugging Face configuration: it has no model_type")
    negative = [name for name, value in content.items() if _COUNTS.fullmatch(name) and _is_negative(value)]
    if negative:
        raise UsageError(f"{where}: {negative[0]} is {short(content[negative[0]])}; give a count of at least 0")
    numbers = {name: value for name, value in content.items() if _is_number(value)}
    endless = next((name for name, value in numbers.items() if not -MOST_COUNTED <= value <= MOST_COUNTED), None)
    if endless is not None:
        raise UsageError(f"{where}: {short(endless)} is {short(content[endless])}, beyond all machines; correct it")
    settings = dict(content)
    family = settings.pop("model_type")
    if not isinstance(family, str) or family not in transformers.CONFIG_MAPPING:
        known = sorted(transformers.CONFIG_MAPPING)
        like = ", ".join(difflib.get_close_matches(short(family), known, n=3)) or "gpt2, llama, bert, vit, ..."
        raise UsageError(
            f"{where}: transformers {transformers.__version__} knows no model_type {short(repr(family))} among its "
            f"{len(known)}; like it: {like}"
        )
    with _refused(where):
        return transformers.AutoConfig.for_model(family, **settings)


def _is_negative(value: object) -> bool:
    return _is_number(value) and value < 0


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float)


def _maker(config: object) -> Callable[[], nn.Module]:
    chosen = _class_of(config)

    def make() -> nn.Module:
        with _refused(f"the configuration of {getattr(config, 'model_type', type(config).__name__)!r}"):
            return chosen(config)

    return make


@contextlib.contextmanager
def _refused(where: str) -> Iterator[None]:
    """Whatever transformers says against a configuration, as one line."""
    try:
        yield
    except UsageError:
        raise
    except ImportError as error:
        raise UsageError(f"{where} {UNLOADED}: {said(error)}") from error
    except Exception as error:
        raise UsageError(f"{where} is refused by transformers: {said(error)}; correct the configuration") from error


def _class_of(config: object) -> Callable[..., nn.Module]:
    import transformers

    for name in _class_names(config):
        made = getattr(transformers, name, None)
        if made is not None:
            chosen: Callable[..., nn.Module] = made
            return chosen
    family, names = str(getattr(config, "model_type", "")), list(getattr(config, "architectures", None) or [])
    raise UsageError(f"transformers has no model for model_type {family!r} (architectures {names or 'not given'})")


def _class_names(config: object) -> list[str]:
    """The classes of transformers that a configuration names, then those that train its family of models."""
    from transformers.models.auto import modeling_auto

    names = list(getattr(config, "architectures", None) or [])
    family = str(getattr(config, "model_type", ""))
    for table in _TABLES:
        found = getattr(modeling_auto, table, {}).get(family)
        if found is not None:
            names.append(found if isinstance(found, str) else found[0])
    return names


def _factory(reference: str) -> Callable[[], nn.Module]:
    found = named(reference, "the model")
    _require_no_arguments(found, reference)

    def make() -> nn.Module:
        with blamed(f"the factory {reference}"), as_on_one_device():
            model = found()
        if hasattr(model, "to_dict") and hasattr(model, "model_type"):
            model = _maker(model)()
        if not isinstance(model, nn.Module):
            raise UsageError(f"{reference} gave a {type(model).__name__}; it must return a torch.nn.Module")
        return model

    return make


def _require_no_arguments(factory: Callable[..., object], reference: str) -> None:
    try:
        signature = inspect.signature(factory)
    except (ValueError, TypeError):  # code that does not say what it takes
        return
    try:
        signature.bind()
    except TypeError as error:
        raise UsageError(
            f"the factory {reference}{signature} is called without arguments: {error}; give each a default, or name a "
            "function without arguments"
        ) from None


def _built(make: Callable[[], nn.Module], device: str | torch.device, seed: int) -> nn.Module:
    """The model on `device`; one that reads values of its tensors as it is made, which meta has none of, on the CPU.

    What a lack of values leads to says nothing of it where the model catches it, so whatever was raised is tried there.
    """
    if torch.device(device).type != "meta":
        return _with_values(_made_on(make, device, seed))
    with contextlib.suppress(UsageError), forgotten():
        return _made_on(make, device, seed)
    return _with_values(_made_on(make, "cpu", seed))


def _with_values(model: nn.Module) -> nn.Module:
    """Raises UsageError for buffers without values beside weights with some."""
    without = next((name for name, one in model.named_buffers() if one.is_meta), None)
    if without is not None and not all(one.is_meta for one in model.parameters()):
        raise UsageError(
            f"the buffer {without} has no values as the model is built: a dict or a global keeps it of an earlier "
            "build, which was on the meta device; make it anew for each model, or by functools.lru_cache"
        )
    return model


def _made_on(make: Callable[[], nn.Module], device: str | torch.device, seed: int) -> nn.Module:
    with drawing_alike(seed), torch.device(device):
        model = make()
    return model


def _class_name(module: nn.Module, main: str = "") -> str:
    where = type(module).__module__
    return f"{main if main and where == '__main__' else where}.{type(module).__qualname__}"
