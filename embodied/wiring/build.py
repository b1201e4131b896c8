"""Config -> objects and thunks: the one place that wires."""

from __future__ import annotations

import inspect
from importlib import resources
from pathlib import Path
from typing import Any, Mapping

import numpy as np
from omegaconf import DictConfig, OmegaConf

from embodied.config import ConfigError, yaml_of
from embodied.learning.optimizers import SCHEDULES
from embodied.runs import checkpoint
from embodied.wiring import thunks
from envs.spec import EnvSpec
from envs.vector import VectorEnv
from policies.base import PolicySpec


def device(config: DictConfig) -> str:
    """ "auto" -> cuda where there is one, else cpu."""
    import torch

    if config.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=config.device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device={config.device}: {str(error).splitlines()[0]}; use device=cpu, or auto") from error
    return config.device


def algorithm(config: DictConfig) -> tuple[Any, dict]:
    """(algorithm, the learner's settings as a dict)."""
    arguments = _arguments(config.algorithm)
    learner = arguments.pop("learner")
    check_learner(learner)
    made = _construct("algorithm", config.algorithm._target_, arguments)
    _call("algorithm", lambda: made.check_value_level(config.policy.get("value_level", "chunk")))
    if learner.get("critic_warmup") and not made.needs_values:
        raise ConfigError(f"algorithm.learner.critic_warmup: found {learner['critic_warmup']}, but algorithm={config.choices['algorithm']} has no value head to warm up; set it to 0, or choose algorithm=ppo")
    return made, learner


def check_learner(learner: dict[str, Any]) -> None:
    """Raises ConfigError for the first number that cannot be."""
    def number(low: float, strict: bool = False) -> Any:
        return lambda v: isinstance(v, (int, float)) and not isinstance(v, bool) and (v > low if strict else v >= low)

    def whole(low: int) -> Any:
        return lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= low

    def optional(test: Any) -> Any:
        return lambda v: v is None or test(v)

    rules = {
        "lr": (number(0, strict=True), "more than 0"), "value_lr": (optional(number(0, strict=True)), "more than 0, or null for lr"),
        "schedule": (lambda v: v in SCHEDULES, f"one of {', '.join(SCHEDULES)}"), "warmup_updates": (whole(0), "0 or more"), "critic_warmup": (whole(0), "0 or more"),
        "weight_decay": (number(0), "0 or more"), "grad_clip": (optional(number(0, strict=True)), "more than 0, or null"),
        "betas": (optional(lambda v: isinstance(v, list) and len(v) == 2 and all(0 <= b < 1 for b in v)), "two numbers from 0 to below 1, or null"),
        "epochs": (whole(1), "at least 1"), "minibatch": (optional(whole(1)), "at least 1, or null for one update of the whole round"), "microbatch": (optional(whole(1)), "at least 1, or null"),
        "rows_per_iteration": (whole(1), "at least 1"),
    }  # fmt: skip
    for key, (fits, wanted) in rules.items():
        if key in learner and not fits(learner[key]):
            raise ConfigError(f"algorithm.learner.{key}: found {learner[key]!r}, wanted {wanted}")


def policy(config: DictConfig, needs_values: bool = False, weights: Path | None = None) -> Any:
    """The policy on its device. weights: a policy folder that replaces `policy.checkpoint`."""
    target, arguments = config.policy._target_, _arguments(config.policy)
    accepted = _accepted("policy", target)
    if "checkpoint" in accepted:
        found = weights or start_of(config)
        arguments["checkpoint"] = None if found is None else str(found)
    elif weights is not None:
        raise ConfigError(f"policy={config.choices['policy']}: found checkpoint={weights}, but this policy has no weights to load; leave checkpoint= out")
    if "value_head" in accepted and needs_values:
        arguments["value_head"] = True
    if "device" in accepted:
        arguments["device"] = device(config)
    if "env_spec" in accepted:
        arguments["env_spec"] = env_spec(config, None)
    return _construct("policy", target, arguments)


def start_of(config: DictConfig) -> Path | None:
    """The folder that the policy begins from: policy.checkpoint, else the one that its yaml's `_start_` gives, else the packaged one. None where it has neither, or takes none."""
    if "checkpoint" not in _accepted("policy", config.policy._target_):
        return None
    made = config.policy.get("_start_")
    found = config.policy.get("checkpoint") or (_call("policy", thunks.thunk(made, {})) if made else _packaged(config))
    if found is None:
        return None
    path = Path(str(found))  # a folder may be named by a number
    return policy_folder(path, "policy.checkpoint") if (path / "checkpoints").is_dir() or (path / checkpoint.POLICY).is_dir() else path


