"""OpenVLA-OFT's L1 head, state token, cameras and FiLM against the reference's numbers and by hand."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from policies.checkpoints.fresh import create_checkpoint
from policies.codec import ActionCodec, StateCodec
from policies.openvla import OpenVLA
from policies.openvla_oft import OpenVLAOFT, OpenVLAOFTL1
from policies.parts import gaussian
from policies.parts.heads import FiLM, L1Head
from policies.parts.vision import Block, Tower

FIXTURES = Path(__file__).parents[1] / "fixtures"
TINY, HEADS = FIXTURES / "openvla_tiny", FIXTURES / "openvla_tiny_heads"
INSTRUCTIONS = ["push the plate", "pick up the bowl"]
STATISTICS = {
    "libero_goal": {
        "action": {"q01": [-0.9] * 6 + [0.0], "q99": [0.9] * 6 + [1.0], "mask": [True] * 6 + [False]},
        "proprio": {"q01": [-1.0, 0.0, -2.0], "q99": [1.0, 4.0, 2.0]},
    }
}
SMALL = {"image": 32, "patch": 16, "vision_width": 16, "hidden": 32, "layers": 2, "mlp": 48}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The reference's checkpoint with its component files, and the two cameras it was run with."""
    return assembled(tmp_path_factory.mktemp("whole"))


def assembled(folder):
    for file in (*(file for file in TINY.iterdir() if file.name != "expected.safetensors"), *HEADS.iterdir()):
        shutil.copy(file, folder / file.name)
    return folder


@pytest.fixture(scope="module")
def expected():
    return load_file(TINY / "expected.safetensors")


@pytest.fixture(scope="module")
def policy(whole):
    return OpenVLAOFT.from_pretrained(whole)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    sizes = {**SMALL, "head": "l1", "state": True, "cameras": ("agentview", "wrist"), "chunk": 3}
    return create_checkpoint(tmp_path_factory.mktemp("toy"), INSTRUCTIONS, STATISTICS, sizes=sizes)


def close(found, wanted, within=1e-4):
    torch.testing.assert_close(found, wanted, atol=within, rtol=0)


def state(expected):
    return torch.as_tensor(expected["proprio_normalized"], dtype=torch.float32)[None]


def reference_states(policy, expected):
    with torch.no_grad():
        return policy._slot_states(expected["pixel_values_two_images"], expected["prompt_ids"], None, state(expected))


def test_the_slots_behind_two_cameras_and_the_state_equal_the_reference(policy, expected):
    close(reference_states(policy, expected), expected["oft_l1_hidden"])


@torch.no_grad()
def test_the_l1_heads_normalised_actions_equal_the_reference(policy, expected):
    close(policy.action_head(reference_states(policy, expected))[0], expected["oft_l1_normalized"])


def test_the_l1_actions_equal_the_reference_beyond_the_ends_of_the_statistics_too(policy, expected):
    normalised = expected["oft_l1_normalized"].double().numpy()
    assert (np.abs(normalised) > 1).any()
    np.testing.assert_allclose(policy.codec.unnormalise(normalised), expected["oft_l1_actions"], atol=1e-6)


def test_the_state_is_normalised_as_the_reference_does(policy, expected):
    found = policy.state.encode(expected["proprio_raw"][None].numpy())
    np.testing.assert_allclose(found[0], expected["proprio_normalized"], atol=1e-6)


def test_a_state_beyond_the_statistics_is_clipped():
    # 2 (4 - 0) / 4 - 1 = 1, 2 (5 - 0) / 4 - 1 = 1.5 -> 1, 2 (-3 + 2) / 4 - 1 = -1.5 -> -1
    np.testing.assert_allclose(StateCodec(STATISTICS).encode(np.array([[-1.0, 4.0, -3.0], [0.0, 5.0, 0.0]])), [[-1, 1, -1], [0, 1, 0]], atol=1e-6)


