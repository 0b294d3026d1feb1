"""How each rank comes to collectives: how late, in which steps, and why; and whom the others wait for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from dptune.measure.communication.lag import Lateness, lags
from dptune.measure.communication.matching import MatchedCollective
from dptune.measured import Account, ArrivalFigures, LagCause, StepLag, StragglerFigures

ALONE = "lateness needs all ranks of a collective, at least two, and its process group"
UNREPLAYED = "the steps were not replayed"
UNREAD = "it computes longer, and its operations were not read: add it to --detail-ranks"
UNSHAPED = "no detailed window with the shapes of tensors was read"
NEVER = "no rank arrived at a collective later than the others"
TURNS = "no rank is much later than the others"
_IDLE: tuple[LagCause, ...] = ("input", "gc", "host", "unexplained")
_LEAST_COVER = 0.5  # a cause that covers less of the lag is not the cause
_LEAST_PART = 0.5  # of all lag, from which on one rank is the straggler
_LEAST_PART_OF_TWO = 0.7
_FEW_RANKS, _LEAST_TIMES = 8, 3.0  # of more ranks, how many times as late as the next one a straggler is
_LEAST_LATE, _MOST_LATE = 3, 0.6  # steps: fewer may be chance; of all steps: in more it is late in the median step
_MORE = 0.01  # from this share on, more operations than the mean of the others are more work
_AS_MUCH = 0.5  # of how much longer a rank computes, that is as much longer; less is not
CAUSE_OF_CLASS: dict[str, LagCause] = {
    "input_idle_ns": "input",
    "copy_ns": "copies",
    "memset_ns": "copies",
    "gc_idle_ns": "gc",
    "malloc_idle_ns": "host",
    "sync_idle_ns": "host",
    "launch_idle_ns": "host",
    "host_idle_ns": "host",
    "exposed_transfer_ns": "communication",
    "exposed_waiting_ns": "communication",
    "exposed_unsplit_ns": "communication",
    "dependency_idle_ns": "unexplained",
    "unexplained_idle_ns": "unexplained",
}


@dataclass(frozen=True)
class Computing:
    """What a rank computes in a step: how many operations, and for how long.

    `usual_ns` is what those outside of the optimizer would take without interruption: of each name as many times its
    quick ones (the quartile) as there are. `optimizer_ns` is the same of the optimizer's, which are as many and as
    large on each rank, whatever samples it has; None where they are not known.
    """

    operations: float
    compute_ns: float
    usual_ns: float
    optimizer_ns: float | None
    on_cpu: bool


def arrivals(
    matches: Sequence[MatchedCollective],
    late: Sequence[Lateness],
    computing: Mapping[int, Computing],
    recorded: Collection[int] = (),
) -> dict[int, ArrivalFigures]:
    """By rank, from comparable collectives; empty where there is none.

    `recorded` are ranks whose operations are not here: what each of these computes more of is not known.
    """
    took_part: Counter[int] = Counter()
    steps: dict[int, set[int]] = defaultdict(set)
    for match in matches:
        took_part.update(match.ranks.tolist())
        for rank in match.ranks.tolist():
            steps[rank].add(match.step)
    by_rank: dict[int, list[Lateness]] = defaultdict(list)
    for lateness in late:
        by_rank[lateness.rank].append(lateness)
    by_step = lags(late)
    whole = _Whole.of(computing.values())
    return {
        rank: _figures(
            took_part[rank],
            by_rank[rank],
            [StepLag(number=step, lag_ns=by_step.get((step, rank), 0)) for step in sorted(steps[rank])],
            _compute(computing.get(rank), whole),
            rank in computing and computing[rank].on_cpu,
            known=rank not in recorded,
        )
        for rank in sorted(steps)
    }


def straggler(ranks: Mapping[int, ArrivalFigures], account: Account) -> StragglerFigures | str:
    """The rank with half of all lag or more, of two ranks 70 %, over all steps; or why there is none.

    One of two ranks always has half. Equal ones of a healthy run had 53 %, one that slept had all. Of many ranks
    that are each a little late in turn, the straggler is the one far later than the others in the median step.
    """
    if not ranks or not account.window_ns:
        return ALONE
    lag_ns = {rank: sum(step.lag_ns for step in figures.steps) for rank, figures in ranks.items()}
    worst = max(lag_ns, key=lambda rank: lag_ns[rank])
    if not lag_ns[worst]:
        return NEVER
    part = _LEAST_PART if len(ranks) > 2 else _LEAST_PART_OF_TWO
    if lag_ns[worst] < part * sum(lag_ns.values()) and not _stands_out(worst, ranks):
        return TURNS
    latest: dict[int, int] = defaultdict(int)
    for figures in ranks.values():
        for step in figures.steps:
            latest[step.number] = max(latest[step.number], step.lag_ns)
    steps = ranks[worst].steps
    late = late_steps(ranks[worst])
    return StragglerFigures(
        rank=worst,
        lag_ns=round(median(step.lag_ns for step in late)),
        late_share=len(late) / len(steps),
        steps_share=sum(0 < step.lag_ns == latest[step.number] for step in late) / len(late),
        waiting_share=account.share("exposed_waiting_ns"),
        missing={"gain_share": UNREPLAYED, "work_ratio": UNSHAPED},
    )


def _stands_out(worst: int, ranks: Mapping[int, ArrivalFigures]) -> bool:
    """Whether a rank of many is late several times as long as any other, in the median step."""
    others = (figures.lag_ns for rank, figures in ranks.items() if rank != worst)
    return len(ranks) > _FEW_RANKS and ranks[worst].lag_ns >= max(1, _LEAST_TIMES * max(others))


def late_steps(arrival: ArrivalFigures) -> list[StepLag]:
    """The steps of a rank that is late in a minority of them, as in every second one; else all steps.

    It is late by half of its mean lag or more in `_LEAST_LATE` steps, and in no more than `_MOST_LATE` of all.
    """
    steps = arrival.steps
    late = [step for step in steps if 2 * step.lag_ns * len(steps) >= sum(each.lag_ns for each in steps) > 0]
    return late if _LEAST_LATE <= len(late) <= _MOST_LATE * len(steps) else steps


def _figures(
    collectives: int,
    late: Sequence[Lateness],
    steps: list[StepLag],
    compute: LagCause,
    on_cpu: bool,
    *,
    known: bool,
) -> ArrivalFigures:
    more: dict[str, float] = defaultdict(float)
    explained = [lateness for lateness in late if lateness.more_ns]
    for lateness in explained:
        for name, more_ns in lateness.more_ns.items():
            more[name] += more_ns
    lag_ns = sum(lateness.late_ns for lateness in explained)
    cause, covers = _cause(more, lag_ns, compute, on_cpu)
    missing = {}
    if cause == compute and not known:
        cause = covers = None
        missing = dict.fromkeys(("cause", "cause_share"), UNREAD)
    elif cause is None:
        why = "it was late to no collective" if lag_ns <= 0 else "no single cause explains half of its lag"
        why = why if explained or not late else "no earlier collective shows when each rank started"
        missing = {"cause": why, "cause_share": why}
    return ArrivalFigures(
        collectives=collectives,
        last_share=len(late) / collectives,
        lag_ns=round(median(step.lag_ns for step in steps)),
        steps=steps,
        cause=cause,
        cause_share=covers,
        more_ns={name: round(more_ns) for name, more_ns in more.items() if round(more_ns)},
        missing=missing,
    )


@dataclass(frozen=True)
class _Whole:
    """What all ranks compute together."""

    ranks: int
    operations: float
    compute_ns: float
    usual_ns: float
    optimizer_ns: float
    optimizing: int  # ranks whose optimizer's time is known

    @classmethod
    def of(cls, computing: Collection[Computing]) -> _Whole:
        """The sums over ranks."""
        return cls(
            len(computing),
            sum(each.operations for each in computing),
            sum(each.compute_ns for each in computing),
            sum(each.usual_ns for each in computing),
            sum(each.optimizer_ns or 0.0 for each in computing),
            sum(1 for each in computing if each.optimizer_ns),
        )


def _compute(computing: Computing | None, whole: _Whole) -> LagCause:
    """More operations, or larger ones: all of those take longer, and the optimizer's do not. Else slower ones."""
    others = whole.ranks - 1
    if computing is None or not others:  # it, or each other rank, has no step that is accounted for
        return "slower compute"
    if computing.operations * others > (1 + _MORE) * (whole.operations - computing.operations):
        return "more compute"
    if not computing.optimizer_ns or whole.optimizing < whole.ranks:
        return "slower compute"
    longer = _times(computing.compute_ns, whole.compute_ns, others) - 1
    larger = _times(computing.usual_ns, whole.usual_ns, others) - 1
    slower = _times(computing.optimizer_ns, whole.optimizer_ns, others) - 1
    return "more compute" if larger >= _AS_MUCH * longer > slower else "slower compute"


