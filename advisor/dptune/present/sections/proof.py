"""What came of running a change, as a page of text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from dptune.advise.sentence import sentence
from dptune.knobs import is_patched, written
from dptune.present.amounts import Hole, ns_as_ms, several
from dptune.present.lines import Line, heading, labelled, wrapped
from dptune.present.sections.advice import change, changes
from dptune.present.table import Cell, Column, table
from dptune.prove.result import PAIRED, Proof, Side, SideName, Trial
from dptune.runfile.window import MOST_TAKEN

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_TRIALS = (
    Column("trial"),
    Column("side", right=False),
    Column("came to", right=False),
    Column("step ms"),
    Column("fastest tenth"),
    Column("steps"),
    Column("s"),
)


def _compared(proof: Proof) -> str:
    """What the verdict's ratio is the median of."""
    if proof.pairs < PAIRED:
        return "all pairs of a trial of B and one of A"
    return "the pairwise means of the ratios within pairs of trials"


def line_of(proof: Proof, what: str) -> str:
    """The state and what happens next, in one line."""
    ran = Counter(trial.side for trial in proof.trials if trial.status == "ran")
    words = f"{what} (finished: {ran['A']} of A, {ran['B']} of B"
    ratio = proof.known("ratio")
    return f"{words}; so far B takes {change(ratio)})" if ratio is not None else f"{words})"


def page(proof: Proof, width: int, predicted: str = "") -> Iterator[Line]:
    """Verdict, what was predicted, sides, what it does to learning, and the trials."""
    yield from labelled("Verdict", _verdict(proof), width, role="strong")
    if predicted:
        yield from labelled("Predicted", predicted, width)
    yield from labelled("Why", f"{sentence(proof.reason)} {sentence(proof.learning.reason)}", width)
    for side, variant in (("A", proof.a), ("B", proof.b)):
        yield from labelled(side, f"{_named(variant)}: {_step(proof, side)}", width)  # type: ignore[arg-type]
    if proof.b.patched:
        settings = " ".join(
            f"--set {name}={written(then)}" for name, then in proof.changes.items() if is_patched(name, then)
        )
        of = settings if settings and not proof.advice else f"--advice {proof.advice}"
        words = f"B runs {' and '.join(proof.b.patched)} with the patch of `dptune report --patch {of}`"
        yield from labelled("Patch", f"{words}.", width)
    if any(trial.beside and trial.status == "ran" for trial in proof.trials):
        words = f"The script does not run in a copy of {proof.a.directory} alone: trials also had links to its siblings"
        yield from labelled("Copy", f"{words}, so a script that writes there writes to your files.", width)
    for words in proof.rewritten:
        yield from labelled("Script", sentence(words), width, role="warning")
    for name, why in _without_effect(proof).items():
        yield from labelled("Setting", f"{name}: {why}", width, role="warning")
    for path, (trial, why) in _written_over(proof).items():
        words = f"{path}, while trial {trial.number} ({trial.side}) ran; trials had no copy of it: {why}"
        yield from labelled("Changed", words, width, role="warning")
    for path, why in dict(each for trial in proof.trials for each in trial.not_copied.items()).items():
        yield from labelled("Lacking", f"{path}; trials had no copy of it: {why}", width, role="warning")
    yield from heading("Trials", width)
    yield from table(_TRIALS, [_row(trial) for trial in proof.trials], width)
    words = (
        f"Times are of untraced steps: mean and 10th percentile. The verdict is on {proof.objective}: the median of "
        f"B / A over {_compared(proof)}; it can differ from the ratio of the medians. If the sides are equal, the "
        f"error rate is at most {100 * proof.level:.1f} %."
    )
    yield from wrapped(words, width, "  ", role="dim")
    lost = [
        counted
        for counted in proof.trials
        if counted.status == "ran" and not counted.set_aside and counted.taken_share > MOST_TAKEN
    ]
    if lost:
        numbers = ", ".join(str(counted.number) for counted in lost)
        words = (
            f"In trial{'s' if len(lost) > 1 else ''} {numbers} (counted), other virtual machines took more than "
            f"{100 * MOST_TAKEN:g} % of the CPU time: the host is busy, so differences are harder to see."
        )
        yield from wrapped(words, width, "  ", role="warning")
    for trial in proof.trials:
        if trial.note:
            yield from wrapped(f"Trial {trial.number} ({trial.side}): {trial.note}", width, "  ", "    ")


def _named(side: Side) -> str:
    """Its name, and of a commit what that is for certain."""
    is_commit = _COMMIT.fullmatch(side.directory) and not side.directory.startswith(side.name)
    return f"{side.name} ({side.directory[:10]})" if is_commit else side.name


def _verdict(proof: Proof) -> str:
    ratio = proof.known("ratio")
    if proof.ended == "cannot run":
        return "Cannot be tried: one side does not run."
    if proof.ended == "without effect" and proof.trials[-1].has_change:
        return "No verdict: both sides are the same."
    if proof.ended == "without effect":
        some = proof.changes.keys() - proof.trials[-1].in_vain
        words = f"not all of {proof.b.name} took effect" if some else f"{proof.b.name} did not take effect"
        return f"No verdict: {words}."
    if proof.ended == "not comparable":
        return "Inconclusive: the sides cannot be compared."
    if ratio is None:
        return f"Inconclusive: {proof.missing['ratio']}."
    words = {"better": "Better", "worse": "Worse", "inconclusive": "Inconclusive"}[proof.outcome]
    other = ". Training results differ" if proof.learning.outcome == "other" else ""
    mean, fast = change(ratio), change(proof.fast_ratio)
    last = proof.looks[-1] if proof.looks else None
    if last is not None and last.runs == proof.pairs:  # between looks there is no interval
        mean += f" ({changes(last.low_ratio, last.high_ratio)})"
        fast += f" ({changes(last.fast_low_ratio, last.fast_high_ratio)})"
    with_it = f"{words}: with {proof.b.name} the {proof.objective}"
    if proof.decided_by == "fast":
        return f"{with_it} of the fastest steps (which decides) is {fast}; of all steps {mean}{other}."
    return f"{with_it} is {mean}, of the fastest steps {fast}{other}."


def _step(proof: Proof, side: SideName) -> str:
    step_ns = proof.known("a_step_ns" if side == "A" else "b_step_ns")
    if step_ns is None:
        ran = any(trial.side == side and trial.status == "ran" for trial in proof.trials)
        return "no trial ran next to one of the other side" if ran else "no trial ran"
    return f"{ns_as_ms(step_ns)} ms per step, the median of {several(proof.pairs, 'trial')}"


def _without_effect(proof: Proof) -> dict[str, str]:
    return {name: why for trial in proof.trials for name, why in trial.without_effect.items()}


def _written_over(proof: Proof) -> dict[str, tuple[Trial, str]]:
    """Each file or folder with the last trial that changed it, and why it was not copied."""
    return {path: (trial, why) for trial in proof.trials for path, why in trial.written_over.items()}


def _row(trial: Trial) -> list[Cell]:
    step_ns = trial.known("step_ns")
    return [
        str(trial.number),
        trial.side,
        "set aside" if trial.set_aside else trial.status,
        Hole(trial.missing["step_ns"]) if step_ns is None else ns_as_ms(step_ns),
        Hole(trial.missing["step_ns"]) if step_ns is None else ns_as_ms(trial.fast_step_ns),
        str(trial.steps),
        f"{trial.seconds:.0f}",
    ]