@torch.no_grad()
def test_the_discrete_head_still_reads_a_folder_that_has_an_l1_head(whole, expected):
    discrete = OpenVLAOFT.from_pretrained(whole, head="discrete", proprio=False, cameras=["agentview"])
    close(discrete.action_logits(expected["pixel_values"][:1], expected["prompt_ids"]), expected["oft_discrete_logits"])
    assert type(discrete) is OpenVLAOFT and discrete.spec.distribution and discrete.spec.state is None


def test_an_l1_folder_of_libero_looks_through_two_cameras_and_reads_eight_numbers(policy):
    spec = policy.spec
    assert (spec.name, spec.chunk, spec.action_dims, spec.cameras, spec.state, spec.distribution) == ("openvla_oft", 8, 7, ("agentview", "wrist"), 8, False)


def test_the_head_is_normalise_linear_relu_residual_blocks_normalise_linear():
    # D = 1, A = 2: states 1 and 3 -> layer norm -> -1 and 1; fc1 = 2 * second = 2, relu 2; each block norms its one channel to its bias, 0.5, so
    # adds relu(4 * 0.5) = 2 -> 4 -> 6; the last norm gives its bias, 0.25; fc2 = (2, -4) * 0.25 + (0, 1) = (0.5, 0)
    head = L1Head(width=1, dims=2)
    with torch.no_grad():
        head.model.fc1.weight.copy_(torch.tensor([[0.0, 2.0]]))
        head.model.fc1.bias.zero_()
        for block in head.model.mlp_resnet_blocks:
            block.ffn[0].bias.fill_(0.5)
            block.ffn[1].weight.fill_(4.0)
            block.ffn[1].bias.zero_()
        head.model.layer_norm2.bias.fill_(0.25)
        head.model.fc2.weight.copy_(torch.tensor([[2.0], [-4.0]]))
        head.model.fc2.bias.copy_(torch.tensor([0.0, 1.0]))
        close(head(torch.tensor([[[1.0], [3.0], [1.0], [3.0]]])), torch.tensor([[[0.5, 0.0], [0.5, 0.0]]]))


@torch.no_grad()
def test_a_later_slot_reaches_the_earliest_action_of_the_l1_head(toy):
    policy = OpenVLAOFT.from_pretrained(toy)
    inputs = policy.prepare(observation(policy, 1))
    before, _ = policy._mean(inputs)
    forward = policy.language_model.forward

    def changed(embeddings, valid, slots):
        embeddings = embeddings.clone()
        embeddings[:, slots[0] + slots[1] - 1] = 1.0  # the last slot
        return forward(embeddings, valid)

    policy.language_model.forward = changed
    after, _ = policy._mean(inputs)
    assert (after - before)[0, 0].abs() > 1e-4


@torch.no_grad()
@pytest.mark.parametrize("name", ["images/agentview", "images/wrist", "state"])
def test_every_input_moves_the_actions(toy, name):
    policy = OpenVLAOFT.from_pretrained(toy)
    first, second = observation(policy, 1), observation(policy, 1, seed=5)
    before, after = (policy.act(observed, None).choices for observed in (first, {**first, name: second[name]}))
    assert (after - before).abs().max() > 1e-4


@torch.no_grad()
def test_the_order_of_the_cameras_counts(toy):
    policy = OpenVLAOFT.from_pretrained(toy)
    observed = observation(policy, 1)
    swapped = {**observed, "images/agentview": observed["images/wrist"], "images/wrist": observed["images/agentview"]}
    assert (policy.act(observed, None).choices - policy.act(swapped, None).choices).abs().max() > 1e-4


def test_the_states_token_stands_between_the_patches_and_the_prompt(policy, expected):
    with torch.no_grad():
        context, _ = policy.context(expected["pixel_values_two_images"], expected["prompt_ids"], None, state(expected))
        token = policy.proprio_projector(state(expected))
        words = policy.language_model.model.embed_tokens(expected["prompt_ids"])
    assert context.shape[1] == 2 * 16 + 1 + expected["prompt_ids"].shape[1]
    assert torch.equal(context[:, 33:34], token) and torch.equal(context[:, 34:], words[:, 1:]) and torch.equal(context[:, :1], words[:, :1])


