"""What to do next, in one or two sentences: by the first recommendation, else by what limits the step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from dptune.advice import Advice, Change, Skipped
from dptune.advise.costliest import costliest_function, most_compute, most_host_time
from dptune.advise.expected_saving import expected_saving
from dptune.advise.limits import COMMUNICATION, IDLE, INPUT, LATE, UNSPLIT, Limit
from dptune.advise.recording_again import UPDATE
from dptune.advise.sentence import sentence
from dptune.advise.straggler import LEAST_NAMED_SHARE, Straggler, straggler
from dptune.finding import SCHEMA_NEWER, Finding
from dptune.measured import Measured, StragglerFigures

_AGAIN = "Nothing to change. Record again after the next change to the script."
_RECORDING = "they need a recording by `dptune profile`"
_SLOW = {  # what is slower on a late rank -> what to compare with the other ranks
    "host": ("host", "CPU pinning and NUMA node, other processes, work that only this rank does"),
    "kernels": ("device", "clock, temperature, power limit, other processes"),
    "copies": ("link to the device", "PCIe slot and NUMA node, pinned memory"),
}
_SUBJECTS = {  # class of the account that limits a step -> how the names of the settings begin that lessen it
    INPUT.class_ns: ("loader.num_workers", "loader.persistent_workers", "loader.prefetch_factor"),
    COMMUNICATION.class_ns: ("ddp.", "fsdp.", "wrapper"),
}


def advised(advice: Advice, late: Straggler | None, step_ns: int | None) -> str:
    """What the advice is to do, with its rule; `late` is the rank that the others wait for, if there is one."""
    named = f"{advice.rule} (low confidence)" if advice.confidence == "low" else advice.rule
    if advice.threatens_results:
        return f"{named}: {advice.remedy or sentence(advice.title)} Details: `dptune rules explain {advice.rule}`."
    if advice.changes and not advice.remedy_first:
        return f"{named}: {_change(advice, step_ns)}"
    if advice.remedy:
        return f"{named}: {advice.remedy}" + (f" Then: {_change(advice, step_ns)}" if advice.changes else "")
    if late is not None and late.is_subject_of(advice) and not late.figures.does_more:
        return f"{named}: {compare_ranks(late.figures)}"
    return f"{named}: {sentence(advice.title)} How: `dptune rules explain {advice.rule}`."


def _change(advice: Advice, step_ns: int | None) -> str:
    change = advice.changes[0]
    use = f"In {change.at}, use" if change.at else "Use"
    rows = change.paste.split("\n")
    first, *more = [row for row in rows if not row.lstrip().startswith("#")] or rows
    what = f"`{first} ...` (all lines: see {advice.rule})" if more else f"`{first}`"
    saves = f" {expected_saving(advice, step_ns)}" if advice.saves else ""
    more_changes = sum(not _is_pasted(further, change) for further in advice.changes[1:])
    beside = f" (plus {more_changes} more {'change' if more_changes == 1 else 'changes'}: see {advice.rule})"
    learning = " May change training results." if advice.numerics == "changes" else ""
    return f"{use} {what}{beside if more_changes else ''}.{saves}{learning}"


def _is_pasted(change: Change, pasted: Change) -> bool:
    """Whether the lines to paste for one change make the other, too."""
    argument = f"{change.knob.rpartition('.')[2]}={change.then}"
    return change.at == pasted.at and re.search(rf"\b{re.escape(argument)}\b", pasted.paste) is not None


def about_straggler(late: Straggler, advice: Sequence[Advice]) -> str:
    """Where a late rank heads the page and the first advice is on something else: what to do about the rank."""
    remedy = late.remedy(advice)
    if remedy is advice[0]:
        return ""
    return f" For rank {late.figures.rank}: {compare_ranks(late.figures) if remedy is None else f'see {remedy.rule}.'}"


def compare_ranks(late: StragglerFigures) -> str:
    """What to compare between the late rank and the others, by what takes longer on it."""
    named = next((difference for difference in late.differences if difference.share >= LEAST_NAMED_SHARE), None)
    if named is None:
        return (
            f"Open the trace of rank {late.rank} in https://ui.perfetto.dev and compare a step with the same step of "
            "another rank."
        )
    if named.kind in _SLOW:
        slow, compared = _SLOW[named.kind]
        return f"Compare the {slow} of rank {late.rank} with the others: {compared}."
    where = f" ({named.at})" if named.known("at") else ""
    if named.gap_before:
        within = "" if named.kind == "gap" else f"in `{named.short}`{where} "
        return f"Find out what rank {late.rank} does {within}before `{named.gap_before}`: Python, file I/O or sleeps."
    return f"Find out what differs on rank {late.rank} in `{named.short}`{where}."


def with_comparison(advice: Iterable[Advice], measured: Measured, busy_ns: Mapping[int, float] | None) -> list[Advice]:
    """The advice; that on the straggler which names nothing to change with what to compare on that rank."""
    items = list(advice)
    late = straggler(measured, busy_ns) if measured.known("account") else None
    if late is None or late.figures.does_more:
        return items
    unclear = [not item.changes and not item.remedy and late.is_subject_of(item) for item in items]
    remedy = {"remedy": compare_ranks(late.figures)}
    return [item.model_copy(update=remedy) if bare else item for item, bare in zip(items, unclear, strict=True)]


_DAMAGED = ("trace-partial", "file-unreadable", "trace-missing")


def _damage(findings: Sequence[Finding]) -> str:
    """What to do about traces that were given and cannot be read in full; empty where others were not given."""
    codes = {finding.code for finding in findings}
    if "ranks-missing" in codes or codes.isdisjoint(_DAMAGED):
        return ""
    return "Copy the damaged or missing traces again from where they were recorded, or record again."


def unadvised(
    measured: Measured,
    limit: Limit | None,
    whole: bool,
    recorded: bool,
    findings: Sequence[Finding] = (),
    *,
    names_rank: bool = True,
) -> str:
    """What to do where there is no advice; `names_rank`: whether it may be to look at the straggler."""
    last = measured.known("straggler")
    if limit is not None and limit.class_ns == LATE.class_ns and last is not None and names_rank:
        return compare_ranks(last)
    if limit is UNSPLIT and (damage := _damage(findings)):
        return damage
    if limit is UNSPLIT:
        return "Read the traces of all ranks together: `dptune report` takes several files, or their folder."
    if not whole and any(finding.code == SCHEMA_NEWER for finding in findings):
        return UPDATE
    if not whole and not recorded:
        return "Record the run, so that every rule can look at it: `dptune profile train.py`."
    if limit is IDLE and (host := most_host_time(measured)):
        return f"No rule has a remedy. {host} Check whether every step needs it."
    if limit:
        return "No rule has a remedy. Open the trace in https://ui.perfetto.dev and look at where the device waits."
    if not whole:
        compute = most_compute(measured)
        lacking = "Nothing to change. `dptune report --section skipped` lists the rules that could not run."
        return f"No rule has a remedy. {compute}" if compute else lacking
    if costliest := costliest_function(measured):
        return f"No rule has a remedy. {costliest} Check whether every step needs it."
    compute = most_compute(measured)
    return f"Nothing to change. {compute}" if compute else _AGAIN


def see_also(advice: Sequence[Advice], limit: Limit | None) -> str:
    """Where the first advice is on something else than what limits the step: the first that is on that."""
    names = _SUBJECTS.get(limit.class_ns, ()) if limit else ()
    on_it = (
        recommendation
        for recommendation in advice
        if any(subject.startswith(names) for subject in _subjects(recommendation))
    )
    found = next(on_it, None)
    if not names or found is None or found is advice[0]:
        return ""
    unsure = " (low confidence)" if found.confidence == "low" else ""
    return f" For the bottleneck itself, see {found.rule}{unsure}."


def _subjects(advice: Advice) -> list[str]:
    """The settings that it is on: those it changes, and the one that its fingerprint names where it changes none."""
    return [*(change.knob for change in advice.changes), advice.fingerprint.partition(":")[2]]


def lacking(
    advice: Sequence[Advice], limit: Limit | None, unanswered: Collection[str], skipped: Sequence[Skipped]
) -> str:
    """Of a step that something limits, of which only notes are said: what most rules lack that could not run."""
    if limit is None or not unanswered or not advice or advice[0].impact != "low":
        return ""
    (why, many), *_ = Counter(
        _RECORDING if skipped_rule.needs else skipped_rule.reason
        for skipped_rule in skipped
        if skipped_rule.rule in unanswered
    ).most_common(1)
    what = "rule could explain this bottleneck but was" if many == 1 else "rules could explain this bottleneck but were"
    return f" {many} more {what} skipped: {why}."
