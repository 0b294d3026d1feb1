"""Facts that no run can have: found in one place, before any figure is made of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from itertools import islice
from math import inf, isfinite
from typing import Any

from dptune.finding import Finding
from dptune.runfile.discarded_gradients import DiscardedGradientFacts
from dptune.runfile.facts import Facts
from dptune.runfile.repeated_forward import FrozenFeatureFacts, RepeatedForwardFacts
from dptune.runfile.same_results import SameResultFacts
from dptune.runfile.window import Window
from dptune.trace.kineto.clock import LIMIT_NS
from dptune.trace.run import MOST_RANKS

PER_STEP = (
    "device_durations_ns",
    "loader_wait_ns",
    "loader_cpu_ns",
    "backward_ns",
    "backward_cpu_ns",
    "gc_ns",
    "compile_ns",
    "loader_batches",
    "loader_samples",
    "backwards",
    "unsynced_backwards",
    "unsynced_updates",
    "recomputed_ns",
    "buffer_sync_ns",
    "unused_search_ns",
)
# Scripts may give these as they like, and schedulers take a learning rate below 0.
_SIGNED = (
    *("losses", "learning_rates", "sampler_epoch", "local_rank", "bucket_cap_bytes", "bucket_caps_bytes"),
    "sums",  # of parameters
    "workers",  # of generators: -1 is the training process
)
_LOOKED_THROUGH_APART = ("windows", "settings")  # and torch's switches can be any number
# torch's switches that are on or off: a word or a number in their place is not what torch returned
_ON_OR_OFF = (
    *("anomaly_mode", "deterministic_algorithms", "backends.cuda.matmul.allow_tf32"),
    *(f"backends.cudnn.{name}" for name in ("allow_tf32", "benchmark", "deterministic")),
)
_MOST_OF_ALL = 2**63 - 1  # what data sets without an end give as their length
_LONGEST = 1e300
_SHOWN = 3  # facts that a finding names
_MOST_OF_A_SETTING = 1e9  # that advice may be to change: dptune sets none to more
_MOST = {
    **dict.fromkeys(("num_workers", "cores", "usable_cores", "torch_threads", "replicas", "local_rank"), MOST_RANKS),
    **dict.fromkeys(("batch_size", "prefetch_factor"), _MOST_OF_A_SETTING),
    **dict.fromkeys(("first_learning_rate", "default_learning_rate", "base_learning_rate"), _MOST_OF_A_SETTING),
}
# Of entries that are records: rules look at each, compare them in pairs and advise about each. A thousand keep any rule
# to seconds, and are what one rule may say; scripts make up to a few hundred of a kind.
MOST_ENTRIES = 1_000
_MOST_WINDOWS = 16  # a recording has four: untraced, light, detailed, noise
_SAME_STEPS: dict[type, tuple[str, ...]] = {
    RepeatedForwardFacts: ("step_ns", "again_ns", "graph_ns", "forward_ns"),
    FrozenFeatureFacts: ("step_ns", "spent_ns"),
    SameResultFacts: ("step_ns", "again_ns", "forward_ns"),  # and those of unread results
    DiscardedGradientFacts: ("passes", "discarded"),
}

NEEDED = ("rank", "world_size")  # without which facts are of no rank


def checked(facts: Facts, rank: int, lost: Mapping[str, str]) -> tuple[Facts, list[Finding]]:
    """The facts without those that hold what no run has, and a finding on these and on what was `lost`.

    Both are under `unread`, too. Raises ValueError for a rank that is not that of the file's name.
    """
    if facts.rank != rank:
        raise ValueError(f"the facts of rank {rank} claim to be of rank {facts.rank}")
    if not 1 <= facts.world_size <= MOST_RANKS:
        raise ValueError(f"the facts of rank {rank} claim {_shown(facts.world_size)} ranks")
    impossible = dict(_impossible_facts(facts))
    odd = dict(_odd_switches(facts))
    left_out = {**lost, **impossible, **{f"settings.{name}": why for name, why in odd.items()}}
    if not left_out:
        return facts, []
    kept = replace(facts, **{each.name: _default(each) for each in fields(facts) if each.name in impossible})
    kept.settings = {name: value for name, value in facts.settings.items() if name not in odd}
    kept.unread = {**kept.unread, **lost, **impossible, **odd}  # a switch by its own name, as where it was not read
    return kept, [Finding(code="facts-left-out", level="partial", text=_left_out(rank, left_out))]


def _impossible_facts(facts: Facts) -> Iterator[tuple[str, str]]:
    """By name each fact with something that no run has, and what that is."""
    for each in fields(facts):
        apart = each.name in (*_LOOKED_THROUGH_APART, *NEEDED)
        if wrong := "" if apart else next(_absurd(each.name, getattr(facts, each.name)), ""):
            yield each.name, wrong
    if len(facts.windows) > _MOST_WINDOWS:
        yield "windows", f"windows has {len(facts.windows):,} entries; a recording has at most {_MOST_WINDOWS}"


def _odd_switches(facts: Facts) -> Iterator[tuple[str, str]]:
    """By name each of torch's switches that is neither on nor off, and what it is."""
    for name in _ON_OR_OFF:
        value = facts.settings.get(name)
        if value is not None and not isinstance(value, bool):
            yield name, f"it must be true or false, but is {json.dumps(value):.40}"


