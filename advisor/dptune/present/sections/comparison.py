"""What changed between A and B as a page of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dptune.compare.result import Compared, ComparedRun, Comparison, Pair, RankDifference, TrafficDifference
from dptune.knobs import Value
from dptune.present.amounts import Hole, data, number, percent, several, shown, times
from dptune.present.lines import Line, Role, heading, labelled, wrapped
from dptune.present.sections.traffic import DIRECTIONS
from dptune.present.step_classes import NAMES
from dptune.present.table import Cell, Column, table

_AT_MOST = 12
_NAMES = NAMES | {
    "exposed_communication_ns": "exposed communication and waiting",
    "input_or_host_idle_ns": "input or host",
}
_RUNS = (Column("side", right=False), Column("run", right=False, least=12), Column("step ms"), Column("us/sample"))
_CATEGORIES = (
    Column("class", right=False),
    Column("A ms"),
    Column("B ms"),
    Column("B - A"),
    Column("share"),
)
_PHASES = (
    Column("phase", right=False),
    Column("A compute"),
    Column("B compute"),
    Column("B - A"),
    Column("A exposed"),
    Column("B exposed"),
    Column("B - A"),
)
_RANKS = (
    Column("rank"),
    Column("A ms"),
    Column("B ms"),
    Column("B - A"),
    Column("compute"),
    Column("exposed"),
    Column("idle"),
    Column("late"),
)
_TRAFFIC = (
    Column("kind", right=False),
    Column("A calls"),
    Column("B calls"),
    Column("A moved"),
    Column("B moved"),
    Column("A ms"),
    Column("B ms"),
    Column("B - A"),
)


def page(comparison: Comparison, width: int) -> Iterator[Line]:
    """Every section of the comparison, as lines."""
    headline, compared = comparison.headline, comparison.compared
    yield from labelled("Verdict", headline.verdict, width, role="strong")
    yield from labelled("Why", headline.why, width)
    yield from labelled("Next", headline.next, width)
    for section in (_runs, _verdict, _comparable, _categories, _phases, _ranks, _collectives, _copies, _waits, _facts):
        yield from section(compared, width)


def signed(value: float) -> str:
    """A difference with its sign."""
    if abs(value) < 0.005:
        return "0"
    return f"{'+' if value > 0 else '-'}{number(max(abs(value), 0.01))}"


def _runs(compared: Compared, width: int) -> Iterator[Line]:
    yield from heading("Runs", width)
    per_sample = compared.objective == "time per sample"
    columns = _RUNS if per_sample else _RUNS[:-1]
    rows = [_run(run)[: len(columns)] for run in compared.runs]
    yield from table(columns, rows, width)
    steps = "medians of untraced steps"
    if compared.basis == "traced":
        steps = "means of traced steps, with profiler overhead"
    inferred = "; ~ batch size inferred from the trace" if _by_inferred_batch(compared) else ""
    yield from wrapped(f"Times are {steps}{inferred}.", width, "  ", role="dim")
    for remark in compared.remarks:
        yield from wrapped(f"{remark[:1].upper()}{remark[1:]}.", width, "  ", role="warning")


def _run(run: ComparedRun) -> list[Cell]:
    return [
        run.side,
        run.name,
        shown(lambda: run.step_ns, _ms),
        shown(lambda: run.time_ns, lambda ns: f"{'~' if run.samples_inferred else ''}{number(ns / 1e3)}"),
    ]


def _by_inferred_batch(compared: Compared) -> bool:
    """Whether the verdict is on a time per sample of samples that a trace shows, and nobody recorded."""
    return compared.objective == "time per sample" and any(run.samples_inferred for run in compared.runs)


def _verdict(compared: Compared, width: int) -> Iterator[Line]:
    inferred = " (inferred batch size)" if _by_inferred_batch(compared) else ""
    yield from heading(f"Verdict on the {compared.objective}{inferred}", width)
    verdict = compared.verdict
    yield from labelled("Outcome", verdict.outcome, width, column=13, indent="  ")
    median = shown(lambda: compared.ratio, _slower)
    yield from labelled("Difference", f"{median} (ratio of the medians)", width, column=13, indent="  ")
    if verdict.known("p_value") is None:
        yield from labelled("Tested", "no: see the verdict", width, column=13, indent="  ")
        return
    between = f"{_slower(verdict.low_ratio)} to {_slower(verdict.high_ratio)}"
    middle = f"{_slower(verdict.ratio)}: median over all pairs of one run of A and one of B"
    sure = f"{100 * (1 - verdict.level):.0f} % interval"
    yield from labelled(sure, f"{between}; {middle}", width, column=13, indent="  ")
    tested = f"exact rank-sum test, two-sided, on one time per run: p = {verdict.p_value:.2g}"
    yield from labelled("Tested", tested, width, column=13, indent="  ")


def _comparable(compared: Compared, width: int) -> Iterator[Line]:
    yield from heading("Comparable?", width)
    for condition in compared.conditions:
        a, b = (_values(values) for values in (condition.a, condition.b))
        text = f"{a} in A, {b} in B" if condition.differs else _values([*dict.fromkeys([*condition.a, *condition.b])])
        if condition.unknown:
            every = len(condition.unknown) == len(compared.runs)
            known = "" if every else f"{text}; "
            whose = "any run" if every else ", ".join(condition.unknown)
            text = f"{known}not recorded in {whose}; assumed equal"
        role: Role = "error" if condition.differs else "plain"
        yield from labelled(condition.name, text, width, column=18, indent="  ", role=role)


def _categories(compared: Compared, width: int) -> Iterator[Line]:
    label = "scaled" if compared.basis == "untraced" else "traced"
    yield from heading(f"Breakdown of the difference per step ({label})", width)
    found = compared.known("categories")
    if found is None:
        yield from wrapped(str(Hole(compared.missing["categories"])), width, "  ")
        return
    rows: list[list[Cell]] = [
        [
            _NAMES[category.category],
            _ms(category.a_ns),
            _ms(category.b_ns),
            signed(category.difference_ns / 1e6),
            shown(lambda one=category: one.share, percent),  # type: ignore[misc]
        ]
        for category in found
        if category.a_ns or category.b_ns
    ]
    whole = [
        sum(ends)
        for ends in zip(*((category.a_ns, category.b_ns, category.difference_ns) for category in found), strict=True)
    ]
    rows.append(["the step", _ms(whole[0]), _ms(whole[1]), signed(whole[2] / 1e6), percent(1) if whole[2] else "0 %"])
    yield from table(_CATEGORIES, rows, width)


def _phases(compared: Compared, width: int) -> Iterator[Line]:
    found = compared.known("phases")
    yield from heading("Phases: compute, exposed communication and waiting (ms per step)", width)
    if found is None:
        yield from wrapped(str(Hole(compared.missing["phases"])), width, "  ")
        return
    rows = [[phase.phase, *_both(phase.compute_ns), *_both(phase.exposed_communication_ns)] for phase in found]
    yield from table(_PHASES, rows, width)


def _ranks(compared: Compared, width: int) -> Iterator[Line]:
    found = compared.known("ranks")
    if found is None or len(found) < 2:
        return
    yield from heading(f"Ranks ({len(found):,})", width)
    largest = sorted(found, key=lambda rank: -abs(rank.step_ns.known("difference") or 0))[:_AT_MOST]
    yield from table(_RANKS, [_rank(rank) for rank in largest], width)
    if len(found) > _AT_MOST:
        yield from wrapped(_more(len(found), "more rank"), width, "  ", role="dim")
    words = "Step time, then B - A: step, compute, exposed communication and waiting, idle, lateness (ms per step)."
    yield from wrapped(words, width, "  ", role="dim")


def _rank(rank: RankDifference) -> list[Cell]:
    step = rank.step_ns
    others = (rank.compute_ns, rank.exposed_communication_ns, rank.idle_ns, rank.lag_ns)
    return [str(rank.rank), *_both(step), *map(_change, others)]


def _collectives(compared: Compared, width: int) -> Iterator[Line]:
    title = "Collectives (traced, per rank and step, waiting included)"
    yield from _traffic(title, "collectives", compared, width)


def _copies(compared: Compared, width: int) -> Iterator[Line]:
    yield from _traffic("Copies (traced, per rank and step)", "copies", compared, width)


def _traffic(title: str, name: str, compared: Compared, width: int) -> Iterator[Line]:
    found: list[TrafficDifference] | None = compared.known(name)
    yield from heading(title, width)
    if found is None:
        yield from wrapped(str(Hole(compared.missing[name])), width, "  ")
    elif not found:
        yield from wrapped("None inside the steps.", width, "  ")
    else:
        rows = [
            [
                _kind(traffic.kind),
                *_ends(traffic.calls_per_step, times),
                *_ends(traffic.moved_bytes, lambda size: data(round(size))),
                *_both(traffic.time_ns),
            ]
            for traffic in found[:_AT_MOST]
        ]
        yield from table(_TRAFFIC, rows, width)


def _waits(compared: Compared, width: int) -> Iterator[Line]:
    yield from heading("Waiting", width)
    yield from labelled("For input", _pair(compared.loader_wait_ns), width, column=13, indent="  ")
    straggler = compared.known("straggler")
    if straggler is None:
        yield from labelled("For ranks", str(Hole(compared.missing["straggler"])), width, column=13, indent="  ")
        return
    a, b = (_values(sorted(set(ranks))) for ranks in (straggler.a_ranks, straggler.b_ranks))
    late = f"rank {a} in A, rank {b} in B; late by {_pair(straggler.lag_ns)}"
    yield from labelled("For ranks", late, width, column=13, indent="  ")


def _facts(compared: Compared, width: int) -> Iterator[Line]:
    yield from heading("Settings that differ", width)
    found = compared.known("facts")
    if found is None:
        yield from wrapped(str(Hole(compared.missing["facts"])), width, "  ")
    elif not found:
        yield from wrapped("None of the recorded settings.", width, "  ")
    for fact in found or ():
        where = f" ({fact.at})" if fact.at else ""
        text = f"{fact.name}{where}: {_values(fact.a)} in A, {_values(fact.b)} in B"
        yield from wrapped(text, width, "  ", "    ")


def _pair(pair: Pair) -> str:
    if pair.known("difference") is None:
        return str(Hole(pair.missing["difference"]))
    return f"{_ms(pair.a)} ms in A, {_ms(pair.b)} ms in B ({signed(pair.difference / 1e6)} ms per step)"


def _ends(pair: Pair, write: Callable[[float], str]) -> list[Cell]:
    return [shown(lambda: pair.a, write), shown(lambda: pair.b, write)]


def _both(pair: Pair) -> list[Cell]:
    return [*_ends(pair, _ms), _change(pair)]


def _change(pair: Pair) -> Cell:
    return shown(lambda: pair.difference, lambda ns: signed(ns / 1e6))


def _ms(ns: float) -> str:
    return number(ns / 1e6)


def _slower(ratio: float) -> str:
    if ratio == 1:
        return "0 %"
    return f"{percent(abs(ratio - 1))} {'slower' if ratio > 1 else 'faster'}"


def _values(values: list[Value] | list[int]) -> str:
    return " or ".join(map(_value, values)) or "not known"


def _value(value: Value) -> str:
    if value is None:
        return "unset"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _kind(kind: str) -> str:
    """The direction of a copy in words, as in a report; the kind of a collective as it is."""
    short, _, memory = kind.partition(" ")
    return f"{DIRECTIONS[short]} {memory}".rstrip() if short in DIRECTIONS else kind


def _more(found: int, thing: str) -> str:
    return f"and {several(found - _AT_MOST, thing)}: see --format json"
