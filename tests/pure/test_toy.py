import numpy as np
import pytest

from envs.chunk import step_chunk
from envs.toy import ToyEnv, draw, read_steps
from policies.experts.toy import ToyExpert


def solve(env: ToyEnv, chunk: int, **options) -> tuple[float, int, dict]:
    """-> (return, primitive steps, last info) of an episode played by the expert."""
    expert = ToyExpert(env.env_spec, chunk)
    observation, _ = env.reset(seed=1, options=options)
    total, steps, terminated, truncated = 0.0, 0, False, False
    while not (terminated or truncated):
        actions = expert.act({"privileged": observation["privileged"][None]}, None).actions[0]
        observation, rewards, terminated, truncated, info = step_chunk(env, actions)
        total, steps = total + float(rewards.sum()), steps + len(rewards)
    assert terminated
    return total, steps, info


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("reward", ["sparse", "dense"])
@pytest.mark.parametrize(
    "kind",
    [{}, {"action": "continuous"}, {"action": "continuous", "gripper": "open_-1_close_+1"}, {"action": "continuous", "gripper": "open_1_close_0"}],
    ids=["discrete", "continuous", "gripper signed", "gripper open 1"],
)
def test_the_expert_reaches_the_known_optimum_from_every_state(chunk, reward, kind):
    env = ToyEnv(horizon=9, goal=4, tasks=(0, 3), init_states=6, drift=1, choices=5, reward=reward, privileged=True, **kind)
    for task in (0, 3):
        for state in range(6):
            total, steps, info = solve(env, chunk, task=task, init_state=state)
            assert (pytest.approx(total), steps, info["success"]) == (1.0, 4, True)


def test_actions_that_never_match_end_truncated_without_success_or_reward():
    env = ToyEnv(horizon=4, goal=1)
    env.reset(seed=0)
    ends = []
    for _ in range(4):
        _, reward, terminated, truncated, info = env.step((env.target + 1) % 4)
        ends.append((reward, terminated, truncated, info["success"]))
    assert ends == [(0.0, False, False, False)] * 3 + [(0.0, False, True, False)]
    with pytest.raises(RuntimeError, match="over"):
        env.step(0)


def test_the_dense_reward_is_one_goal_th_per_match():
    env = ToyEnv(goal=4, reward="dense")
    env.reset(seed=0)
    rewards = [env.step(env.target)[1], env.step((env.target + 1) % 4)[1], env.step(env.target)[1]]
    assert rewards == [0.25, 0.0, 0.25]


def test_the_gripper_must_be_closed_for_odd_targets():
    env = ToyEnv(action="continuous", gripper="open_-1_close_+1", goal=8)
    env.reset(seed=0)
    middle = (2 * env.target + 1) / 4 - 1
    right = 1.0 if env.target % 2 else -1.0
    action = np.zeros(7, np.float32)
    action[0], action[-1] = middle, right
    assert env.step(action)[4]["matches"] == 1
    action[-1] = -right
    assert env.step(action)[4]["matches"] == 1


def test_the_target_is_a_function_of_task_and_initial_state_alone():
    def targets(env, seed):
        found = []
        for task in (0, 1):
            for state in range(20):
                env.reset(seed=seed, options={"task": task, "init_state": state})
                found.append(env.target)
        return found

    one = targets(ToyEnv(tasks=(0, 1)), 1)
    assert one == targets(ToyEnv(tasks=(0, 1)), 2)
    assert set(one) == {0, 1, 2, 3}
    assert one[:20] != one[20:]


def test_without_initial_states_the_seed_draws_the_target():
    env = ToyEnv(init_states=None)
    targets = []
    for seed in list(range(30)) * 2:
        env.reset(seed=seed)
        targets.append(env.target)
    assert targets[:30] == targets[30:]
    assert set(targets) == {0, 1, 2, 3}


def test_the_picture_shows_the_target_and_counts_the_steps():
    for steps in (0, 1, 4, 255):
        assert read_steps(draw(32, 2, 4, steps, (9, 8, 7), 0)) == steps
    picture = draw(32, 2, 4, 0, (9, 8, 7), 0)
    assert np.argwhere((picture[0] == (9, 8, 7)).all(axis=1)).ravel().tolist() == list(range(16, 24))  # the third of four columns
    env = ToyEnv(size=64, cameras=("front", "wrist"))
    observation, _ = env.reset(seed=0)
    for _ in range(3):
        observation = env.step((env.target + 1) % 4)[0]
    assert read_steps(observation["images/front"]) == read_steps(observation["images/wrist"]) == observation["state"][0] == 3
    assert not np.array_equal(observation["images/front"], observation["images/wrist"])


@pytest.mark.parametrize("options, says", [({"task": 5}, r"found task 5, wanted one of \[0\]"), ({"init_state": 50}, "wanted 0 to 49")])
def test_a_task_or_state_it_does_not_have_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        ToyEnv().reset(options=options)


@pytest.mark.parametrize("arguments", [{"goal": 9}, {"size": 16}, {"reward": "much"}, {"action": "both"}, {"gripper": "?"}])
def test_arguments_that_cannot_be_are_refused(arguments):
    with pytest.raises(ValueError, match="found .*wanted"):
        ToyEnv(**arguments)


def test_a_disturbed_expert_slips_in_its_share_of_the_episodes_while_its_labels_stay_right():
    expert = ToyExpert(ToyEnv(drift=1).env_spec, chunk=2, disturbance=0.3, disturbed_share=0.5)
    rows = 400
    observation = {"privileged": np.tile(np.float32([3, 1]), (rows, 1)), "episode": np.arange(rows) // 10, "step": np.arange(rows) % 10}
    chunk = expert.act(observation)
    assert np.array_equal(chunk.labels, np.tile([[3], [0]], (rows, 1, 1)))
    slipped = (chunk.actions != chunk.labels).reshape(40, 20)
    assert set((chunk.actions - chunk.labels)[chunk.actions != chunk.labels] % 4) == {1}
    assert 10 <= slipped.any(axis=1).sum() <= 30  # about half of 40 episodes
    later = expert.act({key: value[7:9] for key, value in observation.items()})
    assert np.array_equal(later.actions, chunk.actions[7:9])
