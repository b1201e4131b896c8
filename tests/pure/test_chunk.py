import gymnasium
import numpy as np
import pytest

from envs.chunk import step_chunk, success_of
from envs.toy import ToyEnv


class Counter(gymnasium.Env):
    """Ends after `length` steps; reports success at one of them; its observation is how many steps it has run."""

    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, length: int, success_at: int | None = None, key: str = "is_success"):
        self.length, self.success_at, self.key, self.seen = length, success_at, key, []

    def step(self, action):
        self.seen.append(action)
        n = len(self.seen)
        assert n <= self.length, "stepped after the end"
        return n, 0.5 * n, False, n == self.length, {self.key: n == self.success_at, "n": n}


def test_a_chunk_runs_whole_where_the_episode_is_long_enough():
    env = Counter(9)
    observation, rewards, terminated, truncated, info = step_chunk(env, np.arange(6, dtype=np.float32).reshape(3, 2))
    assert observation == 3
    assert rewards.dtype == np.float32 and rewards.tolist() == [0.5, 1.0, 1.5]
    assert (terminated, truncated) == (False, False)
    assert info == {"is_success": False, "n": 3, "success": False, "success_at_end": False}
    assert [action.tolist() for action in env.seen] == [[0, 1], [2, 3], [4, 5]]


def test_actions_after_the_end_are_dropped():
    env = Counter(2)
    observation, rewards, terminated, truncated, _ = step_chunk(env, np.zeros((5, 2), np.float32))
    assert (observation, len(rewards), terminated, truncated) == (2, 2, False, True)


@pytest.mark.parametrize("key", ["success", "is_success"])
def test_success_at_any_step_of_the_chunk_counts_as_the_chunks(key):
    assert step_chunk(Counter(9, success_at=1, key=key), np.zeros((3, 2), np.float32))[4]["success"] is True


def test_success_at_the_end_is_that_of_the_last_step_alone():
    info = step_chunk(Counter(9, success_at=1), np.zeros((3, 2), np.float32))[4]
    assert (info["success"], info["success_at_end"]) == (True, False)


def test_an_env_that_says_nothing_of_success_has_not_succeeded():
    assert success_of({"reward": 5}) is False


def test_the_envs_own_step_chunk_and_the_loop_return_the_same():
    class Looped(ToyEnv):
        step_chunk = None

    actions = np.random.default_rng(1).integers(0, 4, (20, 3, 1))
    own, looped = ToyEnv(reward="dense", drift=1), Looped(reward="dense", drift=1)
    for state in range(5):
        for env in (own, looped):
            env.reset(seed=0, options={"init_state": state})
        for chunk in actions:
            one, other = step_chunk(own, chunk), step_chunk(looped, chunk)
            assert np.array_equal(one[0]["images/front"], other[0]["images/front"])
            assert np.array_equal(one[0]["state"], other[0]["state"])
            assert one[1].tolist() == other[1].tolist()
            assert one[2:] == other[2:]
            if one[2] or one[3]:
                break


@pytest.mark.parametrize("shape", [(3,), (0, 2), (1, 3, 2)])
def test_a_chunk_of_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match="wanted .C, A."):
        step_chunk(Counter(9), np.zeros(shape, np.float32))
