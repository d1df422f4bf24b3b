"""Names of models that a library builds by a factory of its own: `timm:resnet50`, `torchvision:resnet50`.

Weights are not fetched: a plan needs none, and a run begins from those it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

from placer.errors import UsageError, near_names, require_extra
from placer.io.refusals import short

FAMILIES = ("timm", "torchvision")


def family_factory(reference: str) -> Callable[..., object] | None:
    """The factory that `family:name` means; None for any other reference.

    Raises UsageError where the library is not installed, or has no model of that name.
    """
    family, colon, name = reference.partition(":")
    if not colon or family not in FAMILIES:
        return None
    models = _imported("torchvision.models")  # which timm needs too
    if family == "timm":
        timm = _imported("timm")
        _require_known(name.partition(".")[0], timm.list_models(), family)
        return lambda: timm.create_model(name, pretrained=False)
    _require_known(name, models.list_models(), family)
    return lambda: models.get_model(name, weights=None)


def _imported(library: str) -> ModuleType:
    """The library, or UsageError where it is not installed, or not made for the torch that is."""
    try:
        return require_extra("vision", library)
    except UsageError:
        raise
    except Exception as error:  # torchvision fails with what torch's registry says where their builds differ
        raise UsageError(
            f"importing {library} raised {type(error).__name__}: {short(str(error))}; install the build of it that "
            "belongs to the torch that is installed (the same release and the same of CPU or CUDA)"
        ) from error


def _require_known(name: str, known: Sequence[str], family: str) -> None:
    if name not in known:
        like = ", ".join(near_names(name, list(known)))
        raise UsageError(f"{family} has no model {short(repr(name))} among its {len(known)}; like it: {like}")
