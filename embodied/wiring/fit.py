"""Whether what was chosen goes together: env with policy, and both with the run's knobs. Asked before a simulator starts."""

from __future__ import annotations

from omegaconf import DictConfig

from embodied.config import ConfigError
from envs.spec import EnvSpec
from policies.base import PolicySpec


class FitError(ConfigError):
    """This env and this policy cannot work together."""


def settle_batched(config: DictConfig, spec: EnvSpec) -> None:
    """One slot group for one simulator, which steps all its slots at once. Raises ConfigError where it is to be shared out."""
    if not spec.batched:
        return
    asked = {"sim.workers": (config.sim.workers, 0), "scheduler.groups": (config.scheduler.groups or 1, 1)}
    wrong = [f"found {key}={found}, wanted {wanted}" for key, (found, wanted) in asked.items() if found != wanted]
    if wrong:
        raise ConfigError(f"env={config.choices['env']}: {' and '.join(wrong)}: all slots are one simulator in one process, which steps them all at once (sim.slots says how many); leave it out")
    config.scheduler.groups = 1


def plays_on(config: DictConfig, spec: EnvSpec) -> bool:
    """Whether evaluation episodes last their whole budget. Raises ConfigError where that is asked of an env that ends them at success."""
    asked = config.evaluation.fixed_horizon
    if asked and not spec.plays_on:
        raise ConfigError(f"evaluation.fixed_horizon=true: env={config.choices['env']} ends an episode at success; leave it null")
    return spec.plays_on and (config.record is None if asked is None else asked)


def check_fit(env: EnvSpec, policy: PolicySpec) -> None:
    """Raises FitError with every mismatch and both specs."""
    action = env.action
    wrong = []
    if policy.action_kind != action.kind:
        wrong.append(f"the policy gives {policy.action_kind} actions, the env takes {action.kind} ones")
    elif action.kind != "text" and policy.action_dims != action.dims:  # of a text, the policy's are the tokens it may have
        wrong.append(f"the policy gives {policy.action_dims} numbers per action, the env takes {action.dims}")
    if policy.choices is not None and policy.choices != action.choices:
        wrong.append(f"the policy chooses among {policy.choices} actions, the env has {action.choices}")
    missing = [camera for camera in policy.cameras if camera not in env.images]
    if missing:
        wrong.append(f"the policy looks at {', '.join(missing)}; the env shows {', '.join(env.images) or 'no pictures'}")
    if policy.state is not None and policy.state != env.state:
        wrong.append(f"the policy reads a state of {policy.state}, the env gives {env.state or 'none'}")
    if policy.language and not env.language:
        wrong.append("the policy needs an instruction, the env gives none")
    if policy.privileged and not env.privileged:
        wrong.append("the policy is a scripted expert and needs privileged poses, the env gives none")
    if policy.gripper is not None and action.gripper is None:
        wrong.append("the policy's last action is a gripper, the env has none")
    if wrong:
        raise FitError("env and policy do not fit:\n  - " + "\n  - ".join(wrong) + f"\n  env:    {env}\n  policy: {policy}\n  choose another policy= or env=")


def tasks_and_states(config: DictConfig, spec: EnvSpec) -> tuple[list[int], list[int] | None]:
    """(task indices, initial states that training starts from; None where a seed draws them). Raises ConfigError for states the env does not have."""
    states = None if spec.init_states is None else list(range(spec.init_states))
    if config.init_states is not None:
        if states is None or not set(config.init_states) <= set(states) or not config.init_states:
            has = "no fixed initial states" if states is None else f"initial states 0 to {len(states) - 1}"
            raise ConfigError(f"init_states={list(config.init_states)}: env={config.choices['env']} has {has}")
        states = list(config.init_states)
    if not spec.tasks or states == []:
        raise ConfigError(f"env={config.choices['env']}: found tasks {list(spec.tasks)} and {spec.init_states} initial states, wanted at least one of each")
    return list(spec.tasks), states
