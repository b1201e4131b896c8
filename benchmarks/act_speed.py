"""Chunks of actions per second of the packaged small checkpoint on one thread: OpenVLA-OFT and OpenVLA of the same weights, ours and written plainly.

    python benchmarks/act_speed.py [batch=8] [repeats=9]

OpenVLA-OFT gives a chunk of 8 actions in one parallel pass. OpenVLA gives one action in 7 token steps, so 8 inferences make as many actions;
both counts are printed. Ours is `act` on the whole batch, greedy. Plain is the reference algorithm on transformers' LlamaForCausalLM, one row
after another as its evaluation does it: OFT as one full forward with eager attention and a mask of zeros, OpenVLA by `generate`. Both sides have the
same vision towers and tokenizer. The four take turns, and medians of wall time are compared; choices are compared too.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")  # read as the libraries are loaded

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from arguments import given

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = ROOT / "assets" / "openvla_oft_small"
INSTRUCTION = "pick up the black bowl between the plate and the ramekin and place it on the plate"
CHUNK = 8  # actions


def plain_llama(policy) -> LlamaForCausalLM:
    """The library's own model with a policy's weights."""
    config = LlamaConfig(**policy.language_model.model.config.to_dict())
    config._attn_implementation, config.is_causal, config.use_cache = "eager", True, True
    config.eos_token_id = config.pad_token_id = None
    llama = LlamaForCausalLM(config)
    llama.load_state_dict(policy.language_model.state_dict())
    return llama.eval()


def plain_context(policy, observation: dict, row: int) -> torch.Tensor:
    """[1, N, D] embeddings of BOS, patches and the prompt of one row, without padding."""
    inputs = policy.prepare({key: value[row : row + 1] for key, value in observation.items()})
    pixels, prompt_ids, mask = policy._placed(inputs)
    embedded = policy.language_model.model.embed_tokens(prompt_ids[mask][None])
    patches = policy.projector(policy.vision_backbone(pixels))
    return torch.cat([embedded[:, :1], patches, embedded[:, 1:]], dim=1)


@torch.no_grad()
def plain_oft(policy, llama: LlamaForCausalLM, observation: dict) -> torch.Tensor:
    """[b, 56] choices."""
    choices = []
    for row in range(len(observation["instruction"])):
        context = plain_context(policy, observation, row)
        slots = torch.zeros(1, policy.tokens, context.shape[-1])
        stop = llama.get_input_embeddings()(torch.tensor([[2]]))
        embeddings = torch.cat([context, slots, stop], dim=1)
        sees_all = torch.zeros(1, 1, embeddings.shape[1], embeddings.shape[1])
        logits = llama(inputs_embeds=embeddings, attention_mask=sees_all, use_cache=False).logits
        read = logits[:, context.shape[1] - 1 : context.shape[1] - 1 + policy.tokens, policy.first_action : policy.first_action + 256]
        choices.append(read.argmax(-1))
    return torch.cat(choices)


@torch.no_grad()
def plain_openvla(policy, llama: LlamaForCausalLM, observation: dict) -> torch.Tensor:
    """[b, 7] choices."""
    contexts = (plain_context(policy, observation, row) for row in range(len(observation["instruction"])))
    actions = range(policy.first_action, policy.first_action + 256)
    others = [token for token in range(llama.config.vocab_size) if token not in actions]  # these weights were not trained to say actions one after another
    made = [llama.generate(inputs_embeds=context, max_new_tokens=policy.tokens, do_sample=False, suppress_tokens=others) for context in contexts]
    return torch.cat(made)[:, -policy.tokens :] - policy.first_action


def _one_action(folder: Path) -> Path:
    """The packaged folder as that of a policy which gives one action at a time: it was trained as another, and is as large."""
    shutil.copytree(CHECKPOINT, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if key != "num_actions_chunk"}))
    return folder


def main(arguments: list[str]) -> int:
    from policies.openvla import OpenVLA
    from policies.openvla_oft import OpenVLAOFT

    asked = given(arguments, __doc__)
    batch, repeats = int(asked.get("batch", 8)), int(asked.get("repeats", 9))
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        oft, openvla = OpenVLAOFT.from_pretrained(CHECKPOINT, instructions=True), OpenVLA.from_pretrained(_one_action(Path(folder, "causal")), instructions=True)
    llama, side = plain_llama(oft), oft.images.size[0]
    pictures = np.random.default_rng(0).integers(0, 256, (batch, side, side, 3), dtype=np.uint8)
    observation = {"images/agentview": pictures, "instruction": [INSTRUCTION] * batch}
    sides = {
        "OFT, ours": lambda: oft.act(observation, None).choices, "OFT, plain": partial(plain_oft, oft, llama, observation),
        "OpenVLA, ours": lambda: openvla.act(observation, None).choices, "OpenVLA, plain": partial(plain_openvla, openvla, llama, observation),
    }  # fmt: skip
    choices = {name: run() for name, run in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            begun = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begun)
    inferences = {name: batch / statistics.median(found) for name, found in seconds.items()}
    chunks = {name: rate if name.startswith("OFT") else rate / CHUNK for name, rate in inferences.items()}
    for name in sides:
        print(f"{name:15} {inferences[name]:7.1f} inferences/s, {chunks[name]:7.2f} chunks of {CHUNK} actions/s")
    for other in ("OpenVLA, ours", "OpenVLA, plain"):
        print(f"OFT, ours over {other}: {chunks['OFT, ours'] / chunks[other]:.1f}x the chunks, {inferences['OFT, ours'] / inferences[other]:.1f}x the inferences")
    for kind in ("OFT", "OpenVLA"):
        same = (choices[f"{kind}, ours"] == choices[f"{kind}, plain"]).float().mean().item()
        print(f"{kind}: ours over plain {inferences[f'{kind}, ours'] / inferences[f'{kind}, plain']:.1f}x, equal choices {100 * same:.1f} %")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
