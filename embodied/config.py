"""The config of a command line, and the checks that need no simulator and no model.

The keys of a run are the dataclasses of `knobs`; `env`, `policy` and `algorithm` are a yaml each (an import path and its arguments). Precedence:
dataclass, then the `_run_` block of env, policy and algorithm (what that choice wants of the run), the `_algorithm_` block of env and policy and the `_policy_` block of env, then the command line.
A key that is not there is refused with the nearest one that is, also behind a `+`.
"""

from __future__ import annotations

import difflib
import math
from importlib import resources
from pathlib import Path
from typing import Any, Sequence

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from embodied.knobs import Run
from scheduler.resources import this_machine

CHOICES = ("env", "policy", "algorithm")


class ConfigError(ValueError):
    """The command line asks for something that cannot be; the message names it and the way out."""


DEFAULT_CHOICES = {"env": "libero", "policy": "openvla_oft", "algorithm": "grpo"}
# name of the number, smallest allowed value
MINIMA = {
    "iterations": 0, "groups": 1, "sim.slots": 1, "sim.workers": 0, "scheduler.act_rows": 1, "evaluation.episodes": 0, "evaluation.samples": 1,
    "checkpoints.every": 1, "checkpoints.keep": 1, "videos": 0, "scheduler.patience": 1, "scheduler.restarts": 0, "staleness": 0, "sharding.processes": 1,
}
PRECISIONS = ("float32", "bfloat16")
MOST_STALENESS = 8
CLUSTERS = ("local", "ray")
SHORT = {"scheduler": "scheduler.mode", "cluster": "cluster.kind", "samples": "evaluation.samples"}  # what a short name stands for on the command line
POSITIVE = ("sim.timeout", "sim.start_timeout")


def compose(arguments: Sequence[str]) -> DictConfig:
    """The whole config of a command line `key=value ...`. Raises ConfigError."""
    overrides = [_parse(argument) for argument in arguments]
    chosen = dict(DEFAULT_CHOICES)
    for key, value in overrides:
        if key in CHOICES:
            chosen[key] = str(value)
    config = OmegaConf.structured(Run)
    OmegaConf.set_struct(config, False)
    config = OmegaConf.merge(config, {name: yaml_of(name, choice) for name, choice in chosen.items()})
    for name in CHOICES:
        _borrow(config, name, chosen)
        _apply_algorithm_block(config, name, chosen)
        _apply_policy_block(config, name)
        _apply_run_block(config, name)
    for key, value in overrides:
        if key not in CHOICES:
            _set(config, key, value)
    _check(config)
    config.choices = chosen
    return config


def reopened(path: Any, arguments: Sequence[str], movable: Sequence[str] = ()) -> DictConfig:
    """A run's saved config with what the command line says on top. Raises ConfigError where that would make it another run.

    movable: keys of folders whose contents are compared elsewhere, so that they may lie elsewhere.
    """
    base = OmegaConf.structured(Run)
    OmegaConf.set_struct(base, False)
    config = OmegaConf.merge(base, OmegaConf.load(path))
    saved = config.copy()
    for key, value in map(_parse, arguments):
        if key not in CHOICES:
            _set(config, key, value)
        elif str(value) != config.choices[key]:
            raise ConfigError(f"{key}={value}: the run in {path} was made with {key}={config.choices[key]}; start a run of its own instead")
    _check(config)
    changed = [key for key in differences(saved, config) if key not in movable]
    if changed:
        raise ConfigError(f"{', '.join(changed)}: the run in {path} was made with other values; start a run of its own instead")
    return config


def value_of(arguments: Sequence[str], key: str) -> Any:
    """What the command line says for one key, None where it says nothing."""
    return dict(map(_parse, arguments)).get(key)


