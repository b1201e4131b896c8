"""The fused vision backbone: DINOv2 with registers and SigLIP, under timm's tensor names, and the projector into the language model.

A tower's features are the patch tokens after its second-to-last block: no final norm, no pooling. The last block, the final norm and
SigLIP's attention pool are part of the layout and of every checkpoint, and take no part in the computation. With FiLM, the mean language
embedding modulates the tokens of each block between its attention and its MLP.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from policies.parts.heads import FiLM

NORM_EPS = 1e-6
# What the published timm ids mean.
PUBLISHED = {
    "vit_large_patch14_reg4_dinov2.lvd142m": dict(model="dinov2", embed_dim=1024, depth=24, num_heads=16, mlp_hidden=4096, patch_size=14, num_registers=4, layer_scale=True),
    "vit_so400m_patch14_siglip_224": dict(model="siglip", embed_dim=1152, depth=27, num_heads=16, mlp_hidden=4304, patch_size=14, num_registers=0, layer_scale=False),
}


@dataclass(frozen=True)
class Tower:
    """One vision transformer. Sizes in pixels, tokens or channels."""

    model: str  # "dinov2" (class token in front) | "siglip" (none)
    embed_dim: int
    depth: int  # blocks in the checkpoint; depth - 1 of them run
    num_heads: int
    mlp_hidden: int
    patch_size: int
    image_size: int
    num_registers: int = 0
    layer_scale: bool = False
    attention_pool: bool = False  # SigLIP's pooling head is among the tensors

    @property
    def patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2


def towers_of(config: dict) -> list[Tower]:
    """The two towers of a config.json: from `vision_towers` (small checkpoints) or the published timm ids.

    Raises ValueError naming the ids that are not known.
    """
    described = config.get("vision_towers")
    if described is None:
        ids = config.get("timm_model_ids", [])
        unknown = [name for name in ids if name not in PUBLISHED]
        if unknown or len(ids) != 2:
            raise ValueError(f"config.json: found timm_model_ids={ids}, wanted two of {sorted(PUBLISHED)}; describe other towers under vision_towers")
        described = [PUBLISHED[name] for name in ids]
    return [_tower(entry, size) for entry, size in zip(described, config["image_sizes"], strict=True)]


def _tower(entry: dict, image_size: int) -> Tower:
    entry = dict(entry)
    ratio = entry.pop("mlp_ratio", None)
    if ratio is not None:
        entry["mlp_hidden"] = int(entry["embed_dim"] * ratio)
    return Tower(**{"attention_pool": entry["model"] == "siglip", "image_size": image_size, **entry})


class VisionBackbone(nn.Module):
    """pixel_values [b, 6n, H, W] of n cameras -> [b, n * patches, width]; the towers' channels side by side, camera by camera."""

    def __init__(self, towers: list[Tower], language_width: int | None = None):
        """language_width: channels of the embedding that FiLM reads; None = without FiLM."""
        super().__init__()
        self.film = language_width is not None
        if towers[0].patches != towers[1].patches:
            raise ValueError(f"found towers of {towers[0].patches} and {towers[1].patches} patches, wanted one number: their features are joined patch by patch")
        self.featurizer = VisionTransformer(towers[0], language_width)
        self.fused_featurizer = VisionTransformer(towers[1], language_width)

    def forward(self, pixel_values: torch.Tensor, language: torch.Tensor | None = None) -> torch.Tensor:
        """language: [b, language width], the mean embedding that FiLM reads; None without FiLM."""
        batch, channels, height, width = pixel_values.shape
        if channels % 6:
            raise ValueError(f"found {channels} channels, wanted 6 per camera: each picture normalised once per tower")
        pixels = pixel_values.reshape(-1, 6, height, width)
        if language is not None:
            language = language.repeat_interleave(len(pixels) // batch, 0)  # one per picture
        features = torch.cat([self.featurizer(pixels[:, :3], language), self.fused_featurizer(pixels[:, 3:], language)], dim=-1)
        return features.reshape(batch, -1, features.shape[-1])


class VisionTransformer(nn.Module):
    def __init__(self, tower: Tower, language_width: int | None = None):
        super().__init__()
        width, self.patch = tower.embed_dim, tower.patch_size
        self.image_size = tower.image_size
        if tower.model == "dinov2":
            self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        if tower.num_registers:
            self.reg_token = nn.Parameter(torch.empty(1, tower.num_registers, width))
        self.prefixes = [name for name in ("cls_token", "reg_token") if hasattr(self, name)]
        self.prefix_length = sum(getattr(self, name).shape[1] for name in self.prefixes)
        self.pos_embed = nn.Parameter(torch.empty(1, tower.patches, width))
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, width, self.patch, self.patch)
        self.blocks = nn.ModuleList(Block(tower) for _ in range(tower.depth))
        self.film = nn.ModuleList(FiLM(language_width, width) for _ in self.blocks if language_width is not None)
        self.norm = nn.LayerNorm(width, NORM_EPS)
        if tower.attention_pool:
            self.attn_pool = AttentionPool(tower)

    def forward(self, pixels: torch.Tensor, language: torch.Tensor | None = None) -> torch.Tensor:
        """[m, 3, H, W], [m, language width] (with FiLM) -> [m, patches, width]."""
        tokens = self._embed(pixels) + self.pos_embed
        if self.prefixes:
            tokens = torch.cat([*(getattr(self, name).expand(len(tokens), -1, -1) for name in self.prefixes), tokens], dim=1)
        for i, block in enumerate(self.blocks[:-1]):
            tokens = block(tokens, *((self.film[i], language) if self.film else ()))
        return tokens[:, self.prefix_length :]

    def _embed(self, pixels: torch.Tensor) -> torch.Tensor:
        """The patch convolution as one matrix product."""
        rows, channels, height, width = pixels.shape
        if (height, width) != (self.image_size, self.image_size):
            raise ValueError(f"found pictures of {height}x{width}, wanted {self.image_size}x{self.image_size}: let the policy prepare them")
        side = self.image_size // self.patch
        patches = pixels.reshape(rows, channels, side, self.patch, side, self.patch).permute(0, 2, 4, 1, 3, 5)
        return F.linear(patches.reshape(rows, side * side, -1), self.patch_embed.proj.weight.flatten(1), self.patch_embed.proj.bias)


