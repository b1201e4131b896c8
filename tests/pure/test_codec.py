"""Bins, statistics and gripper signs, against numbers worked by hand."""

import json

import numpy as np
import pytest
import torch

from policies.codec import CENTRES, ActionCodec, StateCodec, centres, discretise, gripper_to_env, gripper_to_model, resolve_key

MASK = [True] * 3 + [False] * 4
SPATIAL = {"action": {"q01": [-0.5, 0.0, -1.0, 0, 0, 0, 0], "q99": [0.5, 2.0, 1.0, 0, 0, 0, 1], "mask": MASK}}


def codec(**more):
    return ActionCodec({"libero_spatial": SPATIAL, **more}, "libero_spatial")


def test_there_are_255_centres_and_the_middle_one_is_exactly_zero():
    assert len(CENTRES) == 255 and CENTRES[127] == 0.0
    np.testing.assert_allclose(CENTRES, -CENTRES[::-1], atol=1e-15)


def test_choices_in_rising_id_order_run_from_the_highest_centre_to_the_lowest():
    # id = 31744 + choice; 31999 -> -254/255, 31872 -> 0, 31745 and 31744 both -> +254/255
    ids = np.array([31999, 31872, 31745, 31744])
    np.testing.assert_allclose(centres(ids - 31744), [-254 / 255, 0.0, 254 / 255, 254 / 255], atol=1e-12)


@pytest.mark.parametrize("value, token, decoded", [(-1, 31999, -254 / 255), (-0.999, 31999, -254 / 255), (0, 31872, 0.0), (0.999, 31745, 254 / 255), (1, 31744, 254 / 255), (5, 31744, 254 / 255), (-5, 31999, -254 / 255)])  # fmt: skip
def test_a_value_takes_the_token_of_its_bin_and_out_of_range_the_end_bins(value, token, decoded):
    choice = discretise(np.array(value))
    assert 31744 + choice == token
    assert centres(choice) == pytest.approx(decoded, abs=1e-12)


@pytest.mark.parametrize("choice", [-1, 256])  # ids 31743 and 32000
def test_a_token_outside_the_256_actions_is_refused(choice):
    with pytest.raises(ValueError, match="0..255"):
        centres(np.array([0, choice]))


def test_unnormalise_scales_masked_dims_by_q01_and_q99_and_passes_the_others_through():
    # 0.5 * (0.5 + 1) * (1 + 1e-8) - 0.5 = 0.25 and 0.75 * (2 + 1e-8) + 0 = 1.5
    action = codec().unnormalise(np.array([0.5, 0.5, -1.0, 0.3, 0.0, -0.3, 0.9]))
    np.testing.assert_allclose(action, [0.25, 1.5, -1.0, 0.3, 0.0, -0.3, 0.9], atol=2e-8)


def test_zero_rotation_survives_encode_and_decode_as_an_exact_zero():
    actions = np.array([[0.1, 1.0, 0.2, 0.0, 0.0, 0.0, 1.0]], np.float32)
    decoded = codec().decode(codec().encode(actions))
    assert (decoded[0, 3:6] == 0.0).all()


def test_encode_then_decode_is_within_half_a_bin_of_the_range():
    rng = np.random.default_rng(0)
    actions = rng.uniform([-0.5, 0, -1, -1, -1, -1, -1], [0.5, 2, 1, 1, 1, 1, -1], (200, 8, 7))
    error = np.abs(codec().decode(codec().encode(actions)) - actions)[..., :6]
    half_bins = np.array([0.5, 1, 1, 1, 1, 1]) / 255  # half of range / 255
    assert (error <= half_bins + 1e-6).all()


def test_the_model_opens_with_1_and_the_env_with_minus_1_and_one_half_opens():
    np.testing.assert_array_equal(gripper_to_env(np.array([1.0, 0.0, 0.5, 0.49])), [-1, 1, -1, 1])
    np.testing.assert_array_equal(gripper_to_model(np.array([-1.0, 1.0, 0.0])), [1, 0, 1])


def test_a_gripper_command_comes_back_with_its_sign_from_the_bins():
    actions = np.zeros((2, 7))
    actions[:, -1] = [-1, 1]
    np.testing.assert_array_equal(codec().decode(codec().encode(actions))[:, -1], [-1.0, 1.0])


def test_encode_leaves_the_given_actions_alone():
    actions = np.ones((1, 7), np.float32)
    codec().encode(actions)
    assert (actions == 1).all()


