"""OpenVLA against the reference implementation's numbers, and step by step against all at once."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import DynamicCache

from embodied.config import ConfigError, compose
from embodied.wiring import build
from policies.codec import ActionCodec, gripper_to_env
from policies.openvla import OpenVLA
from policies.openvla_oft import OpenVLAOFT
from policies.parts import decoder
from policies.parts.images import ImagePath
from policies.checkpoints.loading import CheckpointError
from policies.parts.prompts import Prompts

FIXTURES = Path(__file__).parents[1] / "fixtures"
TINY = FIXTURES / "openvla_tiny"


@pytest.fixture(scope="module")
def expected():
    return load_file(TINY / "expected.safetensors")


@pytest.fixture(scope="module")
def policy():
    return judging(OpenVLA.from_pretrained(TINY, value_head=True))


def judging(policy):
    """With a value head that no longer says 0 everywhere."""
    torch.nn.init.ones_(policy.value_head.fc2.weight)
    return policy


def close(found, wanted, within=1e-4):
    torch.testing.assert_close(found, wanted, atol=within, rtol=0)


def given(policy, expected, monkeypatch):
    """An observation that stands for the reference's input: its cropped picture, and its prompt whatever the instruction."""
    prompt = expected["prompt_ids"]
    monkeypatch.setattr(policy, "images", replace(policy.images, steps=()))
    monkeypatch.setattr(policy, "prompts", lambda instructions: (prompt, torch.ones_like(prompt, dtype=torch.bool)))
    return {"images/agentview": expected["image_center_cropped_224"][:1].numpy(), "instruction": [""]}


def prompts_of_two_lengths(expected, side="right"):
    """[2, 20] ids and mask: the reference's prompt, and one of 8 tokens beside 12 of padding."""
    long = expected["prompt_ids"]
    short = torch.cat([long[:, :5], long[:, -3:]], dim=1)
    room, length = long.shape[1] - short.shape[1], torch.arange(long.shape[1])
    padded = F.pad(short, (0, room) if side == "right" else (room, 0), value=7)
    real = length < short.shape[1] if side == "right" else length >= room
    return torch.cat([long, padded]), torch.stack([torch.ones_like(real), real])


def inputs(policy, expected, side="right"):
    pixels = policy.images.pixels(expected["image_raw"].numpy())
    ids, mask = prompts_of_two_lengths(expected, side)
    return {"pixels": torch.from_numpy(pixels)[:, None], "prompt_ids": ids, "prompt_mask": mask}


def alone(inputs, row):
    """The row's inputs without its neighbours and without its padding."""
    mask = inputs["prompt_mask"][row]
    ids = inputs["prompt_ids"][row][mask][None]
    return {"pixels": inputs["pixels"][row : row + 1], "prompt_ids": ids, "prompt_mask": torch.ones_like(ids, dtype=torch.bool)}


def uniforms(rows=2, seed=0):
    return np.random.default_rng(seed).random((rows, 7))


@torch.no_grad()
def test_the_logits_along_the_references_own_path_equal_the_reference(policy, expected):
    path = expected["openvla_greedy_tokens_full_vocab"]
    close(policy.action_logits(expected["pixel_values"][:1], expected["prompt_ids"], path), expected["openvla_step_logits"])


def test_the_greedy_tokens_and_their_action_equal_the_reference(policy, expected, monkeypatch):
    chunk = policy.act(given(policy, expected, monkeypatch), None)
    assert torch.equal(policy.first_action + chunk.choices, expected["openvla_greedy_tokens"])
    wanted = expected["openvla_action"].numpy()[:, None]
    np.testing.assert_allclose(chunk.actions[..., :-1], wanted[..., :-1], atol=1e-6)
    np.testing.assert_array_equal(chunk.actions[..., -1], gripper_to_env(wanted[..., -1]))


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("noise", [None, uniforms()], ids=["greedy", "sampled"])
def test_a_batch_of_prompts_of_two_lengths_equals_each_alone(policy, expected, side, noise):
    batch = inputs(policy, expected, side)
    choices, logprobs, values = policy._sample(batch, noise)
    for row in range(2):
        wanted = policy._sample(alone(batch, row), None if noise is None else noise[row : row + 1])
        assert torch.equal(choices[row : row + 1], wanted[0])
        close(logprobs[row : row + 1], wanted[1])
        close(values[row : row + 1], wanted[2])


@torch.no_grad()
@pytest.mark.parametrize("temperature", [0.5, 1.6])
def test_one_pass_over_the_chosen_tokens_gives_the_numbers_of_every_step(expected, temperature):
    policy = judging(OpenVLA.from_pretrained(TINY, temperature=temperature, value_head=True))
    batch = inputs(policy, expected)
    choices, logprobs, values = policy._sample(batch, uniforms())
    stats = policy.evaluate(batch, choices, distribution=True)
    close(stats.logprobs, logprobs, within=1e-5)
    close(stats.values, values, within=1e-5)
    assert values.abs().min() > 1e-3 and stats.distribution.shape == (2, 7, 256)
    by_hand = -(stats.distribution.exp() * stats.distribution).sum(-1)
    close(stats.entropy, by_hand, within=1e-5)