def observation(policy, rows, seed=0, side=32):
    random = np.random.default_rng(seed)
    observed = {f"images/{camera}": random.integers(0, 256, (rows, side, side, 3), dtype=np.uint8) for camera in policy.spec.cameras}
    observed["instruction"] = [INSTRUCTIONS[row % 2] for row in range(rows)]
    if policy.spec.state is not None:
        observed["state"] = random.uniform(-1, 1, (rows, policy.spec.state)).astype(np.float32)
    return observed


def noise(policy, rows, seed=1):
    return np.random.default_rng(seed).random((rows, policy.tokens))


def test_the_greedy_action_is_the_mean_and_an_action_of_the_env(toy):
    policy = OpenVLAOFT.from_pretrained(toy)
    chunk = policy.act(observation(policy, 2), None)
    mean, _ = policy._mean(chunk.inputs)
    assert torch.equal(chunk.choices, mean) and chunk.choices.dtype == torch.float32
    assert chunk.actions.shape == (2, 3, 7) and chunk.actions.dtype == np.float32
    # 0.5 (x + 1) 1.8 - 0.9 = 0.9 x
    np.testing.assert_allclose(chunk.actions[..., :6], 0.9 * mean.detach().view(2, 3, 7)[..., :6], atol=1e-6)
    np.testing.assert_array_equal(chunk.actions[..., 6], np.where(mean.detach().view(2, 3, 7)[..., 6] >= 0.5, -1, 1))


def test_the_temperature_scales_the_std_in_sampling_and_in_judging(toy):
    policy = OpenVLAOFT.from_pretrained(toy, temperature=1.6)
    chunk = policy.act(observation(policy, 2), np.full((2, policy.tokens), 0.8413447460685429))  # one std above the mean
    mean, _ = policy._mean(chunk.inputs)
    std = 1.6 * np.exp(-1.5)
    close(chunk.choices - mean, torch.full_like(mean, std), within=1e-5)
    close(chunk.logprobs, torch.full_like(mean, -0.5 - np.log(std) - 0.5 * np.log(2 * np.pi)), within=1e-4)
    close(policy.evaluate(chunk.inputs, chunk.choices).entropy, torch.full_like(mean, 0.5 * np.log(2 * np.pi * np.e) + np.log(std)), within=1e-5)


def test_the_gaussian_is_torchs():
    mean, std, choices = torch.randn(3, 4), torch.tensor([0.1, 0.5, 1.0, 2.0]), torch.randn(3, 4)
    reference = torch.distributions.Normal(mean, std)
    close(gaussian.logprobs(mean, std, choices), reference.log_prob(choices), within=1e-4)
    close(gaussian.entropy(std).expand_as(mean), reference.entropy(), within=1e-6)


def test_an_l1_policy_refuses_to_give_a_distribution_over_tokens(toy):
    policy = OpenVLAOFT.from_pretrained(toy)
    chunk = policy.act(observation(policy, 1), None)
    with pytest.raises(ValueError, match="kl_coef"):
        policy.evaluate(chunk.inputs, chunk.choices, distribution=True)


# --- what it is given -----------------------------------------------------------------------------------------------------------------------


def copied(toy, folder, component):
    """A copy of the folder to spoil -> its component file, and what is in it."""
    shutil.copytree(toy, folder, dirs_exist_ok=True)
    file = folder / f"{component}--0_checkpoint.pt"
    return file, torch.load(file, weights_only=True)


