"""A randomly initialised small checkpoint of the true layout, with a tokenizer of its own: where a small policy starts from.

The same arguments give the same bytes. The sizes and initial spreads are what imitation learning on two CPU cores does well with:
large token embeddings, LayerScale 1, RoPE theta 100 and 1/sqrt(width) weights keep a narrow, shallow model's attention from being uniform.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from torch import nn

from policies.codec import BINS, ActionCodec, StateCodec
from policies.openvla_oft import OpenVLAOFT, OpenVLAOFTL1
from policies.parts.images import STEPS_KEY, ImagePath
from policies.parts.prompts import AFTER, BEFORE, BOS, Prompts, prompt_text
from policies.parts.vla import CAMERAS_KEY, CHUNK_KEY, PROMPT_LENGTH_KEY

CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,;:!?'\"()-_/"
SPECIAL = ("<unk>", "<s>", "</s>")  # ids 0, 1 and 2, as Llama's
MEANS, STDS = ([0.485, 0.456, 0.406], [0.5] * 3), ([0.229, 0.224, 0.225], [0.5] * 3)


@dataclass(frozen=True)
class Sizes:
    """Widths in channels, lengths in tokens, pictures in pixels."""

    image: int = 128
    patch: int = 32  # few, large patches: as good a step as 16 px, at two thirds of the time
    vision_width: int = 96
    vision_depth: int = 3  # one less runs
    vision_heads: int = 4
    registers: int = 4
    hidden: int = 128
    layers: int = 4  # the zeroed slots are all alike until the second
    heads: int = 4
    mlp: int = 320
    text_ids: int = 192
    padding_ids: int = 64
    rope_theta: float = 100.0
    head: str = "discrete"  # "discrete" | "l1"
    chunk: int = 8  # C, of the l1 head
    cameras: tuple[str, ...] = ("agentview",)
    state: bool = False  # one token of proprioception, of the size that the statistics have
    film: bool = False  # vision is modulated by the language
    log_std: float = -1.5  # of the l1 head


def create_checkpoint(folder: str | Path, instructions: list[str], statistics: dict, seed: int = 0, sizes: dict | None = None) -> Path:
    """Write the folder and return it. About 2.4 M parameters with the standard sizes.

    instructions: what the tokenizer's words come from; other instructions still work, spelled out in characters, and the longest
    sets the prompt's length. statistics: what dataset_statistics.json holds, {suite: {"action": {"q01", "q99", "mask"}}},
    and "proprio" beside "action" for a policy that reads the state. sizes: fields of `Sizes` to change. Raises TypeError for an unknown size, KeyError or ValueError for unfit statistics.
    """
    wanted = replace(Sizes(), **(sizes or {}))
    key = sorted(statistics)[0] if statistics else None
    codec, state = ActionCodec(statistics, key), StateCodec(statistics, key) if wanted.state else None
    vocabulary = wanted.text_ids + BINS
    files = _tokenizer_files(Path(folder), instructions, wanted.text_ids)
    longest = max(len(Tokenizer.from_str(files["tokenizer.json"].decode()).encode(prompt_text(line)).ids) for line in instructions)
    config, preprocessor = {**_config(wanted), PROMPT_LENGTH_KEY: longest}, _preprocessor(wanted.image)
    with torch.device("meta"):
        kind = {"discrete": OpenVLAOFT, "l1": OpenVLAOFTL1}[wanted.head]
        policy = kind(config, codec, ImagePath.from_config(preprocessor), Prompts(files, vocabulary, longest), cameras=wanted.cameras, state=state, film=wanted.film)
    policy.statistics, policy.preprocessor = statistics, preprocessor
    policy.materialise("float32", "cpu")
    initialise(policy, seed)
    if wanted.head == "l1":
        nn.init.constant_(policy.log_std, wanted.log_std)
    policy.save_pretrained(folder)
    return Path(folder)


@torch.no_grad()
def initialise(policy: nn.Module, seed: int) -> None:
    """Overwrite every parameter, in name order, from one generator."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(policy.named_parameters()):
        leaf = name.rsplit(".", 1)[-1]
        if leaf == "bias":
            parameter.zero_()
        elif leaf == "scale_factor" or "norm" in name or parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, _spread(name, parameter), generator=generator)


