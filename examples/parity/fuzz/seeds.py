"""The files that are spoilt: valid ones of every form, made here so that they are what this placer writes."""

from __future__ import annotations

import json
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import torch
import yaml
from pydantic import JsonValue
from torch import nn
from torch.nn import functional

import placer
from placer.cluster.cluster_file import cluster_yaml
from placer.plans.settings import RunSettings

EXAMPLES = Path(__file__).parents[2]
MODEL = "examples.parity.fuzz.seeds:chain"


class Chain(nn.Module):
    """Four equal layers and a head: enough for stages, and small, so that a plan is read in a millisecond."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss."""
        for layer in self.layers:
            x = torch.relu(layer(x))
        return functional.cross_entropy(self.head(x), y)


def chain() -> Chain:
    """The model of the plans."""
    return Chain()


class Image(nn.Module):
    """Two convolutions, for meshes of height and width."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return self.second(torch.relu(self.first(x))).square().mean()


def image() -> Image:
    """The model of plans over height and width."""
    return Image()


# The cluster and pins of each plan, and what its settings say otherwise.
PLANS: dict[str, tuple[str, tuple[str, ...], RunSettings]] = {
    "one device": ("h100", (), RunSettings(optimizer="sgd", momentum=0.9, clip_norm=None)),
    "1f1b": ("h100x4", ("pipeline=2", "schedule=1f1b", "microbatches=4"), RunSettings()),
    "interleaved": ("h100x4", ("pipeline=2", "schedule=interleaved", "microbatches=2"), RunSettings()),
    "zero-bubble": ("a100x2*2", ("pipeline=4", "schedule=zero-bubble", "microbatches=4"), RunSettings()),
    "gpipe": ("h100x4", ("pipeline=4", "schedule=gpipe"), RunSettings(recompute="full", precision="bfloat16")),
    "zero 1": ("h100x4", ("data=4", "shard=optimizer"), RunSettings(precision="float16")),
    "fsdp": ("h100x4", ("data=4", "shard=parameters"), RunSettings(offload="optimizer")),
    "tensor": ("h100x4", ("tensor=2",), RunSettings(precision="bfloat16-autocast")),
    "unequal": ("h100x2+a100x2@100gbe", ("data=4", "microbatches=1"), RunSettings()),
    "mixed node": (str(EXAMPLES / "cpus_beside_gpus.yaml"), (), RunSettings(fusion=True)),
}
FILES = ("cluster.yaml", "racks.yaml", "mixed_node.yaml", "cpus.yaml", "cpus_beside_gpus.yaml")
NAMES = ("h100x2*2", "t4x4*2@4xib-hdr", "mi300x")

CONFIGS: dict[str, dict[str, JsonValue]] = {
    "gpt2": {"vocab_size": 64, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "attn_pdrop": 0.0,
             "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "bos_token_id": None, "eos_token_id": None},
    "llama": {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4,
              "num_key_value_heads": 2, "max_position_embeddings": 16, "rms_norm_eps": 1e-6,
              "tie_word_embeddings": False,
              "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "torch_dtype": "float32"},
    "bert": {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 32,
             "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "max_position_embeddings": 16, "type_vocab_size": 2},
    "vit": {"image_size": 8, "patch_size": 4, "num_channels": 3, "hidden_size": 16, "num_hidden_layers": 2,
            "num_attention_heads": 2, "intermediate_size": 32, "id2label": {"0": "a", "1": "b"}, "qkv_bias": True},
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """What is spoilt: valid files by their names, and the tree that the first or a marker among them says."""

    name: str
    files: dict[str, bytes]
    tree: JsonValue

    def text(self) -> str:
        """The one file."""
        (content,) = self.files.values()
        return content.decode()


def plans() -> tuple[Seed, ...]:
    """A plan.json of every kind."""
    found = []
    for name, (cluster, pins, settings) in PLANS.items():
        found.append(planned(name, MODEL, {"x": (16, 8), "y": (16,)}, cluster, pins, settings))
    mesh = ("height=2", "width=2")
    found.append(
        planned("height x width", MODEL.replace("chain", "image"), {"x": (4, 2, 8, 8)}, "h100x4", mesh, RunSettings())
    )
    return tuple(found)


def planned(
    name: str, model: str, batch: dict[str, tuple[int, ...]], cluster: str, pins: tuple[str, ...], settings: RunSettings
) -> Seed:
    """One plan.json."""
    with redirect_stderr(StringIO()):
        text = placer.plan(model, cluster, batch=batch, pins=pins, settings=settings).to_json()
    return Seed(name=name, files={"plan.json": text.encode()}, tree=json.loads(text))


def clusters() -> tuple[Seed, ...]:
    """A cluster file of every form: those of the examples, and what placer writes of the catalogue."""
    texts = {name: (EXAMPLES / name).read_text() for name in FILES}
    texts |= {name: cluster_yaml(placer.Cluster.load(name)) for name in NAMES}
    return tuple(
        Seed(name=name, files={"cluster.yaml": text.encode()}, tree=yaml.safe_load(text))
        for name, text in texts.items()
    )


def configs() -> tuple[Seed, ...]:
    """A config.json of some families."""
    trees: dict[str, JsonValue] = {name: {"model_type": name, **fields} for name, fields in CONFIGS.items()}
    return tuple(
        Seed(name=name, files={"config.json": json.dumps(tree).encode()}, tree=tree) for name, tree in trees.items()
    )
