"""Ways to change a set of ranks. Each takes a random.Random and a Draft, changes it, and says what it did."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

from .bases import Event, RankFile, RankSet, is_collective

ABSENT = object()  # the field is left out
DURATIONS = (0, "0", -5, 0.0004, ABSENT, None, 1, 0.001, 1e-9, 1e6, 1e12, 9.3e15, 2**63, 1e300, float("nan"), "x", True)
NUMBERS = (0, 1, -1, 2, "0", "", None, ABSENT, 0.5, 2**31, 2**62, 2**63, -(2**63), 1e300, float("nan"), [], {}, True)
NAMES = (
    "",
    "ProfilerStep#0",
    "ProfilerStep#1",
    "ProfilerStep#99999999999999999999",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_Generic_1",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "gloo:all_reduce",
    "gloo:broadcast",
    "nccl:barrier",
    "Memcpy HtoD (Pageable -> Device)",
    "Memset (Device)",
    "cudaDeviceSynchronize",
    "aten::mm",
    "Optimizer.step#SGD.step",
    "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
    "x" * 3000,
    7,
    None,
)
CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "cpu_op", "user_annotation", "gpu_user_annotation", "cuda_runtime")
CATEGORIES = (*CATEGORIES, "python_function", "cuda_driver", "overhead", "ac2g", "", None)
KINDS = ("allreduce", "_allgather_base", "_reduce_scatter_base", "all_to_allv", "broadcast", "barrier", "send", "wait")
WORDS = (
    *KINDS,
    "",
    "0",
    "Float",
    "BFloat16",
    "Int8",
    "[0, 1]",
    "[0]",
    "[]",
    "[0, 1, 2, 3]",
    "default_pg",
    None,
    ABSENT,
)
SHIFTS_US = (0.001, 1, 50, 999, 1000, 1001, 5e4, 1e6, 3e6, 1e8)


class Draft:
    """A set that is being changed: the events that were touched are copies, the others are those of the base."""

    def __init__(self, base: RankSet) -> None:
        self.events = {name: list(zip(trace.events, trace.encoded, strict=True)) for name, trace in base.traces.items()}
        self.headers = {name: dict(trace.header) for name, trace in base.traces.items()}
        self.others = copy.deepcopy(base.others)

    def files(self) -> dict[str, str]:
        """The text of each file."""
        found = {name: json.dumps(content) for name, content in self.others.items()}
        for name, events in self.events.items():
            head = "".join(f"{json.dumps(key)}: {json.dumps(value)}, " for key, value in self.headers[name].items())
            written = (text or json.dumps(event) for event, text in events)
            found[name] = f'{{{head}"traceEvents": [{", ".join(written)}]}}'
        return found

    def take(self, name: str, at: int) -> Event:
        """An event that is about to be changed."""
        event = copy.deepcopy(self.events[name][at][0])
        self.events[name][at] = (event, "")
        return event

    def extend(self, name: str, trace: RankFile) -> None:
        """Add the events of another trace."""
        self.events[name] += zip(trace.events, trace.encoded, strict=True)


def _file(random: Random, draft: Draft) -> str:
    return random.choice(sorted(draft.events))


def _rows(random: Random, draft: Draft, name: str) -> list[int]:
    """Events of one kind: collectives half the time."""
    events = draft.events[name]
    kind = random.random()
    if kind < 0.5:
        found = [at for at, (event, _) in enumerate(events) if is_collective(event)]
    elif kind < 0.65:
        found = [at for at, (event, _) in enumerate(events) if "ProfilerStep" in str(event.get("name"))]
    elif kind < 0.85:
        category = random.choice(CATEGORIES)
        found = [at for at, (event, _) in enumerate(events) if event.get("cat") == category]
    else:
        found = []
    return found or [*range(len(events))]


def _some(random: Random, draft: Draft, name: str) -> list[int]:
    """One event most of the time, else several or all of a kind."""
    rows = _rows(random, draft, name)
    if not rows:
        return []
    many = random.random()
    return [random.choice(rows)] if many < 0.7 else random.sample(rows, min(len(rows), 5)) if many < 0.85 else rows


def _files(random: Random, draft: Draft) -> list[str]:
    """One rank most of the time, else all."""
    return [_file(random, draft)] if random.random() < 0.75 else sorted(draft.events)


def _set(event: Event, key: str, value: Any) -> None:
    if value is ABSENT:
        event.pop(key, None)
    else:
        event[key] = value


def _each(random: Random, draft: Draft, change: Callable[[Event], None]) -> None:
    for name in _files(random, draft):
        for at in _some(random, draft, name):
            change(draft.take(name, at))


def duration(random: Random, draft: Draft) -> None:
    """A duration is zero, text, negative, tiny, huge or missing."""
    value = random.choice(DURATIONS)
    _each(random, draft, lambda event: _set(event, "dur", value))


def scaled_duration(random: Random, draft: Draft) -> None:
    """Durations are many times as long, or as short."""
    times = random.choice((0.0001, 0.5, 2, 1000))

    def change(event: Event) -> None:
        if isinstance(event.get("dur"), (int, float)):
            event["dur"] = event["dur"] * times

    _each(random, draft, change)


def time(random: Random, draft: Draft) -> None:
    """A time is none, or extreme."""
    value = random.choice(NUMBERS)
    _each(random, draft, lambda event: _set(event, "ts", value))


def moved(random: Random, draft: Draft) -> None:
    """Events are a little, or seconds, earlier or later."""
    by = random.choice(SHIFTS_US) * random.choice((-1, 1))
    _each(random, draft, lambda event: _shift(event, by))


def clock(random: Random, draft: Draft) -> None:
    """The clock of a rank is ahead by seconds, or runs at another rate."""
    name = _file(random, draft)
    by, rate = random.choice(SHIFTS_US) * random.choice((-1, 1)), random.choice((1, 1, 1, 0, 1.5, 1 + 1e-6))
    for at in range(len(draft.events[name])):
        event = draft.take(name, at)
        if isinstance(event.get("ts"), (int, float)):
            event["ts"] = event["ts"] * rate
        _shift(event, by)


def _shift(event: Event, by: float) -> None:
    if isinstance(event.get("ts"), (int, float)):
        event["ts"] = event["ts"] + by


def together(random: Random, draft: Draft) -> None:
    """Events start when another does, or when it ends."""
    for name in _files(random, draft):
        rows = _some(random, draft, name)
        other = random.choice(draft.events[name])[0] if draft.events[name] else {}
        start = other.get("ts")
        if random.random() < 0.5 and all(isinstance(other.get(key), (int, float)) for key in ("ts", "dur")):
            start = other["ts"] + other["dur"]
        for at in rows:
            draft.take(name, at)["ts"] = start


def name(random: Random, draft: Draft) -> None:
    """An event is called something else."""
    value = random.choice(NAMES)
    _each(random, draft, lambda event: _set(event, "name", value))


def category(random: Random, draft: Draft) -> None:
    """An event is of another kind."""
    value = random.choice(CATEGORIES)
    _each(random, draft, lambda event: _set(event, "cat", value))


def place(random: Random, draft: Draft) -> None:
    """An event is of another process, thread, or phase."""
    key = random.choice(("pid", "tid", "tid", "ph"))
    value = (
        random.choice((*NUMBERS, "stream 7")) if key != "ph" else random.choice(("i", "B", "E", "M", "s", "f", None))
    )
    _each(random, draft, lambda event: _set(event, key, value))


def argument(random: Random, draft: Draft) -> None:
    """One argument of events is another value, or missing."""
    value = random.choice((*NUMBERS, *WORDS))
    pick = random.random()

    def change(event: Event) -> None:
        args = event.get("args")
        if isinstance(args, dict) and args:
            _set(args, sorted(args)[int(pick * len(args))], value)
        elif pick < 0.3:
            event["args"] = value if value is not ABSENT else {}

    _each(random, draft, change)


def no_arguments(random: Random, draft: Draft) -> None:
    """Events lack their arguments."""
    _each(random, draft, lambda event: _set(event, "args", random.choice((ABSENT, None, {}, [], "x"))))


def missing(random: Random, draft: Draft) -> None:
    """Events are missing."""
    for name in _files(random, draft):
        gone = set(_some(random, draft, name))
        draft.events[name] = [each for at, each in enumerate(draft.events[name]) if at not in gone]


def cut(random: Random, draft: Draft) -> None:
    """The head or the tail of a rank is missing, or all of it."""
    name = _file(random, draft)
    at = random.randint(0, len(draft.events[name]))
    draft.events[name] = draft.events[name][:at] if random.random() < 0.5 else draft.events[name][at:]


def twice(random: Random, draft: Draft) -> None:
    """Events are there twice."""
    for name in _files(random, draft):
        draft.events[name] += [draft.events[name][at] for at in _some(random, draft, name)]


def shuffled(random: Random, draft: Draft) -> None:
    """Events stand in another order."""
    for name in _files(random, draft):
        random.shuffle(draft.events[name])


def swapped(random: Random, draft: Draft) -> None:
    """Two files have each other's events, or one the events of both."""
    names = random.sample(sorted(draft.events), 2)
    first, second = (draft.events[name] for name in names)
    if random.random() < 0.6:
        draft.events.update(zip(names, (second, first), strict=True))
    else:
        draft.events[names[0]] = first + second


