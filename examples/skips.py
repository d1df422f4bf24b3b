"""A hand-written model with skip connections: nothing in it knows of placer.

placer plan examples.skips:build --cluster localx2 --batch image=8x3x32x32,target=8x3x32x32 -o plan.json
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


class Skips(nn.Module):
    """An image goes down three times and up again; each way up also sees what its way down saw."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        widths = (3, width, 2 * width, 4 * width)
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(nn.Conv2d(narrow, wide, 3, stride=2, padding=1) for narrow, wide in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * wide, narrow, 2, stride=2) for narrow, wide in reversed(pairs))
        self.middle = nn.Conv2d(widths[-1], widths[-1], 3, padding=1)

    def forward(self, image: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The mean squared error of the image made; both are rows x 3 x height x width."""
        seen = []
        x = image
        for layer in self.down:
            x = functional.relu(layer(x))
            seen.append(x)
        x = functional.relu(self.middle(x))
        for layer in self.up:
            x = functional.relu(layer(torch.cat((x, seen.pop()), dim=1)))
        return functional.mse_loss(x, target)


def build() -> Skips:
    """The model, freshly initialised."""
    return Skips()