class Block(nn.Module):
    def __init__(self, tower: Tower):
        super().__init__()
        width = tower.embed_dim
        self.norm1 = nn.LayerNorm(width, NORM_EPS)
        self.attn = Attention(width, tower.num_heads)
        self.ls1 = LayerScale(width) if tower.layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(width, NORM_EPS)
        self.mlp = Mlp(width, tower.mlp_hidden)
        self.ls2 = LayerScale(width) if tower.layer_scale else nn.Identity()

    def forward(self, tokens: torch.Tensor, film: FiLM | None = None, language: torch.Tensor | None = None) -> torch.Tensor:
        tokens = tokens + self.ls1(self.attn(self.norm1(tokens)))
        if film is not None:
            tokens = film(tokens, language)
        return tokens + self.ls2(self.mlp(self.norm2(tokens)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows, length, width = tokens.shape
        query, key, value = self.qkv(tokens).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).reshape(rows, length, width))


class LayerScale(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.scale_factor = nn.Parameter(torch.empty(width))  # the reference's name for timm's gamma

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens * self.scale_factor


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(tokens)))


class AttentionPool(nn.Module):
    """Tensors only: OpenVLA reads the patch tokens before they are pooled."""

    def __init__(self, tower: Tower):
        super().__init__()
        width = tower.embed_dim
        self.latent = nn.Parameter(torch.empty(1, 1, width))
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, NORM_EPS)
        self.mlp = Mlp(width, tower.mlp_hidden)


class Projector(nn.Module):
    """[b, p, vision width] -> [b, p, language width]."""

    def __init__(self, vision_width: int, language_width: int):
        super().__init__()
        self.fc1 = nn.Linear(vision_width, 4 * vision_width)
        self.fc2 = nn.Linear(4 * vision_width, language_width)
        self.fc3 = nn.Linear(language_width, language_width)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.fc3(F.gelu(self.fc2(F.gelu(self.fc1(features)))))
