"""What `dptune compare` says first: the verdict, one sentence on why, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator

from dptune import __version__
from dptune.advice import Headline
from dptune.advise.limits import milliseconds
from dptune.advise.sentence import sentence
from dptune.compare.comparison import compare
from dptune.compare.result import Compared, Comparison, FactDifference
from dptune.compare.sides import Sides
from dptune.knobs import Value
from dptune.measured import digits

_LEAST_DIFFERENCE = 0.005
_MUCH_FASTER = 2 / 3  # of the time, from which on a factor is said and no percentage
_AT_MOST = 3  # classes in the sentence
_WORTH_SHARE = 0.2  # of the largest: a class that changed by less is not in the sentence
_FACTS_AT_MOST = 2
_EXPOSED = "exposed communication and waiting"
_NAMES = {
    "compute_ns": "compute",
    "exposed_transfer_ns": _EXPOSED,
    "exposed_waiting_ns": _EXPOSED,
    "exposed_unsplit_ns": _EXPOSED,
    "exposed_communication_ns": _EXPOSED,
    "copy_ns": "copies",
    "memset_ns": "memory set",
    "input_idle_ns": "waiting for input",
    "gc_idle_ns": "garbage collection",
    "malloc_idle_ns": "memory calls",
    "sync_idle_ns": "blocking calls",
    "launch_idle_ns": "launching",
    "dependency_idle_ns": "queued work",
    "host_idle_ns": "the host",
    "input_or_host_idle_ns": "input or host",
    "unexplained_idle_ns": "idle, cause unknown",
}
# Facts that can move a class; those that begin like this are reported first where the class changed most.
_MOVES: dict[str, tuple[str, ...]] = {
    _EXPOSED: ("ddp", "fsdp", "accumulation.", "backend", "environment.NCCL_", "environment.GLOO_"),
    "compute": ("precision.", "autocast", "compiled", "settings.", "optimizer", "device.torch_threads", "environment."),
    "copies": ("loader.pin_memory", "loader"),
    "waiting for input": ("loader",),
    "launching": ("compiled", "optimizer"),
    "the host": ("loader", "optimizer", "compiled"),
    "input or host": ("loader", "optimizer", "compiled"),
}


def build_comparison(sides: Sides) -> Comparison:
    """The comparison of two sides. Raises RunError where what is named as repeats is not."""
    compared = compare(sides)
    return Comparison(dptune=__version__, headline=headline(compared), compared=compared)


def headline(compared: Compared) -> Headline:
    """Verdict, why, next."""
    verdict = compared.verdict
    said = f"{verdict.outcome[:1].upper()}{verdict.outcome[1:]}"
    subject = f"B is {verdict.outcome}" if verdict.outcome in ("better", "worse") else said
    text = f"{subject}: {verdict.reason}."
    if verdict.outcome == "inconclusive" and (measured := _measured(compared)):
        text = f"No verdict yet: {measured}. {sentence(verdict.reason)}"
    return Headline(verdict=text, why=why(compared), next=_next(compared))


def why(compared: Compared) -> str:
    """One sentence: by how much B differs, in which classes of the account, and what was set otherwise."""
    parts = [_difference(compared), _classes(compared), _settings(compared)]
    first, *rest = [part for part in parts if part]
    return f"{first}: {'; '.join(rest)}." if rest else f"{first}."


def _measured(compared: Compared) -> str:
    """What is known without a verdict: `B is 4.0x as fast in this pair of runs`."""
    ratio = compared.known("ratio")
    if not ratio or abs(ratio - 1) < _LEAST_DIFFERENCE or any(run.unjudged for run in compared.runs):
        return ""
    pair = "in this pair of runs" if len(compared.runs) == 2 else "by the medians of the runs"
    fast = f"{digits(1 / ratio)}x as fast" if ratio < _MUCH_FASTER else ""
    slow = f"{digits(ratio)}x as slow" if ratio > 1 / _MUCH_FASTER else ""
    than = f"{_percent(abs(ratio - 1))} {'slower' if ratio > 1 else 'faster'}"
    return f"B is {fast or slow or than} {pair}"


def changes(compared: Compared) -> list[tuple[str, int]]:
    """The classes that changed, by their name, in nanoseconds of a step, largest first."""
    found: dict[str, int] = {}
    for category in compared.known("categories") or ():
        name = _NAMES[category.category]
        found[name] = found.get(name, 0) + category.difference_ns
    return sorted(((name, ns) for name, ns in found.items() if ns), key=lambda change: -abs(change[1]))


def _difference(compared: Compared) -> str:
    time, step = compared.time_ns, compared.step_ns
    if time.known("difference") is None:
        return f"The difference is unknown: {time.missing['difference']}"
    traced = ", traced" if compared.basis == "traced" else ""
    if not time.difference:
        return f"A and B take the same time{traced}"
    than = "slower" if time.difference > 0 else "faster"
    share = f"({_percent(abs(compared.ratio - 1))}{traced})"
    if not _batch_differs(compared):
        return f"B is {milliseconds(abs(step.difference))} per step {than} {share}"
    return f"B is {abs(time.difference) / 1e3:.3g} us per sample {than} {share}"


def _batch_differs(compared: Compared) -> bool:
    return any(condition.differs for condition in compared.conditions if condition.name == "samples per step")


def _classes(compared: Compared) -> str:
    found = changes(compared)
    if not found:
        return ""
    least = _WORTH_SHARE * abs(found[0][1])
    largest_changes = [(name, ns) for name, ns in found[:_AT_MOST] if abs(ns) >= least]
    begin = "per step, " if _batch_differs(compared) else ""  # the difference before it is of a sample
    return begin + ", ".join(f"{name} {'+' if ns > 0 else '-'}{milliseconds(abs(ns))}" for name, ns in largest_changes)


def _settings(compared: Compared) -> str:
    facts = compared.known("facts")
    if facts is None:
        return ""
    if not facts:
        return "no recorded fact differs"
    likely_facts = [fact for fact in _likely(compared, facts) if fact.name != "command"] or facts
    more = len(facts) - len(likely_facts[:_FACTS_AT_MOST])
    said = " and ".join(map(_went, likely_facts[:_FACTS_AT_MOST]))
    return f"{said}{f' ({more} more settings differ)' if more > 1 else ' (one more setting differs)' if more else ''}"


def _likely(compared: Compared, facts: list[FactDifference]) -> list[FactDifference]:
    """Facts in the order of the classes that they can move, those of the class that changed most first."""
    prefixes = [prefix for name, _ in changes(compared) for prefix in _MOVES.get(name, ())]
    place = {
        fact.name: next((at for at, prefix in enumerate(prefixes) if fact.name.startswith(prefix)), len(prefixes))
        for fact in facts
    }
    return sorted(facts, key=lambda fact: place[fact.name])


def _went(fact: FactDifference) -> str:
    return f"{fact.name} changed from {_values(fact.a)} to {_values(fact.b)}"


def _values(values: list[Value]) -> str:
    return " or ".join("unset" if value is None else str(value) for value in values)


def _next(compared: Compared) -> str:
    verdict = compared.verdict
    if verdict.outcome == "not comparable":
        return "Record A and B again with the same " + " and ".join(_apart(compared)) + "."
    if verdict.outcome != "inconclusive":
        return "See the classes, ranks and settings that changed below."
    remedies = dict.fromkeys(run.remedy for run in compared.runs if run.unjudged)
    if remedies:
        return " ".join(remedies)
    fewest = verdict.runs_needed
    sides = " -- ".join(" ".join(f"{side}{n}" for n in range(1, fewest + 1)) for side in ("a", "b"))
    if verdict.known("p_value") is None:
        return (
            f"Record at least {fewest} runs per side, interleaved in random order, then `dptune compare {sides}`; or "
            f"let `dptune compare --script` run both: two commits, folders or commands."
        )
    return "Record more runs per side, interleaved in random order: the interval narrows with their number."


def _apart(compared: Compared) -> Iterator[str]:
    return (condition.name for condition in compared.conditions if condition.differs)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"