def _spread(name: str, parameter: torch.Tensor) -> float:
    if name.endswith("embed_tokens.weight"):
        return 1.0
    if name.endswith("pos_embed"):
        return 0.2
    if name.endswith(("lm_head.weight", "cls_token", "reg_token", "latent")):
        return 0.02
    return parameter[0].numel() ** -0.5  # 1 / sqrt(inputs)


def _config(sizes: Sizes) -> dict:
    tower = dict(embed_dim=sizes.vision_width, depth=sizes.vision_depth, num_heads=sizes.vision_heads, mlp_ratio=4.0, patch_size=sizes.patch)
    vocabulary = sizes.text_ids + BINS
    said = {CHUNK_KEY: sizes.chunk} if sizes.head == "l1" else {}
    if sizes.cameras != Sizes.cameras or said:
        said[CAMERAS_KEY] = list(sizes.cameras)
    return {
        **said,
        "model_type": "openvla",
        "architectures": ["OpenVLAForActionPrediction"],
        "vision_towers": [
            {"model": "dinov2", **tower, "num_registers": sizes.registers, "layer_scale": True},
            {"model": "siglip", **tower, "num_registers": 0, "layer_scale": False, "attention_pool": False},
        ],
        "image_sizes": [sizes.image, sizes.image],
        "image_resize_strategy": "resize-naive",
        "use_fused_vision_backbone": True,
        "n_action_bins": BINS,
        "pad_token_id": vocabulary,
        "pad_to_multiple_of": sizes.padding_ids,
        "text_config": {
            "model_type": "llama",
            "vocab_size": vocabulary + sizes.padding_ids,
            "hidden_size": sizes.hidden,
            "intermediate_size": sizes.mlp,
            "num_hidden_layers": sizes.layers,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.heads,
            "rope_theta": sizes.rope_theta,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 2048,
            "pad_token_id": vocabulary,
        },
    }


def _preprocessor(image: int) -> dict:
    return {
        "image_processor_type": "PrismaticImageProcessor",
        "image_resize_strategy": "resize-naive",
        "input_sizes": [[3, image, image]] * 2,
        "interpolations": ["bicubic", "bicubic"],
        "means": list(MEANS),
        "stds": list(STDS),
        STEPS_KEY: [],
    }


def _tokenizer_files(folder: Path, instructions: list[str], text_ids: int) -> dict[str, bytes]:
    """One token per word, the template's halves one token each, unknown words in characters; saved for transformers to load."""
    from transformers import PreTrainedTokenizerFast

    if not instructions:
        raise ValueError("found no instructions, wanted at least one: the tokenizer's words come from them")
    template = (BEFORE, AFTER)
    pieces = [*CHARACTERS, *(f"##{character}" for character in CHARACTERS)]
    split = pre_tokenizers.BertPreTokenizer()
    words = Counter(word for line in instructions for word, _ in split.pre_tokenize_str(line.lower()) if len(word) > 1)
    room = text_ids - len(SPECIAL) - len(template) - len(pieces)
    if room < 0:
        raise ValueError(f"found text_ids={text_ids}, wanted at least {text_ids - room}: one per character and special token")
    common = [word for word, _ in sorted(words.items(), key=lambda item: (-item[1], item[0]))][:room]
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *pieces, *common])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=SPECIAL[0]))
    tokenizer.pre_tokenizer = split
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in template])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{SPECIAL[1]} $A", special_tokens=[(SPECIAL[1], BOS)])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=SPECIAL[0], bos_token=SPECIAL[1], eos_token=SPECIAL[2])
    return {Path(name).name: Path(name).read_bytes() for name in wrapped.save_pretrained(folder) if Path(name).is_file()}