@pytest.mark.parametrize("component, name", [("action_head", "module.model.fc2.bias"), ("proprio_projector", "module.fc1.weight")])
def test_a_component_that_holds_no_numbers_is_refused_with_file_and_tensor(toy, tmp_path, component, name):
    file, tensors = copied(toy, tmp_path, component)
    tensors[name].view(-1)[0] = float("nan")
    torch.save(tensors, file)
    with pytest.raises(ValueError, match=f"{component}--0_checkpoint.pt: {name.removeprefix('module.')}: found nan"):
        OpenVLAOFT.from_pretrained(tmp_path)


def test_statistics_of_another_number_of_dims_than_the_head_are_blamed_and_not_the_head(toy, tmp_path):
    copied(toy, tmp_path, "action_head")
    ends = {"q01": [-1.0] * 4, "q99": [1.0] * 4}
    (tmp_path / "dataset_statistics.json").write_text(json.dumps({"libero_goal": {"action": ends, "proprio": STATISTICS["libero_goal"]["proprio"]}}))
    with pytest.raises(ValueError, match="dataset_statistics.json: action statistics 'libero_goal' have 4 dims, wanted 7, as many as action_head"):
        OpenVLAOFT.from_pretrained(tmp_path)


def test_a_state_of_another_batch_than_the_pictures_is_refused(toy):
    policy = OpenVLAOFT.from_pretrained(toy)
    with pytest.raises(ValueError, match="'state': found 3 rows, wanted 2"):
        policy.prepare({**observation(policy, 2), "state": np.zeros((3, 3))})


def test_pictures_of_two_batches_are_refused(toy):
    policy = OpenVLAOFT.from_pretrained(toy)
    with pytest.raises(ValueError, match="found 2 rows of 'images/agentview', 1 rows of 'images/wrist', wanted as many of each"):
        policy.prepare({**observation(policy, 2), "images/wrist": np.zeros((1, 32, 32, 3), np.uint8)})


def test_a_prepared_state_that_is_no_number_is_refused_before_it_is_learned_from(toy):
    policy = OpenVLAOFT.from_pretrained(toy)
    inputs = policy.prepare(observation(policy, 2))
    inputs["state"][1, 2] = float("nan")
    with pytest.raises(ValueError, match=r"inputs 'state': found nan at \[1, 2\] of \[2, 3\]"):
        policy.evaluate(inputs, torch.zeros(2, policy.tokens))


@pytest.mark.parametrize("cameras", [["agentview"], ["agentview", "wrist", "side"]])
def test_another_number_of_cameras_than_a_folder_names_is_refused_and_other_names_are_not(toy, cameras):
    with pytest.raises(ValueError, match=rf"policy.cameras: found .*, wanted 2, as config.json says \(cameras: \['agentview', 'wrist'\]\)"):
        OpenVLAOFT.from_pretrained(toy, cameras=cameras)
    assert OpenVLAOFT.from_pretrained(toy, cameras=["front", "side"]).spec.cameras == ("front", "side")


@pytest.mark.parametrize("key, value", [("cameras", "front"), ("cameras", ["front", "front"]), ("num_images_in_input", 0), ("num_images_in_input", "two"), ("num_actions_chunk", 0), ("prompt_length", 0)])
def test_a_value_of_config_json_that_cannot_be_is_refused_with_file_and_key(toy, tmp_path, key, value):
    copied(toy, tmp_path, "action_head")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(ValueError, match=f"config.json: {key}: found {value!r}".replace("[", r"\[")):
        OpenVLAOFT.from_pretrained(tmp_path)


# --- FiLM -----------------------------------------------------------------------------------------------------------------------------------


def test_film_scales_and_shifts_all_tokens_alike():
    # gamma = 2 * 3 = 6, beta = -1 * 3 + 1 = -2: 1 -> 1 * 7 - 2 = 5, 2 -> 2 * 7 - 2 = 12
    film = FiLM(1, 1)
    with torch.no_grad():
        film.scale.weight.fill_(2.0), film.scale.bias.zero_(), film.shift.weight.fill_(-1.0), film.shift.bias.fill_(1.0)
        close(film(torch.tensor([[[1.0], [2.0]]]), torch.tensor([[3.0]])), torch.tensor([[[5.0], [12.0]]]))