def test_tensors_give_tensors_and_arrays_give_arrays_of_the_same_numbers():
    choices = np.arange(14).reshape(2, 7)
    array, tensor = codec().decode(choices), codec().decode(torch.from_numpy(choices))
    assert array.dtype == np.float32 and tensor.dtype == torch.float32
    np.testing.assert_array_equal(array, tensor.numpy())
    np.testing.assert_array_equal(codec().encode(array), codec().encode(tensor).numpy())


def test_a_suite_finds_its_own_statistics_and_else_those_without_no_ops():
    assert resolve_key({"libero_goal": {}, "libero_goal_no_noops": {}}, "libero_goal") == "libero_goal"
    assert resolve_key({"libero_goal_no_noops": {}}, "libero_goal") == "libero_goal_no_noops"
    assert resolve_key({"libero_goal_no_noops": {}}, None) == "libero_goal_no_noops"


@pytest.mark.parametrize("key", [None, "libero_object"])
def test_two_sets_of_statistics_and_no_fitting_key_is_an_error_that_lists_them(key):
    with pytest.raises(KeyError) as error:
        resolve_key({"libero_goal": {}, "libero_spatial": {}}, key)
    assert "libero_goal" in str(error.value) and "libero_spatial" in str(error.value)


def test_no_statistics_at_all_is_an_error_and_never_raw_actions():
    with pytest.raises(KeyError, match="0 sets"):
        ActionCodec({}, None)


def test_min_and_max_do_not_stand_in_for_the_quantiles():
    with pytest.raises(ValueError, match="q01"):
        ActionCodec({"suite": {"action": {"min": [0] * 7, "max": [1] * 7}}})


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"q01": [float("nan"), 0.0]}, "q01: found nan at [0] of [2], wanted finite numbers"), ({"q99": [1.0, float("inf")]}, "q99: found inf at [1] of [2]"),
        ({"q01": [None, None]}, "q01: found [None, None], wanted a list of numbers"), ({"q01": ["a", "b"]}, "q01: found ['a', 'b']"), ({"q01": [[-1.0], [-1.0]]}, "q01: found [[-1.0], [-1.0]]"),
        ({"q01": 1.0}, "q01: found 1.0"), ({"q01": [], "q99": [], "mask": []}, "q01: found []"), ({"q01": [True, False]}, "q01: found [True, False]"), ({"q01": [0.0]}, "1, 2 and 2 dims, wanted one length"),
        ({"mask": ["true", "false"]}, "mask: found ['true', 'false'], wanted a list of true"), ({"mask": True}, "mask: found True"),
        ({"q01": [2.0, 0.0]}, "q01: found 2.0 above q99 1.0 in dim 0"),
    ],
)  # fmt: skip
def test_statistics_that_would_make_no_action_are_refused_by_name(changed, said):
    with pytest.raises(ValueError) as error:
        ActionCodec({"toy": {"action": {"q01": [-1.0, 0.0], "q99": [1.0, 1.0], "mask": [True, False], **changed}}})
    assert said in str(error.value) and "action statistics 'toy'" in str(error.value)


@pytest.mark.parametrize("found", [[1], {"toy": [1]}, {"toy": {"action": [1]}}, {"toy": None}])
def test_statistics_of_another_form_are_refused_as_those_of_their_file(found):
    with pytest.raises(ValueError, match="dataset_statistics.json.* found .*, wanted"):
        ActionCodec(found)


def test_a_dim_that_never_moves_and_one_that_is_not_scaled_may_stand_as_they_like():
    # equal ends: 0.5 (x + 1) 1e-8 + 0.25 = 0.25; the second is passed through, though its ends are turned
    still = ActionCodec({"my_arm": {"action": {"q01": [0.25, 1.0], "q99": [0.25, 0.0], "mask": [True, False]}}})
    np.testing.assert_allclose(still.unnormalise(np.array([0.7, 0.7])), [0.25, 0.7], atol=1e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_state_that_is_no_finite_number_is_refused_with_its_place(bad):
    state = np.zeros((3, 2))
    state[2, 1] = bad
    with pytest.raises(ValueError, match=rf"observation 'state': found {bad} at \[2, 1\] of \[3, 2\]"):
        StateCodec({"toy": {"proprio": {"q01": [0, 0], "q99": [1, 1]}}}).encode(state)


def test_statistics_survive_json():
    again = json.loads(json.dumps({"libero_spatial": SPATIAL}))
    choices = np.arange(7)
    np.testing.assert_array_equal(ActionCodec(again).decode(choices), codec().decode(choices))
