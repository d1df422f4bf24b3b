"""Models by the names people have: of the Hub from its cache, of libraries by their own factories."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor, nn

from placer.errors import UsageError
from placer.tracer import trace
from placer.tracer.inputs.hub import is_hub_name
from placer.tracer.inputs.models import fingerprint, resolve

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
}  # fmt: skip


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the Hub, and no network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path), raising=False)
    return tmp_path


def keep(cache: Path, name: str, config: dict[str, object]) -> None:
    """Lay a config.json into the cache as the Hub's client does."""
    folder = cache / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    (folder / "snapshots" / COMMIT / "config.json").write_text(json.dumps(config))


def test_a_name_of_the_hub_is_the_model_of_its_configuration(cache: Path, tmp_path: Path) -> None:
    keep(cache, "made/Llama-tiny.1", LLAMA)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert resolve("made/Llama-tiny.1").ref == resolve(str(tmp_path / "config.json")).ref


def test_without_network_and_cache_the_error_says_what_to_do(cache: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be asked.*hf download made/absent config.json"):
        resolve("made/absent")


def test_a_senseless_configuration_of_the_hub_is_refused(cache: Path) -> None:
    keep(cache, "made/deep", {**LLAMA, "num_hidden_layers": 10**6})
    with pytest.raises(UsageError, match="made/deep: num_hidden_layers"):
        resolve("made/deep")


@pytest.mark.parametrize("text", ["a/b.json", "a/b/c", "/a/b", "../a", "a", "a/b c", "a/b.py", "a/"])
def test_what_is_a_path_is_no_name_of_the_hub(text: str) -> None:
    assert not is_hub_name(text)


def test_a_folder_goes_before_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made" / "llama").mkdir(parents=True)
    (tmp_path / "made" / "llama" / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.chdir(tmp_path)
    assert resolve("made/llama").ref.kind == "config"


@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18"])
def test_a_library_that_is_missing_is_named_with_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("timm", "torchvision", "torchvision.models"):
        monkeypatch.setitem(sys.modules, library, None)  # as if it were not there
    with pytest.raises(UsageError, match=r"placer-planner\[vision\]"):
        resolve(name)


def test_a_library_of_another_torch_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "torchvision"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for library in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, library)
    with pytest.raises(UsageError, match="nms does not exist; install the build"):
        resolve("torchvision:resnet18")


@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18"])
def test_a_library_builds_by_its_own_factory(name: str) -> None:
    family = name.partition(":")[0]
    for library in ("torchvision", family):
        pytest.importorskip(library, exc_type=(ImportError, RuntimeError))  # type: ignore[arg-type]
    found = resolve(name)
    assert (found.ref.kind, found.ref.reference) == ("factory", name)
    built = found.build("meta")
    # The classes of ImageNet, and the parameters that the paper's table gives ResNet-18 (11.7 million).
    assert sum(each.numel() for each in built.parameters()) == 11_689_512
    assert built(torch.empty(1, 3, 64, 64, device="meta")).shape == (1, 1000)
    with pytest.raises(UsageError, match=r"no model 'resnet1'.*like it"):
        resolve(f"{family}:resnet1")


class Own:
    """A configuration of one's own, as a model keeps it."""

    def __init__(self) -> None:
        self.width = 2

    def to_dict(self) -> dict[str, object]:
        return vars(self)


def configured(config: object) -> torch.nn.Module:
    """A model that says how it was made."""
    model = torch.nn.Linear(2, 2)
    model.config = config  # type: ignore[assignment]
    return model


def test_a_model_is_known_whatever_its_configuration_is_of() -> None:
    """Of transformers a family that no table of models that train has, and a class of one's own, left as it is."""
    depth = transformers.DepthAnythingConfig
    assert fingerprint(configured(depth())) == fingerprint(configured(depth()))
    assert fingerprint(configured(depth())) != fingerprint(configured(depth(head_hidden_size=8)))
    own = Own()
    assert fingerprint(configured(own)) == fingerprint(configured(Own()))
    assert vars(own) == {"width": 2}


def test_a_family_that_has_no_model_is_refused_as_a_configuration() -> None:
    with pytest.raises(UsageError, match="no model for model_type 'depth_anything'"):
        resolve(transformers.DepthAnythingConfig())


class Chosen(torch.nn.Module):
    """A layer for each place that its constructor finds in a tensor's values."""

    def __init__(self) -> None:
        super().__init__()
        places = torch.nonzero(torch.tensor([1, 0, 1])).flatten().tolist()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in places)


class Fitted(torch.nn.Linear):
    """A layer that starts from a fit, and says itself what goes wrong with it."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        try:
            start = torch.linalg.eigvals(torch.eye(2)).real.tolist()
        except (RuntimeError, NotImplementedError):
            print("no fit")
        self.start = float(start[0])


class Broken(torch.nn.Linear):
    """One that cannot be built anywhere."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        raise ValueError("no such layer")


@pytest.mark.parametrize("kind", [Chosen, Fitted])
def test_a_model_that_needs_values_to_be_built_is_built_with_them(kind: type[torch.nn.Module]) -> None:
    built = resolve(f"{__name__}:{kind.__name__}").build("meta")
    assert {parameter.device.type for parameter in built.parameters()} == {"cpu"}


def test_what_cannot_be_built_anywhere_is_refused_with_its_own_error() -> None:
    with pytest.raises(UsageError, match=r"Broken raised ValueError: no such layer at .*test_named_models.py"):
        resolve(f"{__name__}:Broken")


class Kept(nn.Module):
    """Weights and layers under names that Python has for itself, in a dict and in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterDict({"in": torch.randn(4, 6), "from": torch.randn(4)})
        self.scales = nn.ParameterList([torch.randn(4)])
        self.layers = nn.ModuleDict({"class": nn.Linear(4, 3)})

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.linear(x, self.weights["in"], self.weights["from"]) * self.scales[0]
        loss: Tensor = self.layers["class"](h).square().mean()
        return loss


def test_names_that_python_has_for_itself_are_names_of_weights() -> None:
    model, x = Kept(), torch.randn(5, 6)
    torch.testing.assert_close(trace(model, {"x": x}).module(x)[0], model(x))


def test_a_model_with_a_dict_of_weights_is_the_same_wherever_these_lie() -> None:
    with torch.device("meta"):
        elsewhere = Kept()
    assert fingerprint(Kept()) == fingerprint(elsewhere)
    assert fingerprint(Kept(), floating=torch.float32) == fingerprint(Kept().double(), floating=torch.float32)
