"""Runs trials of both sides in turn until the verdict is clear, hopeless, or there is no more time."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from dptune.errors import RunError
from dptune.prove import folder as folders
from dptune.prove import judging, order, sequential
from dptune.prove.result import Ended, Look, Proof, SideName, Trial, in_place
from dptune.prove.run_trial import check_unchanged, is_in_vain, run_side
from dptune.prove.sequential import Times
from dptune.prove.task import Task

_LEAST_FAILED = 2  # trials of one side that must fail before any of it ran: it cannot run
_PAIR = 2  # trials
_A_WHILE_S = 120  # from which on it is given in minutes
_FIRST_AGAIN, _AGAIN = 2, 0.5  # trials that are run again: of the first ones, and of all that count
_ENDED_ILL = ("cannot run", "without effect", "not comparable")

Show = Callable[[Proof, str], None]


def prove(task: Task, folder: Path, show: Show = lambda proof, what: None) -> Proof:
    """Run what is missing of the trials in `folder`, and decide. It goes on with what was interrupted there.

    `show` gets the proof so far and what happens next, before each trial and at the end.
    """
    with folders.alone(folder):
        trials, what = _known(task, folder)
        if what:
            show(judging.proof(task, trials, "under way"), what)
        began = time.monotonic() - sum(earlier.seconds for earlier in trials)
        seed = _seed(task)

        def warn(words: str) -> None:
            show(judging.proof(task, trials, "under way"), words)

        while (ended := _over(task, trials, time.monotonic() - began)) is None:
            number, side = len(trials) + 1, next(order.following(seed, in_place(trials)))
            show(judging.proof(task, trials, "under way"), f"trial {number}: {task.side(side).name}")
            left_s, beside = (
                task.budget_s - (time.monotonic() - began),
                any(earlier.beside and earlier.status == "ran" for earlier in trials),
            )
            done = run_side(task, side, number, folder, left_s, warn, beside)
            if not beside and _may_lack(task, side, done, trials):
                warn(_again_beside(task, side, done))
                done = run_side(task, side, number, folder, left_s - done.seconds, warn, True)
            if done.status == "interrupted":
                ended = "interrupted"
                break
            check_unchanged(task, side)
            trials.append(_set_aside(done) if _is_to_be_run_again(done, trials) else done)
            folders.write(folder, judging.proof(task, trials, "under way"))
            if words := trials[-1].note if trials[-1].set_aside else _how_long(task, trials):
                show(judging.proof(task, trials, "under way"), words)
        proof = judging.proof(task, trials, ended)
        folders.write(folder, proof)
        show(proof, "")
        return proof


def _may_lack(task: Task, side: SideName, done: Trial, before: Sequence[Trial]) -> bool:
    """Whether a copy may lack what the script reads: it failed there, and nothing ran in one before."""
    failed = done.status in ("failed", "no steps")
    return (
        failed
        and task.recorded
        and task.sources[side] is not None
        and all(earlier.status != "ran" for earlier in before)
    )


def _again_beside(task: Task, side: SideName, done: Trial) -> str:
    folder = task.sources[side]
    return (
        f"trial {done.number} failed in a copy of {folder}: {done.note}; running it again with links to the siblings "
        f"of that folder and of its parents: writes there change your files"
    )


def _is_to_be_run_again(done: Trial, before: Sequence[Trial]) -> bool:
    """Whether its cores were others' for much of its time; of a machine on which they always are only some are."""
    again = sum(earlier.set_aside for earlier in before)
    return judging.disturbed(done) and again < max(_FIRST_AGAIN, (len(before) - again) * _AGAIN)


def _set_aside(trial: Trial) -> Trial:
    share = f"{100 * trial.taken_share:.0f} % of the CPU time was taken by other virtual machines"
    return trial.model_copy(update={"set_aside": True, "note": f"{share}: run again, and not counted"})


def _how_long(task: Task, trials: Sequence[Trial]) -> str:
    """After the first pair: how long a verdict takes, or that the time will not do for the first look; else empty."""
    if len(in_place(trials)) != _PAIR:
        return ""
    pair_s = sum(earlier.seconds for earlier in trials)
    counts = [count for count in sequential.LOOKS if count <= task.most] or [task.most]
    if pair_s * counts[0] <= task.budget_s:
        least_s, most_s = pair_s * counts[0], min(pair_s * counts[-1], task.budget_s)
        unit, of = ("s", 1) if least_s < _A_WHILE_S else ("min", 60)
        times = dict.fromkeys(f"{seconds / of:.0f}" for seconds in (least_s, most_s))
        return f"a verdict takes about {' to '.join(times)} {unit} in all"
    enough = max(1, int(task.budget_s / pair_s))
    return (
        f"{task.budget_s:g} s allows about {enough} {'trial' if enough == 1 else 'trials'} per side; a verdict needs "
        f"{counts[0]}. Use --time-limit {math.ceil(pair_s * counts[0])}"
    )


