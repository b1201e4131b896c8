"""OpenVLAOFT and OpenVLA as Policies, on a freshly made small checkpoint of the true layout, which either can read; and OpenVLA-OFT with the L1
head, two cameras and the state, on one of its own."""

import re

import numpy as np
import pytest
import torch

from policies.base import Policy
from policies.openvla import OpenVLA
from policies.openvla_oft import OpenVLAOFT, OpenVLAOFTL1
from policies.checkpoints import fresh
from policies.checkpoints.fresh import create_checkpoint

INSTRUCTIONS = ["pick up the black bowl next to the plate and place it on the plate", "push the plate"]
STATISTICS = {"libero_spatial": {"action": {"q01": [-0.9] * 3 + [-1.0] * 3 + [0.0], "q99": [0.9] * 3 + [1.0] * 4, "mask": [True] * 3 + [False] * 4}, "proprio": {"q01": [-1.0] * 8, "q99": [1.0] * 8}}}
SMALL = {"image": 32, "patch": 16, "vision_width": 16, "hidden": 32, "layers": 2, "mlp": 48}
L1 = {"head": "l1", "state": True, "cameras": ("agentview", "wrist")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return create_checkpoint(tmp_path_factory.mktemp("small"), INSTRUCTIONS, STATISTICS, sizes=SMALL)


@pytest.fixture(scope="module")
def standard_folder(tmp_path_factory):
    return create_checkpoint(tmp_path_factory.mktemp("standard"), INSTRUCTIONS, STATISTICS)


@pytest.fixture(scope="module", params=[OpenVLAOFT, OpenVLA, OpenVLAOFTL1], ids=["openvla_oft", "openvla", "openvla_oft_l1"])
def kind(request):
    return request.param


@pytest.fixture(scope="module", params=[OpenVLAOFT, OpenVLA], ids=["openvla_oft", "openvla"])
def token_kind(request):
    return request.param


@pytest.fixture(scope="module")
def own(kind, folder, tmp_path_factory):
    """The small folder of the kind."""
    return create_checkpoint(tmp_path_factory.mktemp("l1"), INSTRUCTIONS, STATISTICS, sizes={**SMALL, **L1}) if kind is OpenVLAOFTL1 else folder


@pytest.fixture(scope="module")
def policy(kind, own):
    return kind.from_pretrained(own)


@pytest.fixture(scope="module")
def token_policy(token_kind, folder):
    return token_kind.from_pretrained(folder)


@pytest.fixture(scope="module")
def standard(kind, standard_folder, tmp_path_factory):
    return kind.from_pretrained(create_checkpoint(tmp_path_factory.mktemp("standard_l1"), INSTRUCTIONS, STATISTICS, sizes=L1) if kind is OpenVLAOFTL1 else standard_folder)


def observation(rows, side=32, seed=0):
    random = np.random.default_rng(seed)
    pictures = {f"images/{camera}": random.integers(0, 256, (rows, side, side, 3), dtype=np.uint8) for camera in L1["cameras"]}
    return {**pictures, "state": random.uniform(-1, 1, (rows, 8)), "instruction": [INSTRUCTIONS[row % 2] for row in range(rows)]}


def noise(policy, rows, seed=1):
    return np.random.default_rng(seed).random((rows, policy.tokens))


def take(observed, rows):
    return {key: [value[row] for row in rows] if isinstance(value, list) else value[rows] for key, value in observed.items()}


def test_it_is_a_policy_with_an_open_1_gripper_and_7_numbers_per_action(policy):
    assert isinstance(policy, Policy)
    assert (policy.spec.action_dims, policy.spec.gripper, policy.spec.language) == (7, "open_1_close_0", True)


def test_oft_gives_chunks_of_8_actions_and_openvla_one_at_a_time(folder):
    oft, one = (made.from_pretrained(folder).spec for made in (OpenVLAOFT, OpenVLA))
    assert (oft.name, oft.chunk, one.name, one.chunk) == ("openvla_oft", 8, "openvla", 1)


def test_act_gives_a_chunk_in_the_envs_convention_and_compact_inputs(policy):
    chunk = policy.act(observation(3), noise(policy, 3))
    assert chunk.choices.shape == chunk.logprobs.shape == chunk.mask.shape == (3, policy.tokens)
    assert chunk.choices.dtype == (torch.int64 if policy.spec.distribution else torch.float32) and chunk.logprobs.dtype == torch.float32
    assert chunk.actions.shape == (3, policy.spec.chunk, 7) and chunk.actions.dtype == np.float32
    assert set(np.unique(chunk.actions[..., -1])) <= {-1.0, 1.0}
    assert chunk.inputs["pixels"].dtype == torch.uint8 and chunk.values is None
    assert all(len(tensor) == 3 for tensor in chunk.inputs.values())


def test_without_noise_the_most_probable_choice_is_taken(token_policy):
    chunk = token_policy.act(observation(2), None)
    stats = token_policy.evaluate(chunk.inputs, chunk.choices, distribution=True)
    assert torch.equal(chunk.choices, stats.distribution.argmax(-1))


@pytest.mark.parametrize("temperature", [0.5, 1.6])
def test_the_ratio_of_an_unchanged_policy_is_1_at_any_temperature(kind, own, temperature):
    policy = kind.from_pretrained(own, temperature=temperature)
    chunk = policy.act(observation(4), noise(policy, 4))
    with torch.no_grad():
        ratio = (policy.evaluate(chunk.inputs, chunk.choices).logprobs - chunk.logprobs).exp()
    torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-3, rtol=0)