def _times(value: float, whole: float, others: int) -> float:
    """How many times the mean of that number of others."""
    return value * others / (whole - value) if whole > value else 1.0


def _cause(
    more: Mapping[str, float], lag_ns: float, compute: LagCause, on_cpu: bool
) -> tuple[LagCause | None, float | None]:
    totals: dict[LagCause, float] = defaultdict(float)
    for name, more_ns in more.items():
        totals[CAUSE_OF_CLASS.get(name, compute)] += more_ns
    if on_cpu and compute == "slower compute" and totals[compute] > totals["host"] > 0:
        totals[compute] += totals.pop("host")  # what runs between the operators runs on the same cores
    netted = _netted(totals | _netted({cause: totals[cause] for cause in _IDLE}))
    cause = max(netted, key=lambda lag_cause: netted[lag_cause])
    lag_ns = max(lag_ns, sum(netted.values()))
    covers = netted[cause] / lag_ns if lag_ns > 0 else 0.0
    return (cause, covers) if covers >= _LEAST_COVER else (None, None)


def _netted(more: Mapping[LagCause, float]) -> dict[LagCause, float]:
    """The same sum, after what shrank is taken off what grew, or what grew off what shrank, each in proportion."""
    grew = sum(each for each in more.values() if each > 0)
    shrank = -sum(each for each in more.values() if each < 0)
    left = max(grew, shrank) - min(grew, shrank)
    return {
        cause: each * left / max(grew, shrank) if each and (each > 0) == (grew > shrank) else 0.0
        for cause, each in more.items()
    }
