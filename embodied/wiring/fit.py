"""Whether what was chosen goes together: env with policy, and both with the run's knobs. Asked before a simulator starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Sequence

from omegaconf import DictConfig, OmegaConf

from embodied.config import ConfigError, value_of
from embodied.episodes import EvaluationLedger
from embodied.runs.folder import MARKER, RunFolder
from embodied.wiring import build
from envs.math.problems import location
from envs.spec import EnvSpec
from policies.base import PolicySpec


MOST_PROMPTS = 20_000  # that are looked at before a run


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


def settle_streaming(config: DictConfig, policy: PolicySpec) -> None:
    """A slot group for every slot, where the policy answers row by row: each answer goes on as it ends. Not where a mode or a number of groups says
    otherwise, nor on Ray, where a call costs as much as many tokens: the plan weighs that."""
    if policy.streams and config.scheduler.groups is None and config.scheduler.mode in ("auto", "hybrid") and config.cluster.kind == "local":
        config.scheduler.groups = config.sim.slots


def settle_texts(config: DictConfig, policy: Any) -> None:
    """As `settle_streaming`, and the prompts that an episode may begin with, where they have an end, held against the policy's limit: said how many are
    too long. Raises ConfigError where such are errors."""
    settle_streaming(config, policy.spec)
    env = build.env_thunk(config, policy.spec)() if policy.spec.streams else None
    prompts = getattr(env, "first_prompts", lambda most: ())(MOST_PROMPTS)
    try:
        said = policy.too_long(prompts) if prompts else None
    except ValueError as error:
        raise ConfigError(f"env={config.choices['env']}: {error}") from error
    if said:
        print(said)


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


def check_trained(config: DictConfig, spec: EnvSpec) -> None:
    """Of a training run: raises ConfigError where it would play what is for evaluation alone; says so where what it plays is judged too, because nothing is held out."""
    if config.env.get("only_evaluated") or config.env.get("split") == "evaluate":
        raise ConfigError("env.split=evaluate (or env.only_evaluated=true): found it in a training run, wanted the problems that are for training; leave it out, env.held_out says how many are kept back")
    if "held_out" in spec.protocol and not spec.holds_out and (config.evaluation.before or config.evaluation.after):
        print("nothing is held out: what is judged before and after is what is trained on; more problems, or another env.held_out, would change that")


def judged(config: DictConfig, spec: EnvSpec, plays_on: bool) -> EvaluationLedger:
    """What an evaluation plays: of an env that holds starts out, those, unless they are recorded to learn from. Raises ConfigError for numbers of starts and samples that cannot be."""
    evaluation, env = config.evaluation, config.choices["env"]
    if evaluation.samples > 1 and evaluation.greedy:
        raise ConfigError(f"evaluation.samples={evaluation.samples}: found evaluation.greedy=true, which gives the same answer every time; set one of them to its default")
    holds_out = spec.holds_out and config.record is None
    count = spec.held_out_states if holds_out else spec.init_states
    starts = None if count is None else count * len(spec.tasks)
    if evaluation.episodes is None and starts is None:
        raise ConfigError(f"evaluation.episodes=null: env={env} here has no end of starts, a seed draws each; say how many with evaluation.episodes=N{', or bound them with env.size=N' if 'size' in config.env else ''}")
    asked = starts if evaluation.episodes is None else evaluation.episodes
    episodes = asked if evaluation.samples == 1 or starts is None else min(asked, starts)  # a start that is met twice would be no start of its own
    return EvaluationLedger(config.seed, spec.tasks, None if count is None else range(count), episodes, plays_on, evaluation.samples, holds_out)


def settle_evaluated(config: DictConfig, arguments: Sequence[str]) -> str | None:
    """For `evaluate`, where an env has problems that may be for evaluation alone (`only_evaluated` among its keys): all of them, each once, unless the
    command line says otherwise; of those that the weights' run trained on, what it held out. Returns a line that says so of the latter.
    """
    env = config.env
    if "only_evaluated" not in env or config.record is not None:
        return None
    trained = None
    if env.held_out is not None:
        env.only_evaluated = env.held_out != 0 if env.only_evaluated is None else env.only_evaluated
    elif env.only_evaluated is None:
        trained = _trained_on(config)
        env.only_evaluated, env.held_out = trained is None, None if trained is None else trained[1]
    spec = build.env_spec(config, None)
    count = spec.held_out_states if spec.holds_out else spec.init_states
    if "count" in spec.protocol and value_of(arguments, "evaluation.episodes") is None:  # of a file
        config.evaluation.episodes = None
    if trained is None:
        return None
    told = f"the {'' if count is None else f'{count} '}problems that it held out alone; env.held_out=1 judges all of them" if spec.holds_out else "all of them, which it has seen: it held none out"
    return f"the weights are of {trained[0]}, which trained on {env.problems}: judging {told}"


def _trained_on(config: DictConfig) -> tuple[Path, float | None] | None:
    """The last run, of those that the weights are of or began from, that trained on these problems, and the least share that any of them held out: what one
    holds out, one with a larger share does too. Imitation of the very file held nothing out."""
    source, seen, problems = config.checkpoint or config.policy.get("checkpoint"), set(), config.env.get("problems")
    found: list[tuple[Path, float | None]] = []
    while source is not None:
        path = Path(str(source)).resolve()
        run = next((folder for folder in (path, *path.parents[:3]) if (folder / MARKER).is_file() and (folder / "config.yaml").is_file()), None)
        if run is None or run in seen:
            break
        seen.add(run)
        saved = OmegaConf.load(run / "config.yaml")
        if RunFolder.open(run).about["kind"] == "train":
            if _same(saved.env.get("problems"), problems):
                found.append((run, saved.env.get("held_out")))
            elif _same(saved.get("data"), problems):
                found.append((run, 0.0))
        source = saved.get("checkpoint") or saved.policy.get("checkpoint")
    if not found:
        return None
    usual = build.env_spec(OmegaConf.merge(config, {"env": {"held_out": None, "only_evaluated": False}}), None).protocol["held_out"]
    return found[0][0], min((share for _, share in found), key=lambda share: usual if share is None else share) if isinstance(usual, float) else found[0][1]


def _same(one: Any, other: Any) -> bool:
    """Whether two values of env.problems mean the same ones; a file is known by its bytes, and by its name where it is no longer where it was."""
    if one is None or other is None or one == other:
        return one == other
    first, second = (location(str(each)) for each in (one, other))
    if first.is_file() and second.is_file():
        return first.stat().st_size == second.stat().st_size and first.read_bytes() == second.read_bytes()
    return first.resolve() == second.resolve() or (not first.exists() and first.name == second.name)