def _known(task: Task, folder: Path) -> tuple[list[Trial], str]:
    """The trials that were made before of the very same sides, and a word on them; others are set aside."""
    what = ""
    if (folder / folders.PROOF).exists():
        try:
            before = folders.read(folder / folders.PROOF)
        except RunError:
            what = f"starting over: earlier trials cannot be read (kept in {folders.set_aside(folder)})"
        else:
            if _goes_on(task, before):
                return before.trials, _taken_over(before)
            other = "could not be run" if _is_of(task, before) else "used different code, steps or hardware"
            aside = folders.set_aside(folder)
            what = f"starting over: {_earlier(before)} {other} (kept in {aside})"
    again = folders.take_back(folder, lambda before: _goes_on(task, before))
    return (again.trials, _taken_over(again)) if again is not None else ([], what)


def _is_of(task: Task, proof: Proof) -> bool:
    """Whether its trials are of the very same sides."""
    bounds = task.bounds
    made = (proof.a, proof.b, proof.machine, proof.warmup, proof.steps, proof.least_s)
    return made == (task.a, task.b, judging.machine(), bounds.warmup, bounds.steps, bounds.least_s)


def _goes_on(task: Task, proof: Proof) -> bool:
    return _is_of(task, proof) and proof.ended not in _ENDED_ILL


def _taken_over(proof: Proof) -> str:
    """A word on trials made before; empty where there are none."""
    if not proof.trials:
        return ""
    return f"continuing with {_earlier(proof)}, the last from {proof.trials[-1].began}"


def _earlier(proof: Proof) -> str:
    return f"{len(proof.trials)} earlier {'trial' if len(proof.trials) == 1 else 'trials'}"


def _over(task: Task, trials: Sequence[Trial], spent_s: float) -> Ended | None:
    ran = {side: len(judging.ran(trials, side)) for side in ("A", "B")}
    for side, count in ran.items():
        if not count and sum(earlier.side == side for earlier in trials) >= _LEAST_FAILED:
            return "cannot run"
    if any(is_in_vain(task.changed, earlier) for earlier in trials if earlier.side == "B" and earlier.status == "ran"):
        return "without effect"
    if any(earlier.status == "ran" and judging.is_changed_already(task, earlier) for earlier in trials):
        return "without effect"
    if all(ran.values()) and judging.incomparable(trials):
        return "not comparable"
    a, b = judging.times(trials)
    last = sequential.look(a, b)
    if last is not None and (clear := _clear(task, last, a, b)):
        return clear
    if len(a) >= task.most or len(in_place(trials)) >= 2 * task.most + 2 * _LEAST_FAILED:
        return _by_then(task, trials, "all trials made")
    if spent_s + max((earlier.seconds for earlier in trials), default=0.0) > task.budget_s:
        return _by_then(task, trials, "out of time")
    return None


def _by_then(task: Task, trials: Sequence[Trial], ended: Ended) -> Ended:
    """What trials come to that go on no longer: of those that went on after a verdict it may be that."""
    seen = judging.looks(trials)
    return "decided" if task.within is not None and seen and sequential.decides(seen[-1]) else ended


def _clear(task: Task, seen: Look, a: Sequence[Times], b: Sequence[Times]) -> Ended | None:
    """Whether a look ends the trials. With a limit a difference below it does not, as long as there may be more."""
    by = sequential.decides(seen)
    ratio = seen.fast_ratio if by == "fast" else seen.ratio
    if task.within is not None and seen.runs < task.most:
        narrow = seen.high_ratio - seen.low_ratio <= 2 * task.within
        return ("decided" if by else "narrow") if narrow else None
    if task.limit is None:
        return "decided" if by else "hopeless" if sequential.hopeless(seen, a, b) else None
    if by and (ratio < 1 or ratio > 1 + task.limit or seen.runs >= task.most):
        return "decided"
    return "excluded" if sequential.at_most(a, b) <= 1 + task.limit else None


def _seed(task: Task) -> int:
    return zlib.crc32(f"{task.a.model_dump_json()}{task.b.model_dump_json()}".encode())
