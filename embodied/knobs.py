"""Every knob of a run, with its unit and reason. The knobs of an env, a policy or an algorithm are in its yaml."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Sim:
    slots: int | None = None  # running env instances; null = one per core
    workers: int | None = None  # processes they are spread over; 0 = this process, null = one per core and not more than slots
    timeout: float = 120.0  # seconds a worker may take for one reset or one chunk before the run fails, naming it
    start_timeout: float = 600.0  # seconds for building the simulators


@dataclass
class Scheduler:
    mode: str = "auto"  # auto | collocated | disaggregated | hybrid | from_file
    groups: int | None = None  # slot groups in flight; null = the plan decides
    file: str | None = None  # the plan.json of from_file
    profile: str | None = None  # a profile to plan by; null = the saved one of this machine and config, else it is measured
    drift: float = 0.2  # share by which measured time may leave the prediction ...
    patience: int = 3  # ... so many iterations in a row, before it is planned again
    act_rows: int = 1  # rows of one forward, fixed so that results do not depend on the number of workers
    learn_threads: int | None = None  # CPU threads of the learner, to which the rows of an update are dealt out; null = every core of a node
    restarts: int = 3  # times that a lost process (dead or hung) is built anew before the run fails


@dataclass
class Cluster:
    kind: str = "local"  # local: this process and its workers | ray: a Ray cluster
    address: str | None = None  # ray: auto (the one that runs on this machine) or host:port; null = one is started here for this run


@dataclass
class Sharding:
    processes: int = 1  # that learn together on one machine, each with its part of parameters, gradients and optimizer state, on the CPU or on an accelerator of its own
    activation_checkpointing: bool = False  # keep a block's input alone and run it twice: less memory for about a third more time
    precision: str | None = None  # of several processes: bfloat16 computes in it and adds gradients up in float32; null = as policy.dtype holds the weights
    offload: bool = False  # of several processes with accelerators: parameters and optimizer state in host memory, on the device only while in use


@dataclass
class Evaluation:
    episodes: int | None = 100  # starts, before and after training, and of `evaluate`; every (task, initial state) once before any twice; null = each once
    samples: int = 1  # attempts at each start, every one with randomness of its own; more than 1: also avg@k and pass@k, and then no start is met twice
    greedy: bool = False  # the most likely action instead of a sample
    fixed_horizon: bool | None = None  # episodes go on past success to the end of the budget, where the env can; null = so, unless they are recorded as demonstrations
    before: bool = True
    after: bool = True


@dataclass
class Checkpoint:
    every: int = 5  # iterations
    keep: int = 2  # newest ones that stay


@dataclass
class Run:
    seed: int = 0
    iterations: int = 10  # the last one is followed by a checkpoint
    groups: int = 8  # groups an iteration, each of algorithm.group_size episodes
    horizon_share: float = 1.0  # training episodes are cut at this share of the env's step budget; evaluation always has all of it
    staleness: int = 0  # updates that the weights which sample may lie behind those that learn; 0 = each round with the newest
    init_states: list[int] | None = None  # initial states that training starts from; null = all
    sim: Sim = field(default_factory=Sim)
    scheduler: Scheduler = field(default_factory=Scheduler)
    cluster: Cluster = field(default_factory=Cluster)
    sharding: Sharding = field(default_factory=Sharding)
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoints: Checkpoint = field(default_factory=Checkpoint)
    checkpoint: str | None = None  # evaluate: a run folder, a step_N folder or a policy folder
    resume: str | None = None  # auto | a run folder
    data: str | None = None  # imitation: a folder of demonstrations; of texts also a JSONL file
    record: str | None = None  # evaluate: write demonstrations here
    videos: int = 0  # evaluate: record this many episodes as mp4
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    output: str = "outputs"  # runs are written below it
