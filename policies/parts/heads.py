"""The modules that OpenVLA-OFT adds to OpenVLA, under the reference's tensor names: L1 regression head, proprio projector, FiLM.

Facts of the layout: moojink/openvla-oft, prismatic/models/action_heads.py, projectors.py and film_vit_wrapper.py.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

RESNET_BLOCKS = 2


class L1Head(nn.Module):
    """[b, C * A, D] hidden states of the slots -> [b, C, A] float32 normalised actions: one MLP-ResNet over each action's A states side by side."""

    def __init__(self, width: int, dims: int):
        """width: D. dims: A."""
        super().__init__()
        self.dims = dims
        self.model = MLPResNet(width * dims, width, dims)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.model(states.unflatten(1, (-1, self.dims)).flatten(2)).float()


class MLPResNet(nn.Module):
    """[..., inputs] -> [..., outputs]."""

    def __init__(self, inputs: int, hidden: int, outputs: int):
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(inputs)
        self.fc1 = nn.Linear(inputs, hidden)
        self.mlp_resnet_blocks = nn.ModuleList(MLPResNetBlock(hidden) for _ in range(RESNET_BLOCKS))
        self.layer_norm2 = nn.LayerNorm(hidden)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = F.relu(self.fc1(self.layer_norm1(values)))
        for block in self.mlp_resnet_blocks:
            values = block(values)
        return self.fc2(self.layer_norm2(values))


class MLPResNetBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.ffn = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.ffn(values)


class ProprioProjector(nn.Module):
    """[b, S] normalised state -> [b, 1, D]: one token."""

    def __init__(self, size: int, width: int):
        super().__init__()
        self.fc1 = nn.Linear(size, width)
        self.fc2 = nn.Linear(width, width)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(state))).unsqueeze(1)


class FiLM(nn.Module):
    """Feature-wise linear modulation of one vision block by the language (Perez et al. 2018, with 1 + gamma as in their section 7.2)."""

    def __init__(self, language_width: int, width: int):
        super().__init__()
        self.scale = nn.Linear(language_width, width)
        self.shift = nn.Linear(language_width, width)

    def forward(self, tokens: torch.Tensor, language: torch.Tensor) -> torch.Tensor:
        """[m, p, width] tokens, [m, language width] mean language embedding -> [m, p, width]; the same at every token."""
        return tokens * (1 + self.scale(language).unsqueeze(1)) + self.shift(language).unsqueeze(1)