def policy_folder(path: Path, key: str) -> Path:
    """The policy folder that a path means: itself, that of a step_N folder, or of a run's newest whole checkpoint. key: what named it.

    Raises ConfigError where there is none, DamagedCheckpoint for a step_N folder that is not whole.
    """
    if (path / "config.json").is_file():
        return path
    try:
        found = checkpoint.find(path)
    except FileNotFoundError as error:
        raise ConfigError(f"{key}={path}: {error}") from error
    if found == path:  # of a run, `find` takes one that it has proved
        checkpoint.verify(found)
    return found / checkpoint.POLICY


def prepare_fresh(config: DictConfig, run: Any) -> None:
    """policy.checkpoint=fresh: writes a random checkpoint into the run's folder and puts its path in the config; one with words or scales has them from the demonstrations."""
    if config.policy.get("checkpoint") != "fresh":
        return
    if config.policy.get("_fresh_") is None or run is None:
        raise ConfigError("policy.checkpoint=fresh: wanted a training run on a policy that can start from nothing; name a folder")
    start, spec = run.path / "start", env_spec(config, None)
    accepted = _accepted("policy", config.policy._fresh_)
    known = _arguments(config.policy) | {"folder": str(start), "env_spec": spec, "seed": config.seed}
    if {"instructions", "statistics"} & accepted.keys():
        known |= _shapes(config, spec)
    _call("policy", thunks.thunk(config.policy._fresh_, {name: value for name, value in known.items() if name in accepted}))
    config.policy.checkpoint = str(start)


def _shapes(config: DictConfig, spec: EnvSpec) -> dict[str, Any]:
    """instructions: the words of the demonstrations and of the env. statistics: the scales of what was done and seen."""
    if config.data is None:
        raise ConfigError("policy.checkpoint=fresh: found data=null, wanted data=DIR: demonstrations give this policy its words and scales")
    from envs.record import read
    from policies.codec import state_statistics_of, statistics_of

    recorded = _call("data", lambda: read(config.data))
    _check_recorded(config, recorded.env_spec, spec)
    episodes = [recorded.load(index) for index in range(len(recorded))]
    if not episodes:
        raise ConfigError(f"data={config.data}: found no demonstration, wanted at least one to shape a fresh policy by")
    statistics = {"action": statistics_of(np.concatenate([episode["actions"] for episode in episodes]))}
    if "state" in episodes[0]:
        statistics["proprio"] = state_statistics_of(np.concatenate([episode["state"] for episode in episodes]))
    return {"instructions": list(dict.fromkeys([*recorded.instructions, *spec.instructions])), "statistics": {recorded.env_spec.name: statistics}}


def demonstrations(config: DictConfig, spec: EnvSpec) -> list[dict[str, Any]]:
    """Every episode in `data`, as `stages.read.demonstration_rows` takes them. Raises ConfigError where there is none, or where the env's actions are others."""
    if config.data is None:
        wanted = "data=FILE.jsonl, or data=DIR (record some with evaluate record=DIR)" if spec.action.kind == "text" else "data=DIR (record some with evaluate policy=expert record=DIR)"
        raise ConfigError(f"algorithm={config.choices['algorithm']} learns from demonstrations: found data=null, wanted {wanted}")
    from envs import record, texts

    if spec.action.kind == "text":
        pairs = _without_held_out(config, _call("data", lambda: texts.read(config.data)))
        return [{"prompt": [pair.prompt], "actions": np.array([[pair.answer]], dtype=object), "place": pair.place} for pair in pairs]
    recorded = _call("data", lambda: record.read(config.data))
    _check_recorded(config, recorded.env_spec, spec)
    return [{**recorded.load(index), "instruction": info.instruction, "place": f"{config.data}, {info.file}"} for index, info in enumerate(recorded.episodes)]


def _without_held_out(config: DictConfig, pairs: list[Any]) -> list[Any]:
    """Texts to imitate without those to the problems that this env holds out; says how many it left out. Raises ConfigError where none is left."""
    kept_back = getattr(env_thunk(config, None)(), "kept_back", frozenset)()
    left = [pair for pair in pairs if pair.prompt not in kept_back]
    if not left:
        raise ConfigError(f"data={config.data}: found answers to problems that env.problems={config.env.get('problems')} holds out for evaluation alone, wanted others; set env.held_out=0 to learn from them")
    if len(left) < len(pairs):
        print(f"{len(pairs) - len(left)} of {len(pairs)} answers left out: their problems are held out for evaluation; env.held_out=0 learns from them too")
    return left


def _check_recorded(config: DictConfig, recorded: EnvSpec, spec: EnvSpec) -> None:
    """Raises ConfigError for demonstrations of another env, or of other actions."""
    if recorded.name != spec.name:
        raise ConfigError(f"data={config.data}: it was recorded on {recorded.name}, this run's env is {spec.name}; record with this env, or imitate on that one")
    if recorded.action != spec.action:
        raise ConfigError(f"data={config.data}: its actions are {recorded.action}, the env's {spec.action}; record with the same env")


