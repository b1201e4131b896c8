"""The network against the reference implementation's numbers, and against the names and shapes of the real 7B model."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from policies.codec import ActionCodec, centres
from policies.openvla_oft import OpenVLAOFT
from policies.parts.network import vocabulary_of
from policies.parts import decoder
from policies.parts.images import ImagePath
from policies.parts.prompts import Prompts

FIXTURES = Path(__file__).parents[1] / "fixtures"
TINY = FIXTURES / "openvla_tiny"
PUBLISHED = {
    "timm_model_ids": ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"],
    "image_sizes": [224, 224],
    "pad_token_id": 32000,
    "pad_to_multiple_of": 64,
    "text_config": {"model_type": "llama", "pad_token_id": 32000, "vocab_size": 32064},
}


@pytest.fixture(scope="module")
def expected():
    return load_file(TINY / "expected.safetensors")


@pytest.fixture(scope="module")
def policy():
    return OpenVLAOFT.from_pretrained(TINY)


def close(found, wanted):
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


@torch.no_grad()
def test_the_vision_towers_and_the_projector_equal_the_reference(policy, expected):
    features = policy.vision_backbone(expected["pixel_values"][:1])
    close(features, expected["vision_features"])
    close(policy.projector(features), expected["projected"])


@torch.no_grad()
def test_the_hidden_states_and_logits_of_the_action_slots_equal_the_reference(policy, expected):
    pixels, prompt = expected["pixel_values"][:1], expected["prompt_ids"]
    close(policy._slot_states(pixels, prompt, None), expected["oft_hidden"])
    close(policy.action_logits(pixels, prompt), expected["oft_discrete_logits"])


@torch.no_grad()
def test_the_greedy_tokens_and_their_actions_equal_the_reference(policy, expected):
    choices = policy.action_logits(expected["pixel_values"][:1], expected["prompt_ids"]).argmax(-1)
    assert torch.equal(policy.first_action + choices, expected["oft_discrete_tokens"])
    normalised = centres(choices.view(8, 7).numpy())
    np.testing.assert_allclose(normalised, expected["oft_discrete_normalized"], atol=1e-12)
    np.testing.assert_allclose(policy.codec.unnormalise(normalised), expected["oft_discrete_actions"], atol=1e-12)


@torch.no_grad()
def test_two_cameras_put_their_patches_one_after_the_other(policy, expected):
    both = policy.vision_backbone(expected["pixel_values_two_images"])
    single = policy.vision_backbone(expected["pixel_values"])
    close(both, torch.cat([single[:1], single[1:]], dim=1))


def test_every_tensor_of_the_7b_model_has_its_name_and_shape():
    wanted = json.loads((FIXTURES / "openvla-7b.shapes.json").read_text())
    statistics = json.loads((TINY / "dataset_statistics.json").read_text())
    preprocessor = json.loads((TINY / "preprocessor_config.json").read_text())
    with torch.device("meta"):
        model = OpenVLAOFT(PUBLISHED, ActionCodec(statistics), ImagePath.from_config(preprocessor), Prompts({}, 32000, None))
    found = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    assert len(wanted) == 982 and found == wanted
    assert model.first_action == 31744


@pytest.mark.parametrize("rows", [32000, 32064])
def test_padding_of_the_vocabulary_does_not_shift_the_action_ids(rows):
    assert vocabulary_of({**PUBLISHED, "text_config": {"vocab_size": rows}}) - 256 == 31744


@torch.no_grad()
def test_padding_on_either_side_leaves_the_logits_as_they_are_alone(policy, expected):
    pixels, long = expected["pixel_values"], expected["prompt_ids"]
    short = torch.cat([long[:, :5], long[:, -3:]], dim=1)
    alone = torch.cat([policy.action_logits(pixels[:1], long), policy.action_logits(pixels[1:], short)])
    room = long.shape[1] - short.shape[1]
    right = torch.cat([long, torch.nn.functional.pad(short, (0, room), value=7)])
    left = torch.cat([long, torch.nn.functional.pad(short, (room, 0), value=7)])
    length = torch.arange(long.shape[1])
    whole = torch.ones_like(length, dtype=torch.bool)
    close(policy.action_logits(pixels, right, torch.stack([whole, length < short.shape[1]])), alone)
    close(policy.action_logits(pixels, left, torch.stack([whole, length >= room])), alone)


@torch.no_grad()
def test_an_earlier_slot_sees_a_later_position(policy):
    embeddings = torch.randn(1, 12, 32, generator=torch.Generator().manual_seed(0))
    changed = embeddings.clone()
    changed[:, -1] += 1
    difference = policy.language_model(embeddings) - policy.language_model(changed)
    assert (difference.abs().amax(-1) > 1e-5).all()


@torch.no_grad()
def test_the_stop_token_behind_the_slots_reaches_the_first_of_them(expected):
    policy = OpenVLAOFT.from_pretrained(TINY)
    before = policy.action_logits(expected["pixel_values"][:1], expected["prompt_ids"])
    policy.language_model.model.embed_tokens.weight[2] += 1
    after = policy.action_logits(expected["pixel_values"][:1], expected["prompt_ids"])
    assert (after - before)[0, 0].abs().max() > 1e-4


@torch.no_grad()
def test_computing_the_zeroed_slots_once_in_the_first_layer_changes_nothing(policy):
    embeddings = torch.randn(2, 70, 32, generator=torch.Generator().manual_seed(0))
    embeddings[:, 9:65] = 0
    valid = torch.arange(70) != torch.tensor([[3], [7]])
    difference = policy.language_model(embeddings, valid, (9, 56)) - policy.language_model(embeddings, valid)
    assert difference[valid].abs().max() < 1e-5


class CausalLayer(LlamaDecoderLayer):
    """What a library does that builds its own mask over the one it is given."""

    def forward(self, hidden_states, attention_mask, **rest):
        length = hidden_states.shape[1]
        causal = torch.full((1, 1, length, length), torch.finfo(hidden_states.dtype).min).triu(1)
        return super().forward(hidden_states, attention_mask=causal, **rest)


def test_a_transformers_that_attends_causally_is_refused(monkeypatch):
    decoder.require_bidirectional.cache_clear()
    monkeypatch.setattr(modeling_llama, "LlamaDecoderLayer", CausalLayer)
    with pytest.raises(RuntimeError, match="bidirectional"):
        OpenVLAOFT.from_pretrained(TINY)
    decoder.require_bidirectional.cache_clear()


def test_loading_leaves_torchs_random_state_alone():
    decoder.require_bidirectional.cache_clear()
    before = torch.get_rng_state()
    OpenVLAOFT.from_pretrained(TINY, value_head=True)
    assert torch.equal(before, torch.get_rng_state())
