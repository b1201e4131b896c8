"""Random OpenVLA-OFT policies of the published layout, made on their device without a file, and what one inference of theirs costs.

Nothing about their numbers is trained: they are for measuring time and memory.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from embodied.learning import batching
from embodied.learning.data import Batch
from policies.checkpoints import lora
from policies.checkpoints.loading import Folder
from policies.codec import BINS, ActionCodec
from policies.openvla_oft import OpenVLAOFT
from policies.parts.images import STEPS_KEY, ImagePath
from policies.parts.network import vocabulary_of
from policies.parts.prompts import BOS, Prompts
from policies.parts.vision import VisionTransformer

PROMPT = 40  # tokens, as LIBERO's longest instructions in Llama's vocabulary
CAMERA = "agentview"
STATISTICS = {"random": {"action": {"q01": [-1.0] * 7, "q99": [1.0] * 7, "mask": [True] * 6 + [False]}}}
PUBLISHED = {"timm_model_ids": ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"], "image_sizes": [224, 224], "pad_token_id": 32000, "pad_to_multiple_of": 64, "num_actions_chunk": 8}
TOWER = {"embed_dim": 32, "depth": 3, "num_heads": 2, "mlp_ratio": 2.0, "patch_size": 14}
CONFIGS = {
    "7b": {**PUBLISHED, "text_config": {"vocab_size": 32064, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}},
    "1b": {**PUBLISHED, "text_config": {"vocab_size": 32064, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "num_attention_heads": 16}},
    "tiny": {
        "vision_towers": [{"model": "dinov2", **TOWER, "num_registers": 4, "layer_scale": True}, {"model": "siglip", **TOWER, "attention_pool": False}],
        "image_sizes": [56, 56], "pad_token_id": 448, "pad_to_multiple_of": 64, "num_actions_chunk": 8,
        "text_config": {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    },
}  # fmt: skip
BYTES = {"7b": 16e9, "1b": 2.5e9, "tiny": 0.0}  # of the weights in bfloat16, and a little


def layout(size: str) -> OpenVLAOFT:
    """The policy without memory."""
    config = CONFIGS[size]
    side = config["image_sizes"][0]
    preprocessor = {"input_sizes": [[3, side, side]] * 2, "means": [[0.5] * 3] * 2, "stds": [[0.5] * 3] * 2, STEPS_KEY: []}
    with torch.device("meta"):
        return OpenVLAOFT(config, ActionCodec(STATISTICS), ImagePath.from_config(preprocessor), Prompts({}, vocabulary_of(config), PROMPT))


@torch.no_grad()
def build(size: str, device: str) -> OpenVLAOFT:
    """A policy in bfloat16: norms 1, biases 0, the rest N(0, 0.02^2) from one generator of the device."""
    policy = layout(size)
    policy.materialise("bfloat16", device)
    generator = torch.Generator(device).manual_seed(0)
    for name, parameter in policy.named_parameters():
        leaf = name.rsplit(".", 1)[-1]
        if leaf == "bias":
            parameter.zero_()
        elif leaf == "scale_factor" or "norm" in name:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, 0.02, generator=generator)
    policy.prompts = _prompts  # it has no tokenizer
    return policy


def adapt(policy: nn.Module, rank: int) -> None:
    """LoRA on every Linear layer, as policy.lora.rank does."""
    nowhere = Path(".")
    lora.attach(policy, {"rank": rank}, Folder(nowhere, {}, {}, {}, (), nowhere))


def observation(policy: OpenVLAOFT, rows: int) -> dict:
    height, width = policy.images.size
    pictures = np.random.default_rng(rows).integers(0, 256, (rows, height, width, 3), dtype=np.uint8)
    return {f"images/{CAMERA}": pictures, "instruction": [""] * rows}


def batch(policy: OpenVLAOFT, rows: int) -> Batch:
    """Rows as a round of GRPO leaves them: half of the advantages +1, half -1, old log-probabilities of a uniform policy."""
    generator = torch.Generator().manual_seed(rows)
    choices = torch.randint(BINS, (rows, policy.tokens), generator=generator)
    labelled = batching.labelled(policy.prepare(observation(policy, rows)), choices, torch.ones(choices.shape))
    signs = torch.arange(rows).remainder(2)[:, None] * 2.0 - 1.0
    return Batch(**{**vars(labelled), "advantages": signs.expand(choices.shape), "logprobs": torch.full(choices.shape, -float(np.log(BINS)))})


def sequence(policy: OpenVLAOFT) -> int:
    """Positions of the language model in one inference."""
    return 1 + policy.vision_backbone.featurizer.pos_embed.shape[1] + PROMPT - 1 + policy.tokens + 1


def forward_flops(policy: OpenVLAOFT) -> float:
    """Of one row: 2 x parameters of the matrices that run x their tokens, and the attention. Counted on the policy without adapters."""
    patches, language = policy.vision_backbone.featurizer.pos_embed.shape[1], policy.language_model.model.layers
    matrices = _count(policy.projector) * patches + _count(language) * sequence(policy) + BINS * policy.width * policy.tokens
    for tower in _towers(policy):
        matrices += _count(tower.patch_embed) * patches + _count(tower.blocks[:-1]) * (patches + tower.prefix_length)
    return 2.0 * matrices + attention_flops(policy)


def attention_flops(policy: OpenVLAOFT) -> float:
    """Of one row, forward: 4 x tokens^2 x width of each block that runs."""
    found = sequence(policy) ** 2 * policy.width * len(policy.language_model.model.layers)
    for tower in _towers(policy):
        patches, width = tower.pos_embed.shape[1:]
        found += (patches + tower.prefix_length) ** 2 * width * (len(tower.blocks) - 1)
    return 4.0 * found


def adapter_flops(policy: OpenVLAOFT) -> float:
    """Of one row through the adapters alone, forward: each belongs to a layer that sees a tower's tokens, or the sequence."""
    counts = {True: 0, False: 0}  # whether of the language model
    for name, parameter in policy.named_parameters():
        if ".lora_" in name:
            counts[name.startswith("language_model")] += parameter.numel()
    return 2.0 * (counts[True] * sequence(policy) + counts[False] * policy.vision_backbone.featurizer.pos_embed.shape[1])


def training_flops(policy: OpenVLAOFT, forward: float) -> float:
    """Of one row forward and backward, with adapters on. forward: of the policy without them.

    The weights are frozen, so the way back has the gradient of each matrix's input alone (as much as forward), that of both inputs of the attention's
    products (twice as much), and all of the adapters' (twice as much).
    """
    return 2.0 * forward + attention_flops(policy) + 3.0 * adapter_flops(policy)


def _towers(policy: OpenVLAOFT) -> tuple[VisionTransformer, VisionTransformer]:
    return policy.vision_backbone.featurizer, policy.vision_backbone.fused_featurizer


def _count(module: nn.Module) -> int:
    """Parameters of its matrices: biases and norms multiply nothing by a row of another."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.dim() > 1)


def _prompts(instructions: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.full((len(instructions), PROMPT), 100)
    ids[:, 0] = BOS
    return ids, torch.ones_like(ids, dtype=torch.bool)