@torch.no_grad()
def test_the_temperature_divides_the_logits_and_not_the_log_probs(token_kind, folder):
    cold, hot = (token_kind.from_pretrained(folder, temperature=value) for value in (1.0, 1.6))
    chunk = cold.act(observation(2), noise(cold, 2))
    base = cold.evaluate(chunk.inputs, chunk.choices, distribution=True).distribution
    found = hot.evaluate(chunk.inputs, chunk.choices, distribution=True).distribution
    torch.testing.assert_close(found, torch.log_softmax(base / 1.6, -1), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(2, cold.tokens), atol=1e-5, rtol=0)


def test_a_temperature_of_zero_is_refused(kind, own):
    with pytest.raises(ValueError, match="temperature"):
        kind.from_pretrained(own, temperature=0.0)


@pytest.mark.parametrize(
    "setting, said",
    [
        ({"dtype": "float99"}, "policy.dtype: found 'float99', wanted one of float32, bfloat16, float64"), ({"dtype": "int8"}, "policy.dtype"), ({"dtype": 5}, "policy.dtype"),
        ({"dtype": "float16"}, "float16 overflows"), ({"temperature": 1e-30}, "policy.temperature: found 1e-30, wanted a number from 0.001 to 1000"),
        ({"temperature": float("inf")}, "policy.temperature"), ({"temperature": float("nan")}, "policy.temperature"), ({"temperature": "hot"}, "policy.temperature"),
        ({"initial_log_std": 1000.0}, "policy.initial_log_std: found 1000.0, wanted a number from -20 to 5"), ({"initial_log_std": -1000}, "policy.initial_log_std"),
        ({"prompt_length": 0}, "policy.prompt_length: found 0, wanted a whole number above 0"), ({"prompt_length": -3}, "policy.prompt_length"), ({"prompt_length": 2.5}, "policy.prompt_length"),
        ({"cameras": "front"}, "policy.cameras: found 'front', wanted a list"), ({"cameras": ["front", "front"]}, "each of them once"), ({"cameras": []}, "at least one name"), ({"cameras": [1]}, "policy.cameras"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_is_refused_by_its_key(kind, own, setting, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        kind.from_pretrained(own, **setting)


def test_a_prompt_is_as_long_as_the_language_models_positions_allow_beside_the_rest(kind, own):
    # 2048 positions; 4 patches per camera, the state's token, C * 7 actions and one more: 4 + 56 + 1, 4 + 7 + 1, 8 + 1 + 56 + 1
    longest = 2048 - {OpenVLAOFT: 61, OpenVLA: 12, OpenVLAOFTL1: 66}[kind]
    assert kind.from_pretrained(own, prompt_length=longest).prompts.length == longest
    with pytest.raises(ValueError, match=f"policy.prompt_length: found {longest + 1}, wanted 1 to {longest}:"):
        kind.from_pretrained(own, prompt_length=longest + 1)


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"instruction": INSTRUCTIONS[:1]}, "'instruction': found ['pick"), ({"instruction": "ab"}, "'instruction': found 'ab', wanted a list of 2 texts"),
        ({"instruction": ["push", None]}, "found ['push', None], wanted a list of 2 texts"), ({"instruction": None}, "'instruction': found None"), ({"images/agentview": np.zeros((0, 32, 32, 3), np.uint8), "images/wrist": np.zeros((0, 32, 32, 3), np.uint8)}, "at least one row"),
        ({"images/agentview": np.zeros((2, 0, 0, 3), np.uint8)}, "'images/agentview': found uint8 [2, 0, 0, 3], wanted"),
    ],
)  # fmt: skip
def test_an_observation_that_is_not_of_one_batch_is_refused_by_name(policy, changed, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        policy.act({**observation(2), **changed}, None)


def test_an_observation_without_an_instruction_is_refused_by_name(policy):
    observed = observation(2)
    del observed["instruction"]
    with pytest.raises(ValueError, match="wanted 'instruction'"):
        policy.act(observed, None)


@pytest.mark.parametrize("end", [0.0, 1.0, np.nan])
def test_noise_with_an_end_in_it_is_refused_with_its_place(policy, end):
    uniform = noise(policy, 2)
    uniform[1, 3] = end
    with pytest.raises(ValueError, match=f"noise: found {end} in row 1, token 3, wanted uniforms inside"):
        policy.act(observation(2), uniform)


def test_noise_of_another_size_is_refused_with_both(policy):
    with pytest.raises(ValueError, match=rf"noise: found float64 \[2, {policy.tokens - 1}\], wanted \[2, {policy.tokens}\]"):
        policy.act(observation(2), noise(policy, 2)[:, 1:])


def test_weights_that_are_no_numbers_are_refused_instead_of_acted_on(kind, own):
    policy = kind.from_pretrained(own)
    torch.nn.init.constant_(policy.projector.fc1.weight, float("nan"))
    with pytest.raises(ValueError, match="log-probabilities: found nan" if policy.spec.distribution else "(log-probabilities|actions): found nan"):
        policy.act(observation(2), None)


def test_training_mode_changes_no_bit(policy):
    chunk = policy.act(observation(2), noise(policy, 2))
    policy.train()
    trained = policy.act(observation(2), noise(policy, 2))
    policy.eval()
    assert torch.equal(chunk.logprobs, trained.logprobs)


@pytest.mark.parametrize("rows", [4, 5])
def test_a_rows_numbers_do_not_depend_on_its_place_or_its_neighbours(standard, rows):
    observed, uniform = observation(rows, 128), noise(standard, rows)
    whole = standard.act(observed, uniform)
    order = list(range(rows))[::-1]
    moved = standard.act(take(observed, order), uniform[order])
    assert torch.equal(moved.logprobs, whole.logprobs[order]) and torch.equal(moved.choices, whole.choices[order])
    others = observation(rows, 128, seed=7)
    for name in observed.keys() - {"instruction"}:
        others[name][1] = observed[name][1]
    assert torch.equal(standard.act(others, uniform).logprobs[1], whole.logprobs[1])


def test_encode_is_what_decodes_to_the_same_actions(policy):
    actions = policy.act(observation(2), noise(policy, 2)).actions
    choices = policy.encode(actions)
    assert choices.shape == (2, policy.tokens) and choices.dtype == (torch.int64 if policy.spec.distribution else torch.float32)
    np.testing.assert_allclose(policy._decoded(choices.view(2, -1, 7).numpy()), actions, atol=1e-6)


def test_learning_from_demonstrations_makes_them_likelier_through_every_used_part(kind, own):
    policy = kind.from_pretrained(own)
    inputs, choices = policy.prepare(observation(4)), torch.full((4, policy.tokens), 128 if policy.spec.distribution else 0.0)
    optimizer = torch.optim.AdamW(policy.parameters(), 1e-2)
    losses = []
    for _ in range(8):
        loss = -policy.evaluate(inputs, choices).logprobs.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    unused = {name for name, parameter in policy.named_parameters() if parameter.grad is None}
    towers = ("vision_backbone.featurizer", "vision_backbone.fused_featurizer")
    never = [*(f"{tower}.{part}" for tower in towers for part in ("blocks.2.", "norm.")), *([] if policy.spec.distribution else ["language_model.lm_head."])]
    assert all(name.startswith(tuple(never)) for name in unused)


def test_a_saved_folder_loads_to_the_same_bits_and_the_same_files(kind, own, policy, tmp_path):
    policy.save_pretrained(tmp_path)
    again = kind.from_pretrained(tmp_path)
    assert torch.equal(again.act(observation(2), noise(policy, 2)).logprobs, policy.act(observation(2), noise(policy, 2)).logprobs)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(file.name for file in own.iterdir())


def test_a_value_head_starts_at_zero_and_is_saved_beside_the_reference_names(kind, own, tmp_path):
    policy = kind.from_pretrained(own, value_head=True)
    assert (policy.act(observation(3), noise(policy, 3)).values == 0).all()
    with torch.no_grad():
        policy.value_head.fc2.bias.fill_(2.0)
    policy.save_pretrained(tmp_path)
    again = kind.from_pretrained(tmp_path, value_head=True)
    assert (again.act(observation(3), noise(policy, 3)).values == 2).all()
    assert kind.from_pretrained(tmp_path).act(observation(1), noise(policy, 1)).values is None


@pytest.mark.parametrize("detach", [True, False])
def test_the_value_loss_reaches_the_backbone_unless_detached(kind, own, detach):
    policy = kind.from_pretrained(own, value_head=True, value_detach=detach)
    torch.nn.init.ones_(policy.value_head.fc2.weight)
    chunk = policy.act(observation(2), noise(policy, 2))
    policy.evaluate(chunk.inputs, chunk.choices).values.sum().backward()
    gradient = policy.projector.fc1.weight.grad
    assert (gradient is None or not gradient.any()) == detach


def test_pictures_of_another_size_are_brought_to_the_towers(policy):
    assert policy.prepare(observation(2, side=64))["pixels"].shape == (2, len(policy.spec.cameras), 32, 32, 3)


def test_a_prompt_that_does_not_fit_says_what_would(policy):
    with pytest.raises(ValueError, match="prompt_length="):
        policy.prompts(["xylophones zigzag quickly " * 3])


def test_words_are_one_token_and_unknown_words_are_spelled(policy):
    tokens = policy.prompts.tokenizer.encode("In: What action should the robot take to push the zoo?\nOut:").tokens
    assert tokens == ["<s>", "In: What action should the robot take to ", "push", "the", "z", "##o", "##o", "?\nOut:"]


def test_the_same_seed_makes_the_same_checkpoint_and_another_seed_another(folder, tmp_path):
    same = create_checkpoint(tmp_path / "same", INSTRUCTIONS, STATISTICS, sizes=SMALL)
    other = create_checkpoint(tmp_path / "other", INSTRUCTIONS, STATISTICS, seed=1, sizes=SMALL)
    for file in folder.iterdir():
        assert file.read_bytes() == (same / file.name).read_bytes()
    assert (other / "model.safetensors").read_bytes() != (folder / "model.safetensors").read_bytes()


def test_the_standard_size_is_the_recipes(standard_folder):
    standard = OpenVLAOFT.from_pretrained(standard_folder)
    parameters = dict(standard.named_parameters())
    assert 2.3e6 < sum(parameter.numel() for parameter in parameters.values()) < 2.5e6
    assert (parameters["vision_backbone.featurizer.blocks.0.ls1.scale_factor"] == 1).all()
    assert parameters["language_model.model.embed_tokens.weight"].std().item() == pytest.approx(1.0, abs=0.02)
    assert parameters["language_model.model.layers.0.self_attn.q_proj.weight"].std().item() == pytest.approx(128**-0.5, rel=0.05)
    assert standard.language_model.model.config.rope_parameters["rope_theta"] == 100


def test_an_unknown_size_is_refused(tmp_path):
    with pytest.raises(TypeError, match="width"):
        create_checkpoint(tmp_path, INSTRUCTIONS, STATISTICS, sizes={"width": 3})


def test_too_small_a_vocabulary_says_how_large_it_must_be(tmp_path):
    with pytest.raises(ValueError, match=str(3 + 2 + 2 * len(fresh.CHARACTERS))):
        create_checkpoint(tmp_path, INSTRUCTIONS, STATISTICS, sizes={"text_ids": 50})
