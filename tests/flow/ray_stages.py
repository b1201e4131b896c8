"""Toy stages, small enough to work out by hand, and the hosts that run them.

Item `order` of a round is asked for as `order` and answered with order + 1001 v + 1 by a partner that has weights of version v (its parts
are v and v + 1, and it makes 1000 x the first + the second of them); the learner reports the sum of a round's answers.
"""

from __future__ import annotations

import os
from functools import partial
from multiprocessing import Pipe

from scheduler.backends.base import Call, Item, Outcome, StageLost
from scheduler.running.flow import Flow, Link

ITEMS = 4  # of a round


class Sour(ValueError):
    """A stage's own error."""


class Stage:
    def __init__(self, dies: tuple[str, int] | None = None, fails: bool = False) -> None:
        """dies: (a file that is made by dying, the round): the process ends in the middle of that round's first call, once."""
        self.dies, self.fails, self.abandoned = dies, fails, 0

    def start(self, call: Call) -> Outcome | None:
        if self.fails:
            raise Sour("this one is sour")
        if self.dies and call.round == self.dies[1] and not os.path.exists(self.dies[0]):
            open(self.dies[0], "w").close()
            os._exit(7)
        return self.work(call)

    def ready(self, timeout: float | None) -> list:
        return []

    def connections(self) -> list:
        return []

    def load(self) -> None: ...

    def unload(self) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None:
        self.abandoned += 1

    def pid(self) -> int:
        return os.getpid()

    def node(self) -> str:
        import ray

        return ray.get_runtime_context().get_node_id()


class Sim(Stage):
    """Plays the items group, group + groups, ... one after another; emits each with what the partner answered."""

    def __init__(self, groups: int = 1, **kwargs) -> None:
        super().__init__(**kwargs)
        self.groups, self.playing = groups, {}

    def work(self, call: Call) -> Outcome:
        if call.payload is None:
            self.playing[call.round, call.group] = list(range(call.group, ITEMS, self.groups))
            return Outcome(self.playing[call.round, call.group][0])
        left = self.playing[call.round, call.group]
        item = Item(left.pop(0), call.payload, ("answered", call.payload))
        return Outcome(left[0] if left else None, (item,))

    def regroup(self, groups: int) -> None:
        self.groups = groups

    def abandon(self) -> None:
        super().abandon()
        self.playing = {}


class SimElsewhere(Sim):
    """As Sim, but what it gives is ready later, the newest first."""

    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.reader, self.writer = Pipe(duplex=False)
        self.done: list = []

    def start(self, call: Call) -> None:
        self.done.append((call, self.work(call)))
        self.writer.send(None)

    def ready(self, timeout: float | None) -> list:
        while self.reader.poll(timeout if not self.done else 0.0):
            self.reader.recv()
        done, self.done = self.done[::-1], []
        return done

    def connections(self) -> list:
        return [self.reader]


class SimHere(Sim):
    """As Sim, but the work of a call is done when it is asked whether that is ready, a call at a time."""

    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.calls: list[Call] = []

    def start(self, call: Call) -> None:
        self.calls.append(call)

    def ready(self, timeout: float | None) -> list:
        return [(call, self.work(call)) for call in [self.calls.pop(0)]] if self.calls else []


class Act(Stage):
    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.version, self.bias, self.seen, self.fetched = None, None, [], 0

    def work(self, call: Call) -> Outcome:
        if call.weights.version != self.version:
            self.version, parts = call.weights.version, []
            for part in call.weights.parts:
                self.fetched += 1
                parts.append(part)
            self.bias = 1000 * parts[0] + parts[1]
        if (call.round, self.version) not in self.seen:
            self.seen.append((call.round, self.version))
        return Outcome(call.payload + self.bias)

    def account(self) -> tuple[list, int]:
        return self.seen, self.fetched


class Learn(Stage):
    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.total, self.version = 0, 0

    def work(self, call: Call) -> Outcome:
        if call.kind == "granule":
            self.total += sum(item.payload for item in call.payload)
            return Outcome()
        report, self.total, self.version = ("sum", self.total), 0, call.round + 1
        return Outcome(report, weights=self.parts())

    def parts(self) -> list[int]:
        return [self.version, self.version + 1]

    def abandon(self) -> None:
        super().abandon()
        self.total = 0


class Hurt(Stage):
    """Loses something of its own in its first call, and can build that anew."""

    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.whole = False

    def work(self, call: Call) -> Outcome:
        if not self.whole:
            raise StageLost("hurt", "stage 'hurt' lost a worker")
        return Outcome(None, (Item(0, None, "whole"),))

    def restart(self) -> None:
        self.whole = True


class Stream(Stage):
    """Tells item 0 of a call at once and its end when `finish` is called."""

    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.reader, self.writer = Pipe(duplex=False)
        self.calls: list[Call] = []

    def work(self, call: Call) -> None:
        self.calls.append(call)
        self.writer.send((call.number, Outcome(items=(Item(0, "payload", call.round),), done=False)))

    def finish(self) -> None:
        self.writer.send((self.calls[-1].number, Outcome(items=(Item(1, "payload", self.calls[-1].round),))))

    def ready(self, timeout: float | None) -> list:
        found = []
        while self.reader.poll(timeout if not found else 0.0):
            number, outcome = self.reader.recv()
            found += [(call, outcome) for call in self.calls if call.number == number]
        return found

    def connections(self) -> list:
        return [self.reader]

    def abandon(self) -> None:
        super().abandon()
        self.calls = []


def make(stages: dict) -> dict:
    """stages: name -> (class, its keywords)."""
    return {name: kind(**keywords) for name, (kind, keywords) in stages.items()}


def refuse() -> dict:
    raise Sour("cannot be built")


def thunk(**stages) -> partial:
    return partial(make, stages)


def loop(groups: int, lag: int = 0, granule: int | None = 2) -> Flow:
    return Flow("sim", "act", groups, (Link("sim", "learn", granule, 2),), lag, taught="act")