def same_rank(random: Random, draft: Draft) -> None:
    """A rank is there twice: in place of another, or under its number."""
    names = random.sample(sorted(draft.events), 2)
    if random.random() < 0.5:
        draft.events[names[0]] = list(draft.events[names[1]])
    draft.headers[names[0]] = copy.deepcopy(draft.headers[names[1]])


def header(random: Random, draft: Draft) -> None:
    """What a trace says of its run is missing, or something else."""
    for name in _files(random, draft):
        about = draft.headers[name] = copy.deepcopy(draft.headers[name])
        inner = about.get("distributedInfo")
        if isinstance(inner, dict) and inner and random.random() < 0.7:
            _set(inner, random.choice(sorted(inner)), random.choice((*NUMBERS, 3, 8, "gloo", "nccl")))
        else:
            key = random.choice((*sorted(about), "baseTimeNanoseconds"))
            _set(about, key, random.choice((*NUMBERS, 1_700_000_000_000_000_000)))


def facts(random: Random, draft: Draft) -> None:
    """Something that was recorded beside the traces is missing, or another value; changes nothing where none was."""
    if draft.others:
        at = draft.others[random.choice(sorted(draft.others))]
        while isinstance(at, (dict, list)) and at:
            key = random.choice(sorted(at)) if isinstance(at, dict) else random.randrange(len(at))
            inner = at[key]
            if isinstance(inner, (dict, list)) and inner and random.random() < 0.9:
                at = inner
                continue
            value = random.choice((0, -1, 0.5, 1e300, 10**18, None, "", "x", [], {}, ABSENT))
            if value is ABSENT:
                del at[key]
            else:
                at[key] = value
            return


EVENTS = (duration, duration, duration, scaled_duration, time, moved, together, name, category, place, argument)
EVENTS = (*EVENTS, argument, no_arguments, missing, missing, twice)
SETS = (clock, clock, cut, shuffled, swapped, same_rank, header, facts)