@torch.no_grad()
def test_film_stands_between_a_blocks_attention_and_its_mlp():
    torch.manual_seed(0)
    block, film = Block(Tower("siglip", 8, 2, 2, 16, 4, 8)), FiLM(4, 8)
    tokens, language = torch.randn(2, 4, 8), torch.randn(2, 4)
    middle = film(tokens + block.attn(block.norm1(tokens)), language)
    close(block(tokens, film, language), middle + block.mlp(block.norm2(middle)), within=1e-6)


@pytest.fixture(scope="module")
def filmed(tmp_path_factory):
    return create_checkpoint(tmp_path_factory.mktemp("film"), INSTRUCTIONS, STATISTICS, sizes={**SMALL, "film": True, "cameras": ("agentview", "wrist")})


@torch.no_grad()
def test_films_language_is_the_mean_over_the_prompt_and_the_stop_token_without_the_padding(filmed):
    policy = OpenVLAOFT.from_pretrained(filmed)
    ids = torch.tensor([[1, 9, 12, 15, 0, 0], [1, 9, 12, 15, 20, 30]])
    mask = torch.tensor([[True] * 4 + [False] * 2, [True] * 6])
    table = policy.language_model.model.embed_tokens.weight
    wanted = torch.stack([table[[1, 9, 12, 15, 2]].mean(0), table[[1, 9, 12, 15, 20, 30, 2]].mean(0)])
    close(policy._language(table[ids], mask), wanted, within=1e-6)
    close(policy._language(table[ids[1:]], None), wanted[1:], within=1e-6)


@torch.no_grad()
def test_with_film_each_camera_hears_its_own_rows_instruction(filmed):
    policy = OpenVLAOFT.from_pretrained(filmed)
    pixels, language = torch.randn(2, 12, 32, 32), torch.randn(2, 32)
    both = policy.vision_backbone(pixels, language)
    for row in range(2):
        one_by_one = [policy.vision_backbone(pixels[row : row + 1, start : start + 6], language[row : row + 1]) for start in (0, 6)]
        close(both[row : row + 1], torch.cat(one_by_one, dim=1), within=1e-5)


@torch.no_grad()
def test_a_filmed_folder_loads_and_saves_under_the_references_names(filmed, tmp_path):
    file = filmed / "vision_backbone--0_checkpoint.pt"
    tensors = torch.load(file, weights_only=True)
    assert tensors["vision_backbone.featurizer.blocks.1.scale.weight"].shape == (16, 32)
    assert tensors["vision_backbone.fused_featurizer.blocks.0.block.attn.qkv.weight"].shape == (48, 16)
    policy = OpenVLAOFT.from_pretrained(filmed)
    assert torch.equal(policy.vision_backbone.featurizer.film[1].scale.weight, tensors["vision_backbone.featurizer.blocks.1.scale.weight"])
    policy.save_pretrained(tmp_path)
    again = torch.load(tmp_path / file.name, weights_only=True)
    assert again.keys() == tensors.keys() and all(torch.equal(again[name], tensors[name]) for name in tensors)