def choices_of(group: str) -> list[str]:
    """The yaml files that can be chosen for env, policy or algorithm."""
    folder = resources.files("configs") / group
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def nearest(found: str, known: Sequence[str]) -> str:
    """A sentence part: the nearest known name, or all of them."""
    close = difflib.get_close_matches(found, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"there is {', '.join(sorted(known))}"


def _parse(argument: str) -> tuple[str, Any]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(argument)
    except HydraException as error:
        raise ConfigError(f"found {argument!r}, wanted key=value: {str(error).splitlines()[0]}") from error
    if override.is_delete():
        raise ConfigError(f"found {argument!r}: a key cannot be deleted; set it to null instead")
    if override.is_sweep_override():
        raise ConfigError(f"found {argument!r}: several values at once; a list is written [a,b], and one run has one value")
    if not override.key_or_group:
        raise ConfigError(f"found {argument!r}, wanted key=value")
    key, value = override.key_or_group, override.value()
    return (SHORT[key], value) if key in SHORT and not isinstance(value, dict) else (key, value)


def yaml_of(group: str, choice: str) -> DictConfig:
    """The yaml of a choice: one of ours by name, or anyone's by its path (it ends in .yaml). Raises ConfigError."""
    if choice.endswith(".yaml"):
        if not Path(choice).is_file():
            raise ConfigError(f"{group}={choice}: there is no such file")
        return OmegaConf.load(choice)
    known = choices_of(group)
    if choice not in known:
        raise ConfigError(f"{group}={choice}: there is no such {group}; {nearest(choice, known)}")
    found = OmegaConf.create((resources.files("configs") / group / f"{choice}.yaml").read_text())
    like = found.pop("_like_", None)  # another choice, whose keys it has but for those of its own
    return found if like is None else OmegaConf.merge(yaml_of(group, like), found)


def _borrow(config: DictConfig, name: str, chosen: dict[str, str]) -> None:
    """A choice whose yaml says `_from_: env._key_` is what stands there (the scripted expert belongs to its env)."""
    source = config[name].get("_from_")
    if source is None:
        return
    found = OmegaConf.select(config, source)
    if found is None:
        group = source.split(".")[0]
        raise ConfigError(f"{name}={chosen[name]}: {group}={chosen[group]} brings none; choose another {name}")
    config[name] = OmegaConf.create(OmegaConf.to_container(found))


def _apply_run_block(config: DictConfig, name: str) -> None:
    block = config[name].get("_run_")
    if block is None:
        return
    for key, value in _flatten(OmegaConf.to_container(block)):
        _set(config, key, value)
    del config[name]["_run_"]


def _apply_algorithm_block(config: DictConfig, name: str, chosen: dict[str, str]) -> None:
    """What an env or a policy wants of each algorithm: `_algorithm_: {grpo: {...}}` in its yaml."""
    block = config[name].get("_algorithm_")
    if block is None:
        return
    for key, value in _flatten(OmegaConf.to_container(block.get(chosen["algorithm"], OmegaConf.create({}))), "algorithm."):
        _set(config, key, value)
    del config[name]["_algorithm_"]


def _apply_policy_block(config: DictConfig, name: str) -> None:
    """What an env wants of a policy that has all of these keys: `_policy_: {temperature: 0.6}` in its yaml; of another policy nothing, it is refused or not by what it is."""
    block = config[name].get("_policy_")
    if block is None:
        return
    if set(block) <= set(config.policy):
        for key, value in block.items():
            _set(config, f"policy.{key}", value)
    del config[name]["_policy_"]


def _flatten(block: dict, prefix: str = "") -> list[tuple[str, Any]]:
    pairs = []
    for key, value in block.items():
        pairs += _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return pairs


def _set(config: DictConfig, key: str, value: Any) -> None:
    """Puts a value in place after checking its key and type; a block key by key."""
    before = OmegaConf.select(config, key)
    if isinstance(value, dict) and isinstance(before, DictConfig) and len(before):
        for name, part in value.items():
            _set(config, f"{key}.{name}", part)
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key}: found {value}, wanted a finite number")
    parent, node, parts = None, config, key.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(node, DictConfig) or part not in node:
            if isinstance(node, DictConfig) and depth and parts[depth - 1] == "kwargs":
                break  # a free-form block: its owner checks the names
            known = [str(name) for name in node if not str(name).startswith("_")] if isinstance(node, DictConfig) else []
            where = ".".join(parts[:depth])
            raise ConfigError(f"{key}: there is no key {part!r}{f' in {where}' if where else ''}; {nearest(part, known) if known else f'{where} is a single value'}")
        parent, node = node, node[part]
    else:
        _check_type(key, parent, parts[-1], value)
    try:
        OmegaConf.update(config, key, value, force_add=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{key}: found {value!r}: {str(error).splitlines()[0]}") from error


def _check_type(key: str, parent: DictConfig, name: str, value: Any) -> None:
    """A yaml's own value says what type the key has; null there takes anything. Dataclass keys are typed by OmegaConf."""
    before = parent[name]
    if before is None or value is None or isinstance(before, str) and not isinstance(value, (list, dict)):
        return
    kinds = {bool: (bool,), int: (int,), float: (int, float), ListConfig: (list,), DictConfig: (dict,), str: (str,)}[type(before)]
    fits = isinstance(value, kinds) and (isinstance(before, bool) or not isinstance(value, bool))
    if not fits:
        wanted = {bool: "true or false", int: "a whole number", float: "a number", ListConfig: "a list [...]", DictConfig: "a block {...}", str: "a text"}[type(before)]
        raise ConfigError(f"{key}: found {value!r}, wanted {wanted} (its default is {before})")


def fill_in(config: DictConfig, cores: int) -> None:
    """What null leaves to the machine, or the cluster, that has so many cores."""
    if config.sim.slots is None:
        config.sim.slots = max(cores, config.sim.workers or 1)
    if config.sim.workers is None:
        batched = config.env.get("_batched_")  # with these values of its keys, the env is one simulator in this process
        config.sim.workers = 0 if batched and all(config.env.get(key) == value for key, value in batched.items()) else min(cores, config.sim.slots)
    if config.sim.workers > config.sim.slots:
        raise ConfigError(f"sim.workers={config.sim.workers} for sim.slots={config.sim.slots}: some would have nothing to do; use sim.workers={config.sim.slots} or more slots")


def _check(config: DictConfig) -> None:
    if config.cluster.kind not in CLUSTERS:
        raise ConfigError(f"cluster={config.cluster.kind}: wanted one of {', '.join(CLUSTERS)}; clusters that are not here are for embodied.plan")
    if config.cluster.address is not None and config.cluster.kind != "ray":
        raise ConfigError(f"cluster.address={config.cluster.address}: cluster={config.cluster.kind} has none; set cluster=ray")
    for key, smallest in MINIMA.items():
        if (OmegaConf.select(config, key) if OmegaConf.select(config, key) is not None else smallest) < smallest:
            raise ConfigError(f"{key}: found {OmegaConf.select(config, key)}, wanted at least {smallest}")
    if config.cluster.kind == "local":
        fill_in(config, this_machine().cores)
    for key in POSITIVE:
        if OmegaConf.select(config, key) <= 0:
            raise ConfigError(f"{key}: found {OmegaConf.select(config, key)}, wanted more than 0 seconds")
    if (config.scheduler.file is not None) != (config.scheduler.mode == "from_file"):
        raise ConfigError(f"scheduler={config.scheduler.mode}: found scheduler.file={config.scheduler.file or 'null'}; a plan file and scheduler=from_file go together")
    if not config.scheduler.drift > 0:
        raise ConfigError(f"scheduler.drift: found {config.scheduler.drift}, wanted more than 0 (a share: 0.2 is 20 %)")
    if config.staleness > MOST_STALENESS:
        raise ConfigError(f"staleness: found {config.staleness}, wanted at most {MOST_STALENESS}: each one is a copy of the trained weights, and the corrections grow with it")
    sharding = config.sharding
    if sharding.precision not in (None, *PRECISIONS):
        raise ConfigError(f"sharding.precision: found {sharding.precision!r}, wanted null or one of {', '.join(PRECISIONS)}")
    if sharding.processes == 1 and (sharding.precision is not None or sharding.offload):
        asked = f"sharding.precision={sharding.precision}" if sharding.precision is not None else "sharding.offload=true"
        raise ConfigError(f"sharding.processes=1: found {asked}, which is for several processes; use more of them{', or policy.dtype' if sharding.precision is not None else ''}")
    if not 0 < config.horizon_share <= 1:
        raise ConfigError(f"horizon_share: found {config.horizon_share}, wanted more than 0 and at most 1")
    if config.scheduler.groups is not None and config.scheduler.groups < 1:
        raise ConfigError(f"scheduler.groups: found {config.scheduler.groups}, wanted at least 1, or null for one per slot")
    if config.scheduler.learn_threads is not None and config.scheduler.learn_threads < 1:
        raise ConfigError(f"scheduler.learn_threads: found {config.scheduler.learn_threads}, wanted at least 1, or null for every core")


def refuse_unused(config: DictConfig, program: str, keys: dict[str, str]) -> None:
    """A key that this program would not look at is an error, not a silent nothing. keys: name -> what to do instead."""
    for key, instead in keys.items():
        if config[key]:
            raise ConfigError(f"{key}={config[key]}: {program} does not use it; {instead}")


KEPT = ("evaluation", "checkpoints", "scheduler")  # what of it a user would want to be told
# What may differ between a run and the command line that resumes it; everything else is the run's identity.
RESUMABLE = ("iterations", "sim", "scheduler", "cluster", "sharding", "evaluation", "checkpoints", "checkpoint", "resume", "record", "videos", "device", "output",
             "policy.base")  # fmt: skip  # where the same weights lie: their fingerprint is compared


def kept(saved: DictConfig, asked: DictConfig, arguments: Sequence[str]) -> list[str]:
    """key=value of what a run goes on with though its command line now would not: of the keys that may differ, those that it does not name."""
    named = {key for key, _ in map(_parse, arguments)}
    old, new = (dict(_flatten(OmegaConf.to_container(each))) for each in (saved, asked))
    return [f"{key}={old[key]}" for key in sorted(old) if key.split(".")[0] in KEPT and key not in named and old[key] != new.get(key)]


def differences(first: DictConfig, second: DictConfig) -> list[str]:
    """The keys, of those that make a run what it is, in which two configs differ. A checkpoint made fresh for a run is still `fresh`."""
    flat = [{key: value for key, value in _flatten(OmegaConf.to_container(c)) if key not in RESUMABLE and key.split(".")[0] not in RESUMABLE} for c in (first, second)]
    for values in flat:
        if str(values.get("policy.checkpoint", "")).endswith("/start"):
            values["policy.checkpoint"] = "fresh"
    return sorted(key for key in flat[0].keys() | flat[1].keys() if flat[0].get(key) != flat[1].get(key))
