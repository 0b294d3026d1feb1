"""What the user reads at the end: what happened, where the recording is, what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dptune.capture.session import Recording
from dptune.errors import CaptureError
from dptune.knobs import UNKNOWN
from dptune.runfile import paths
from dptune.runfile.exit_status import exit_text
from dptune.runfile.links import LINKS_JSON

_COUNTS = (
    "dptune counts calls of an optimizer's step(); one inside torch.compile, or in a Python process started with "
    "-E, -I or without the script's environment, is not seen. Use dptune.profile() in the code to mark steps"
)

_STARTED = (
    "profile that program directly: dptune profile {}; a program that the script starts is recorded only with RANK and "
    "WORLD_SIZE in its environment, as a rank"
)


def lines(made: Recording, links: Sequence[str] | None = None) -> list[str]:
    """The sentences, in order. `links`: what is said of the links between ranks; None where nobody looked after them.

    Raises CaptureError, with the script's own status, where nothing was recorded or the script hung.
    """
    ending, count = made.ending, len(made.ranks)
    status = exit_text(ending.exit_status) + (f": {ending.note}" if ending.note else "")
    if made.hung:
        raise CaptureError(ending.note, _after_a_hang(made))
    if not count:
        _nothing(made, status)
        return ["none of the requested ranks ran on this node"]
    outcome = _how_it_ended(made, status)
    traced = _traced(made.folder, made.ranks)
    counted = f"{count} {'rank' if count == 1 else 'ranks'} recorded in {made.folder}"
    if len(traced) < count:
        which = f"steps of {len(traced)} were traced" if traced else "no step was traced"
        counted = f"{count} {'rank' if count == 1 else 'ranks'} started, {which}: {made.folder}"
    vain = [
        f"{name}: {why}" if f"{UNKNOWN}: " in why else f"{name} did not take effect: {why}"
        for name, why in made.without_effect.items()
    ]
    beside = made.folder.parent
    unmeasured = len(traced) > 1 and beside.name == paths.RUNS.name and not (beside / LINKS_JSON).exists()
    if links is None:
        hint = "tip: run `dptune links` once; predictions need the link's latency and bandwidth"
        links = [hint] if unmeasured else []
    beside_it = [f"also trained, but was not recorded: {', '.join(made.unrecorded)}"] if made.unrecorded else []
    return [*outcome, *vain, counted, *beside_it, *links, f"next: dptune report {made.folder}"]


def _after_a_hang(made: Recording) -> str:
    option = "--stall-timeout" if made.steps else "--first-step-timeout"
    parts = [f"raise {option} if the script needs longer"]
    if made.stacks is not None:
        parts.insert(0, f"the stacks of all threads are in {made.stacks}")
    if made.complete:
        parts.append(f"next: dptune report {made.folder}")
    return "; ".join(parts)


def _traced(folder: Path, ranks: Sequence[int]) -> list[int]:
    return [rank for rank in ranks if any(paths.trace(folder, rank, name).exists() for name in ("light", "detailed"))]


def _nothing(made: Recording, status: str) -> None:
    how = made.ending.how
    if how == "no-steps" and made.unrecorded:
        first = made.unrecorded[0]
        what = f"nothing was recorded: only a program started by the script made optimizer steps ({first})"
        raise CaptureError(what, _STARTED.format(first))
    if how == "no-steps":
        what = "the script ended without a step of a torch optimizer: nothing was recorded"
        raise CaptureError(what, _COUNTS)
    if how == "script-ended":
        if made.alone:
            hint = "--ranks takes ranks of the process group, counted from 0"
            raise CaptureError("none of the requested ranks trained: nothing was recorded", hint)
        return
    what = "was interrupted" if how == "interrupted" else f"ended with {status}"
    hint = f"the script's own output is above; {made.folder}/run.json records how it ended"
    raise CaptureError(f"the script {what} before its first optimizer step", hint, made.exit_status)


def _how_it_ended(made: Recording, status: str) -> Sequence[str]:
    how = made.ending.how
    if not made.complete:
        partial = {
            "script-ended": "the script ended before all windows were full: the recording is partial",
            "interrupted": "the script was interrupted: the recording is partial",
        }
        return [partial.get(how, f"the script failed ({status}): the recording is partial")]
    if how == "failed":
        return [f"the script ended with {status} after the recording was complete"]
    if made.ended_by_us and how == "complete":
        steps = f"after {made.steps} optimizer steps"
        return [f"the script was stopped {steps}; with --continue it runs to its end"]
    return []