def _default(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()


def _left_out(rank: int, lost: Mapping[str, str]) -> str:
    if len(lost) == 1:
        ((name, why),) = lost.items()
        return f"rank {rank}: its fact `{name}` is left out: {why}"
    shown = "; ".join(f"`{name}` ({why})" for name, why in islice(lost.items(), _SHOWN))
    more = f"; and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
    return f"rank {rank}: {len(lost)} of its facts are left out: {shown}{more}"


def _absurd(name: str, value: object) -> Iterator[str]:
    """What no run has, as `loaders[0].num_workers = -3`; what is inf or nan a live process may have held."""
    if is_dataclass(value):
        yield from _uneven(name, value)
        for dataclass_field in fields(value):
            if dataclass_field.name not in _LOOKED_THROUGH_APART:
                yield from _absurd(
                    f"{name}.{dataclass_field.name}".removeprefix("."), getattr(value, dataclass_field.name)
                )
    elif isinstance(value, list):
        if len(value) > MOST_ENTRIES and is_dataclass(value[0]):
            yield f"{name} has {len(value):,} entries; the limit is {MOST_ENTRIES:,}"
        for at, item in enumerate(value):
            yield from _absurd(f"{name}[{at}]", item)
    elif isinstance(value, (int, float)) and (isinstance(value, int) or isfinite(value)):
        field = name.rpartition(".")[2].partition("[")[0]
        most = _MOST.get(field, _MOST_OF_ALL if isinstance(value, int) else inf)  # squares of norms can be of any size
        if (value < 0 and field not in _SIGNED) or abs(value) > most:
            number = f"{value:.9g}" if abs(value) < _LONGEST else "a number of very many digits"
            yield f"{name} = {number}, which no run has"


def _uneven(name: str, value: object) -> Iterator[str]:
    """Lists of the same steps that differ in length."""
    lists = next((lists for kind, lists in _SAME_STEPS.items() if isinstance(value, kind)), ())
    lengths = {field: len(getattr(value, field)) for field in lists}
    if len(set(lengths.values())) > 1:
        yield f"{name} has {', '.join(f'{length:,} {field}' for field, length in lengths.items())} for the same steps"


def possible(facts: Facts) -> tuple[Facts, list[Finding]]:
    """The facts without the windows that no run can have, and a finding for each of those and for having none."""
    found: list[Finding] = []
    kept: list[Window] = []
    for window in facts.windows:
        again = any(window.name == each.name for each in kept)
        why = "another window before it has this name" if again else next(_impossible(window), "")
        if why:
            text = f"rank {facts.rank}: its window `{window.name[:40]}` is left out: {why}"
            found.append(Finding(code="window-impossible", level="partial", text=text))
        else:
            kept.append(window)
    if not facts.windows:
        text = f"rank {facts.rank} recorded no window: its facts hold no step"
        found.append(Finding(code="windows-missing", level="partial", text=text))
    return replace(facts, windows=kept), found


def _impossible(window: Window) -> Iterator[str]:
    """What about a window cannot be."""
    if not 0 <= window.first_step <= LIMIT_NS:
        yield f"it begins with step {_shown(window.first_step)}"
    for name, durations in (("step", window.durations_ns), ("step on the device", window.device_durations_ns or [])):
        for duration in durations:
            if not 0 < duration <= LIMIT_NS:
                yield f"a {name} took {_shown(duration)} ns"
    for name in PER_STEP:
        values: list[int] = getattr(window, name) or []
        if values and window.durations_ns and len(values) != window.steps:
            yield f"{name} holds {len(values):,} steps and durations_ns {window.steps:,}"
        for value in values:
            if not 0 <= value <= LIMIT_NS:
                yield f"{name} holds {_shown(value)}"
    for name in ("skipped_steps", "trace_text_bytes", "saving_ns"):
        if not 0 <= (getattr(window, name) or 0) <= LIMIT_NS:
            yield f"its {name} is {_shown(getattr(window, name))}"
    if window.taken_share is not None and not 0 <= window.taken_share <= 1:
        yield f"{window.taken_share:.3g} of the time of its cores were taken away"
    if any(len(each) != 2 or not 0 <= each[0] <= each[1] <= LIMIT_NS for each in window.collections_ns):
        yield "it collected garbage at impossible times"
    if any(not 0 <= number <= LIMIT_NS for call in window.collect_calls for number in (call.calls, call.spent_ns)):
        yield "its counts or times of gc.collect() calls are impossible"
    for waited, duration in zip(window.loader_wait_ns, window.durations_ns, strict=False):
        if waited > duration:
            yield f"a step of {duration:,} ns waited {waited:,} ns for its loader"
    for held, every in zip(window.unsynced_backwards, window.backwards, strict=False):
        if held > every:
            yield f"{held:,} of {every:,} backward calls ran under no_sync"


def _shown(number: int) -> str:
    return f"{number:,}" if abs(number) <= LIMIT_NS else "too large a number of"