@torch.no_grad()
def test_each_step_takes_the_choice_where_its_uniform_falls(policy, expected):
    batch, noise = inputs(policy, expected), uniforms(seed=3)
    choices, _, _ = policy._sample(batch, noise)
    cumulated = policy.evaluate(batch, choices, distribution=True).distribution.double().exp().cumsum(-1)
    upper = cumulated.gather(-1, choices[..., None])[..., 0].numpy()
    lower = np.where(choices == 0, 0.0, cumulated.gather(-1, (choices - 1).clamp(min=0)[..., None])[..., 0].numpy())
    assert (lower <= noise + 1e-6).all() and (noise <= upper + 1e-6).all()


@torch.no_grad()
@pytest.mark.parametrize("later", range(1, 7))
def test_a_later_token_changes_no_earlier_log_prob_and_the_next_one(policy, expected, later):
    batch, choices = inputs(policy, expected), torch.full((2, 7), 100)
    changed = choices.clone()
    changed[:, later - 1] = 7
    before, after = (policy.evaluate(batch, tokens, distribution=True) for tokens in (choices, changed))
    assert torch.equal(before.distribution[:, :later], after.distribution[:, :later])
    assert torch.equal(before.values, after.values)
    assert ((before.distribution - after.distribution)[:, later].abs().amax(-1) > 1e-5).all()


@torch.no_grad()
def test_pictures_and_prompt_see_nothing_behind_them(policy):
    embeddings = torch.randn(1, 12, 32, generator=torch.Generator().manual_seed(0))
    changed = embeddings.clone()
    changed[:, 6] += 1
    valid = torch.ones(1, 12, dtype=torch.bool)
    difference = (policy.language_model.after(embeddings, valid) - policy.language_model.after(changed, valid)).abs().amax(-1)[0]
    assert (difference[:6] == 0).all() and (difference[6:] > 1e-5).all()


@torch.no_grad()
def test_a_cache_of_another_length_is_refused(policy):
    embeddings, valid = torch.zeros(1, 4, 32), torch.ones(1, 4, dtype=torch.bool)
    cache = DynamicCache()
    policy.language_model.after(embeddings, valid, cache)
    with pytest.raises(RuntimeError, match="4 positions, wanted those of 5"):
        policy.language_model.after(embeddings[:, :1], torch.ones(1, 6, dtype=torch.bool), cache)


@torch.no_grad()
def test_a_transformers_that_leaves_the_cache_empty_is_refused(policy, monkeypatch):
    monkeypatch.setattr(decoder, "CACHE", "by_another_name")
    with pytest.raises(RuntimeError, match="did not fill it"):
        policy.language_model.after(torch.zeros(1, 4, 32), torch.ones(1, 4, dtype=torch.bool), DynamicCache())


def test_the_7b_model_has_the_names_and_shapes_of_the_published_one():
    wanted = json.loads((FIXTURES / "openvla-7b.shapes.json").read_text())
    config = json.loads((TINY / "config.json").read_text())
    del config["vision_towers"]
    published = {**config, "image_sizes": [224, 224], "text_config": {"vocab_size": 32064}}
    images = ImagePath.from_config(json.loads((TINY / "preprocessor_config.json").read_text()))
    with torch.device("meta"):
        model = OpenVLA(published, ActionCodec(config["norm_stats"]), images, Prompts({}, 32000, None))
    assert {name: list(parameter.shape) for name, parameter in model.named_parameters()} == wanted
    assert (model.first_action, model.tokens, model.spec.chunk) == (31744, 7, 1)


def test_a_suite_finds_its_statistics_and_a_wrong_or_open_choice_lists_what_there_is(tmp_path):
    assert OpenVLA.from_pretrained(TINY, unnorm_key="libero_spatial").codec.key == "libero_spatial_no_noops"
    with pytest.raises(KeyError, match="libero_spatial_no_noops"):
        OpenVLA.from_pretrained(TINY, unnorm_key="libero_goal")
    folder = shutil.copytree(TINY, tmp_path / "two")
    statistics = json.loads((folder / "dataset_statistics.json").read_text())
    (folder / "dataset_statistics.json").write_text(json.dumps({**statistics, "bridge_orig": statistics["libero_spatial_no_noops"]}))
    with pytest.raises(KeyError, match="bridge_orig.*libero_spatial_no_noops"):
        OpenVLA.from_pretrained(folder)
    assert OpenVLA.from_pretrained(folder, unnorm_key="bridge_orig").codec.key == "bridge_orig"


def test_a_checkpoint_made_for_chunks_is_refused(tmp_path):
    folder = shutil.copytree(TINY, tmp_path / "chunks")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_actions_chunk": 8}))
    with pytest.raises(ValueError, match="policy=openvla_oft"):
        OpenVLA.from_pretrained(folder)
    assert OpenVLAOFT.from_pretrained(folder).spec.chunk == 8


def test_without_a_checkpoint_it_says_how_to_give_one():
    with pytest.raises(CheckpointError, match="policy.checkpoint=FOLDER"):
        OpenVLA.from_pretrained(None)
    with pytest.raises(ConfigError, match="policy.checkpoint=FOLDER"):
        build.policy(compose(["policy=openvla"]))


def test_the_configured_policy_is_an_openvla(tmp_path):
    made = build.policy(compose(["policy=openvla", f"policy.checkpoint={TINY}", "policy.instructions=false", "device=cpu"]), needs_values=True)
    assert isinstance(made, OpenVLA) and made.value_head is not None