def env_thunk(config: DictConfig, policy_spec: PolicySpec | None, keep_cameras: bool = False) -> Any:
    """The env's constructor, told what the policy looks at: pictures that nobody sees are not rendered (unless keep_cameras)."""
    target, arguments = config.env._target_, _arguments(config.env)
    accepted = _accepted("env", target)
    if policy_spec is not None:
        if "cameras" in accepted and not keep_cameras:
            arguments["cameras"] = list(policy_spec.cameras)
        if "privileged" in accepted:
            arguments["privileged"] = policy_spec.privileged
    check_types("env", accepted, arguments)
    return thunks.thunk(target, arguments)


def env_spec(config: DictConfig, policy_spec: PolicySpec | None, keep_cameras: bool = False) -> EnvSpec:
    """The spec, from an instance made here and closed at once (constructors build no simulator before the first reset).

    Raises ConfigError where env.cameras was set and lacks one that the policy looks at: what the env shows follows the policy, not the other way round.
    """
    asked = config.env.get("cameras")
    if policy_spec is not None and not set(policy_spec.cameras) <= set(asked or ()) and asked != yaml_of("env", config.choices["env"]).get("cameras"):
        raise ConfigError(f"env.cameras: found {list(asked or ())}, wanted {list(policy_spec.cameras)}, which policy={config.choices['policy']} looks at; leave env.cameras out, or name as many cameras of the env in policy.cameras")
    env = _call("env", env_thunk(config, policy_spec, keep_cameras))
    try:
        if not isinstance(getattr(env, "env_spec", None), EnvSpec):
            raise ConfigError(f"env={config.choices['env']}: found no env_spec on {type(env).__name__}, wanted one (envs/spec.py; the README has a whole env); or register it with Gymnasium and run it by env=gym env.id=your_package:YourEnv-v0")
        return env.env_spec
    finally:
        env.close()


def started_env(config: DictConfig, make_env: Any, spec: EnvSpec, slots: int, workers: int) -> Any:
    """A VectorEnv, or what the env itself makes of so many slots where all are one simulator."""
    if spec.batched:
        return _call("env", lambda: make_env().vector(slots))
    return VectorEnv(make_env, slots, workers, timeout=config.sim.timeout, start_timeout=config.sim.start_timeout)


def _accepted(what: str, target: str) -> dict[str, inspect.Parameter]:
    return _call(what, lambda: thunks.parameters(target))


def _arguments(node: DictConfig) -> dict[str, Any]:
    """The constructor's arguments: keys that begin with an underscore are ours."""
    return {str(key): value for key, value in OmegaConf.to_container(node, resolve=True).items() if not str(key).startswith("_")}


def _construct(what: str, target: str, arguments: dict[str, Any]) -> Any:
    check_types(what, _accepted(what, target), arguments)
    return _call(what, thunks.thunk(target, arguments))


PLAIN = {"str": (str, "a text"), "int": (int, "a whole number"), "float": ((int, float), "a number"), "bool": (bool, "true or false"), "None": (type(None), "null")}


def check_types(what: str, accepted: Mapping[str, inspect.Parameter], arguments: Mapping[str, Any]) -> None:
    """Raises ConfigError for a value that the constructor's annotation does not have, where that names plain types alone, and for a null where it has no None."""
    for key, value in arguments.items():
        if key not in accepted or accepted[key].annotation is inspect.Parameter.empty:
            continue
        annotation = accepted[key].annotation
        wanted = annotation.__name__ if isinstance(annotation, type) else str(annotation)
        names = [name.strip() for name in wanted.split("|")]
        if value is None and not any(word in wanted for word in ("None", "Any", "Optional")):
            raise ConfigError(f"{what}.{key}: found null, wanted {wanted}")
        if set(names) <= PLAIN.keys() and not any(isinstance(value, PLAIN[name][0]) and (not isinstance(value, bool) or name == "bool") for name in names):
            raise ConfigError(f"{what}.{key}: found {value!r}, wanted {' or '.join(PLAIN[name][1] for name in names)}")


def _call(what: str, make: Any) -> Any:
    """A constructor's own refusal, whatever its type, becomes a ConfigError that says whose it is (M2FLOW_DEBUG=1 shows where)."""
    try:
        return make()
    except ConfigError:
        raise
    except Exception as error:
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        raise ConfigError(f"{what}: {text}") from error


def _packaged(config: DictConfig) -> Path | None:
    """The small checkpoint that travels with the package, where this policy has one: the env's own, else the standard one."""
    name = config.choices["policy"]
    folder = resources.files("assets") / (config.env.get("_checkpoints_") or {}).get(name, f"{name}_small")
    return Path(str(folder)) if folder.is_dir() else None
