"""What a CPU run saves without collectives that the script calls itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import mean

from dptune.advice import Saving
from dptune.measured import CommunicationFigures
from dptune.rule import RunView, Share

# All ranks have the result of these at the same moment, so each spends at least the transfer in them.
_SYMMETRIC = frozenset(
    {
        *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "barrier", "monitored_barrier"),
        *("reduce_scatter", "reduce_scatter_tensor", "full_tensor", "redistribute", "redistribute_local_tensor"),
    }
)
_UNSPLIT = 0.1  # of the exposed communication: more that is not split into transfer and waiting leaves a bound
_MAKES_CALLS = 0.8  # of a function's time in these calls: then the rest only prepares them or uses their result


def without_calls(
    run: RunView,
    lines: Collection[str],
    rows: Sequence[CommunicationFigures],
    spent: Sequence[float],
    *,
    one_sends: bool,
) -> Saving:
    """The saving without the calls at these lines: at least the time in them on each rank that is no waiting.

    A rank that waits there for another may wait in the next all-reduce instead. An upper bound where that is unknown,
    where one rank sends to the others, which would then do the work themselves, and where the saving may be zero.

    `spent` is the share of the steps of each rank in these calls. A function that does nothing else goes with them, by
    its stack samples.
    """
    account, usual, most = run.measured.account, mean(spent), max(spent)
    how = "the time in these calls in untraced steps"
    if found := _functions_of(run, lines, spent):
        names, shares = found
        usual, most = max(usual, mean(share.likely for share in shares)), max(most, *(share.most for share in shares))
        how += f", at most the time of {' and '.join(f'`{name}`' for name in names)} by stack samples"
    most = run.most_of_process(most, traced=False)
    functions = {call.function for facts in run.facts for call in facts.calls if (call.where or "") in lines}
    whole = len(run.facts) == (run.measured.known("world_size") or len(run.facts))
    unsplit = account.exposed_unsplit_ns > _UNSPLIT * account.exposed_communication_ns
    waiting = sum(row.exposed_ns - row.exposed_transfer_ns for row in rows) / account.window_ns
    least = min(spent) - run.unstretched(waiting)
    if not whole or unsplit or one_sends or not functions <= _SYMMETRIC or least <= 0:
        return run.bound(0.0, most, how)
    how += "; the lower end leaves out waiting for other ranks"
    return run.timed(least, (least + usual) / 2, most, how)


def _functions_of(run: RunView, lines: Collection[str], spent: Sequence[float]) -> tuple[list[str], list[Share]] | None:
    """The functions that make these calls, and the share of the steps of each rank in them.

    None where they do much else, and where stack samples are too few.
    """
    calls = [call for facts in run.facts for call in facts.calls if (call.where or "") in lines]
    functions = dict.fromkeys((call.caller, (call.where or "").rpartition(":")[0]) for call in calls)
    found = [run.sampled_share(name, file, training=True) if name and file else None for name, file in functions]
    shares = [each.by_rank for each in found if each is not None]
    if not functions or len(shares) < len(functions):
        return None
    total = [Share(*map(sum, zip(*(of[facts.rank] for of in shares), strict=True))) for facts in run.facts]
    if any(in_calls < _MAKES_CALLS * share.likely for in_calls, share in zip(spent, total, strict=True)):
        return None
    return [name.rpartition(".")[2] for name, _ in functions], total
