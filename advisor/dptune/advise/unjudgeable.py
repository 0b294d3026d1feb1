"""The headline of a run without reliable data: what is wrong with it, and how to get a better recording."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from dptune.advice import Advice, Headline
from dptune.advise import disturbance, impossible
from dptune.advise.next_step import advised
from dptune.advise.recording_again import recording
from dptune.advise.sentence import sentence
from dptune.advise.trust import NO_VERDICT, OF_TIMES
from dptune.finding import Finding
from dptune.measure.steps.repeating import NO_BACKWARD
from dptune.measure.steps.sources import NO_LAUNCHES
from dptune.trace.kineto.body import SECOND

NO_DATA = "Not enough data"
_LOSSES = (
    "device-events-lost",
    "device-events-misdated",
    "device-events-outside-steps",
    "device-behind-steps",
    "device-stream-missing",
    "communication-missing",
)
_REMEDIES = {
    **dict.fromkeys(
        _LOSSES,
        "Record again with fewer steps and without shapes and stacks: a shorter recording loses fewer events. To judge "
        "only the ranks without losses, pass only their traces.",
    ),
    **dict.fromkeys(
        (disturbance.BUSY, impossible.OPTIMIZER),
        "Stop other processes on this machine, or give the job dedicated cores (`taskset`), then record again.",
    ),
    disturbance.UNSTEADY: "Record again on an idle machine, after steps have settled (`dptune profile --warmup 50`).",
    "device-unknown": "dptune reads torch.profiler traces of CPUs and of CUDA, ROCm, XPU, MTIA and Gaudi devices.",
    "recording-short": "Let the script run to 11 optimizer steps at least, and record fewer: "
    "`dptune profile --warmup 1 --untraced 4 --light 3 --detailed 1` before your script.",
    "steps-missing": "For a verdict on training, call `profiler.step()` after each optimizer step, or record with "
    "`dptune profile train.py`. `dptune report {path}--full` shows kernels, collectives and copies of the whole "
    "recording.",
    "steps-few": "Record at least 3 steady steps: `dptune profile --light 5 train.py`, or a larger `active` in "
    "torch.profiler's schedule.",
    "device-events-missing": "Record again with every activity of the profiler on, or with `dptune profile train.py`.",
    "device-unprofiled": "Record again with ProfilerActivity.CUDA on every rank, or with `dptune profile train.py`. To "
    "judge only the other ranks, pass only their traces.",
    "gpu-events-missing": "Record again with ProfilerActivity.CUDA, or with `dptune profile train.py`.",
    **dict.fromkeys(
        (
            *("events-unreadable", "fields-unreadable", "negative-durations"),
            *("device-events-damaged", "device-events-untimed", "durations-missing", "times-scaled", "events-twice"),
        ),
        "The trace file is damaged or was edited. Copy it again from where it was recorded, or record again. To judge "
        "only the other ranks, pass only their traces.",
    ),
    "events-cut": "Export the whole recording, or record again with `dptune profile train.py`. To judge only the other "
    "ranks, pass only their traces.",
    **dict.fromkeys(
        ("clock-backwards", "clock-uneven", "device-events-outside-steps"),
        "Record again, and do not change the system clock while recording. To judge only the other ranks, pass only "
        "their traces.",
    ),
    "device-behind-steps": "Record more steps: `dptune profile --light 20 train.py`, or a larger `active` in "
    "torch.profiler's schedule. Or call torch.cuda.synchronize() before the recording starts.",
    **dict.fromkeys(
        ("steps-asynchronous", "collectives-differ", "sizes-differ"),
        "Check that all files are of the same run, or record again. To judge only the other ranks, pass only their "
        "traces.",
    ),
    "several-ranks-in-one-file": "Write one trace per rank, or record with `dptune profile train.py`.",
}
_INFERENCE_FEW = "This looks like inference: record more steps, with a larger `active` in torch.profiler's schedule."
_INFERENCE = (
    "Without a backward pass there is no verdict on training; to see single steps, call `profiler.step()` after each "
    "step. `dptune report {path}--full` shows kernels, collectives and copies of the whole recording."
)
# A truncated trace lost these with its end, not while recording.
_CUT_OFF = (*_LOSSES, "steps-missing", "steps-few", "gpu-events-missing", "device-events-missing")
_COPY_AGAIN = (
    "A trace file is truncated. Copy it again from where it was recorded; if it is truncated there too, the process "
    "was stopped while writing it: record again."
)
_BROKEN_OFF = ("rank-killed", "recording-stopped", "recording-broken-off")  # to be seen to before recording again


def unjudgeable(
    findings: Sequence[Finding], advice: Sequence[Advice], sources: Sequence[str] = (), *, inference: bool = False
) -> Headline:
    """The remedy for the first finding that has one; before it what to do about a risk that is sure, or about the
    first sure advice where one on speed needs no step times.

    `sources` are the files that were read: a single one is named in commands. `inference`: whether the steps show no
    backward pass and no optimizer.
    """
    why = [finding for finding in findings if finding.level == "unjudgeable"]
    remedy = next((_REMEDIES[fault.code] for fault in why if fault.code in _REMEDIES), recording(findings))
    partial = next((finding for finding in findings if finding.code == "trace-partial"), None)
    cut_off = partial if any(fault.code in _CUT_OFF for fault in why) else None
    if cut_off is not None:
        remedy = _REMEDIES["several-ranks-in-one-file"] if SECOND in cut_off.text else _COPY_AGAIN
    if why[0].code == "steps-missing" and NO_BACKWARD in why[0].text and remedy == _REMEDIES["steps-missing"]:
        remedy = _INFERENCE
    if NO_LAUNCHES in why[0].text and remedy == _REMEDIES["steps-missing"]:
        remedy = _REMEDIES["device-events-missing"]
    if why[0].code == "steps-few" and inference:
        remedy = _INFERENCE_FEW
    remedy = remedy.replace("{path}", f"{shlex.quote(sources[0])} " if len(sources) == 1 else "")
    broken = next((other_finding for other_finding in findings if other_finding.code in _BROKEN_OFF), None)
    if broken is not None:
        said = "" if broken.text in why[0].text else f"{sentence(broken.text)} "
        remedy = f"{said}Fix that first, then record again."
    label, verdict = NO_DATA, sentence(NO_VERDICT)
    sure = [recommendation for recommendation in advice if _is_sure(recommendation)]
    if all(fault.code in OF_TIMES for fault in why):
        label = "Times not reliable"
        verdict = "The times of this run are not reliable, so nothing is recommended on speed."
        if any(recommendation.kind == "time" for recommendation in sure):
            verdict = (
                "The times of this run are not reliable: only recommendations that do not depend on them are given."
            )
    if label == NO_DATA:
        sure = [recommendation for recommendation in sure if recommendation.kind == "risk"]
    if sure and broken is None:
        remedy = f"{advised(sure[0], None, None)} {_then(remedy)}"
    rule = sure[0].rule if sure and broken is None else ""
    reason = cut_off if cut_off is not None and len(sources) == 1 else why[0]  # of which the others are consequences
    return Headline(label=label, verdict=verdict, why=sentence(reason.text), next=remedy, rule=rule)


def is_why(finding: Finding, why: str) -> bool:
    """Whether it is what Why says already, but for the capital letter and the full stop."""
    return finding.text[1:] == why[1:].removesuffix(".")


def _then(remedy: str) -> str:
    """The remedy as the second thing to do, which says once to record again."""
    if "ecord again" in remedy:
        return f"Then {remedy[:1].lower()}{remedy[1:]}"
    return f"Then record again: {remedy[:1].lower()}{remedy[1:]}"


def _is_sure(advice: Advice) -> bool:
    return advice.kind in ("time", "risk") and advice.confidence != "low"