@torch.no_grad()
def test_adapters_that_a_filmed_backbone_was_saved_with_are_added_to_its_weights(filmed, tmp_path):
    shutil.copytree(filmed, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "vision_backbone--0_checkpoint.pt"
    tensors = torch.load(file, weights_only=True)
    stem, base = "vision_backbone.featurizer.blocks.0.block.mlp.fc1", tensors.pop("vision_backbone.featurizer.blocks.0.block.mlp.fc1.weight")
    down, up = torch.randn(32, 16), torch.randn(64, 32)  # rank 32: alpha is 16, so they count half
    tensors |= {f"{stem}.base_layer.weight": base, f"{stem}.lora_A.default.weight": down, f"{stem}.lora_B.default.weight": up}
    torch.save(tensors, file)
    found = OpenVLAOFT.from_pretrained(tmp_path).vision_backbone.featurizer.blocks[0].mlp.fc1.weight
    close(found, base + up @ down / 2, within=1e-5)


# --- sizes ----------------------------------------------------------------------------------------------------------------------------------


def statistics(key, dims=7, **ends):
    return {key: {"action": {**(ends or {"q01": [-1.0] * dims, "q99": [1.0] * dims}), "mask": [True] * dims}}}


@pytest.mark.parametrize("key, chunk", [("libero_10_no_noops", 8), ("aloha1_fold_shirt_30_demos", 25), ("bridge_orig", 5)])
def test_a_robots_chunk_size_follows_from_the_name_of_its_statistics(key, chunk):
    assert OpenVLAOFTL1.chunk_of({}, key) == chunk
    assert OpenVLAOFTL1.chunk_of({"num_actions_chunk": 3}, key) == 3


def test_an_unknown_robots_chunk_size_must_be_given_for_the_l1_head_and_is_8_for_the_discrete_one():
    with pytest.raises(ValueError, match="policy.chunk"):
        OpenVLAOFTL1.chunk_of({}, "my_robot")
    assert OpenVLAOFT.chunk_of({}, "my_robot") == 8


def test_aloha_has_14_joint_angles_25_at_a_time_between_min_and_max_and_no_gripper_sign(tmp_path):
    ends = {"min": [-2.0] * 14, "max": [2.0] * 14}
    found = {"aloha1_fold": {"action": ends, "proprio": ends}}
    folder = create_checkpoint(tmp_path, INSTRUCTIONS, found, sizes={**SMALL, "head": "l1", "state": True, "chunk": 25, "cameras": ("cam_high",)})
    policy = OpenVLAOFT.from_pretrained(folder)
    spec = policy.spec
    assert (spec.chunk, spec.action_dims, spec.state, spec.gripper) == (25, 14, 14, None)
    chunk = policy.act(observation(policy, 1), None)
    np.testing.assert_allclose(chunk.actions, 2 * chunk.choices.view(1, 25, 14).numpy(), atol=1e-5)
    np.testing.assert_allclose(policy.encode(chunk.actions).view(1, 25, 14), chunk.choices.view(1, 25, 14), atol=1e-5)


def test_the_normalization_may_be_chosen():
    both = statistics("my_robot", q01=[-1.0, 0.0], q99=[1.0, 1.0], min=[-4.0, 0.0], max=[4.0, 1.0], dims=2)
    assert (ActionCodec(both).high[0], ActionCodec(both, normalization="bounds").high[0]) == (1.0, 4.0)
    with pytest.raises(ValueError, match="q99, bounds"):
        ActionCodec(both, normalization="mean")


def test_what_the_loader_was_told_is_saved_with_the_folder(toy, tmp_path):
    config = json.loads((toy / "config.json").read_text())
    del config["num_actions_chunk"]
    shutil.copytree(toy, tmp_path / "told", dirs_exist_ok=True)
    (tmp_path / "told" / "config.json").write_text(json.dumps(config))
    OpenVLAOFT.from_pretrained(tmp_path / "told", chunk=2, cameras=["front", "side"]).save_pretrained(tmp_path / "saved")
    again = OpenVLAOFT.from_pretrained(tmp_path / "saved").spec
    assert (again.chunk, again.cameras) == (2, ("front", "side"))


@pytest.mark.parametrize("images, cameras", [(1, ("agentview",)), (2, ("agentview", "wrist"))])
def test_config_json_says_how_many_cameras(images, cameras):
    assert OpenVLAOFTL1.cameras_of({"num_images_in_input": images}, "libero_goal") == OpenVLAOFT.cameras_of({"num_images_in_input": images}, "libero_goal") == cameras


def test_a_folder_that_says_nothing_has_one_camera_with_the_discrete_head():
    assert OpenVLAOFT.cameras_of({}, "libero_goal") == OpenVLA.cameras_of({}, "anything") == ("agentview",)
