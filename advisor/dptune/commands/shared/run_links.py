"""The links of a run that was just recorded: known already, known of an earlier run, or measured now.

Those that are known are measured again where they are old (`dptune.runfile.link_age`); where that fails, they stay.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.commands.links import LEAST_MOST, SIZES
from dptune.errors import CaptureError
from dptune.runfile.link_age import age, in_words, is_fresh
from dptune.runfile.links import LINKS_JSON, NO_SWEEP, unmeasured

if TYPE_CHECKING:
    from dptune.capture.launch import Launch
    from dptune.capture.links import SweepRequest
    from dptune.capture.session import Recording
    from dptune.runfile.facts import Facts
    from dptune.runfile.links import LinkRecord

INTERRUPTED = 130  # the exit status
LIMIT_S = 10.0  # all of it, the start of the ranks included
_SHARDED_MOST = 64 * 1024**2  # bytes up to which it measures where parameters are sharded: their sizes are not recorded
_BACKENDS = {"gloo": "cpu", "nccl": "cuda", "rccl": "cuda"}  # and the device whose tensors a sweep sends
_BY_HAND = "measure them with `dptune links` on the same hosts"


@dataclass(frozen=True)
class Outcome:
    """What to say about it, why the links are unmeasured ("": they are known), and whether the user interrupted it."""

    line: str = ""
    unmeasured: str = ""
    interrupted: bool = False

    @property
    def lines(self) -> list[str]:
        """The sentences for the user."""
        why = f"links not measured: {unmeasured(self.unmeasured)}" if self.unmeasured else ""
        return [line for line in (self.line, why) if line]


def find(made: Recording, started: Launch, *, quiet: bool) -> Outcome:
    """Put links.json into the run folder, unless a fresh one beside it fits; nothing is raised, whatever goes wrong."""
    try:
        outcome = _find(made, started, quiet)
    except KeyboardInterrupt:
        outcome = Outcome(unmeasured="interrupted", interrupted=True)
    except Exception as error:  # the recording is whole
        outcome = Outcome(unmeasured=f"{type(error).__name__}: {error}")
    if outcome.unmeasured:
        _note(made.folder, outcome.unmeasured)
    return outcome


def communicated(facts: Facts) -> tuple[list[str], int]:
    """The kinds of collectives that a run needs to know, and the bytes of the largest message."""
    most = max([LEAST_MOST, *(ddp.gradient_bytes or 0 for ddp in facts.ddp)])
    sharded = bool(facts.fsdp or facts.engine)
    called = [call.function for call in facts.calls if "object" not in call.function]
    kinds = [kind for kind in ("all_gather", "reduce_scatter") if sharded or any(kind in name for name in called)]
    return ["all_reduce", *kinds], max(most, _SHARDED_MOST) if sharded else most


def _find(made: Recording, started: Launch, quiet: bool) -> Outcome:
    from dptune.capture.conclusion import facts_in
    from dptune.runfile import paths

    facts = facts_in(made.folder)
    traced = any(
        paths.trace(made.folder, rank, window).exists() for rank in made.ranks for window in ("light", "detailed")
    )
    if not traced or facts[0].world_size < 2 or not facts[0].backend:
        return Outcome()
    lying = _lying_there(made.folder, facts)
    if lying is not None and is_fresh(lying.measured):
        return Outcome()
    if not _all_here(started, facts):
        return _instead(lying, f"not all ranks are known to have run on this host: {_BY_HAND}")
    return _kept_or_measured(made, started, facts[0], lying, quiet)


def _kept_or_measured(made: Recording, started: Launch, first: Facts, lying: LinkRecord | None, quiet: bool) -> Outcome:
    """Fresh ones that were kept, else measured ones, else the old ones: of the run (`lying`), or kept."""
    from dptune.capture import link_cache
    from dptune.runfile import json_files

    kept = link_cache.load(first)
    kept = kept if kept is not None and _covers(kept, first) else None
    if kept is not None and is_fresh(kept.measured):
        json_files.write(made.folder / LINKS_JSON, kept)
        return Outcome(f"links were measured at {kept.measured}; `dptune links` measures them again")
    why = _unable(started, first)
    outcome = Outcome(unmeasured=why) if why else _measure(made, started, first, quiet)
    if not outcome.unmeasured:
        return outcome
    if lying is None and kept is not None:
        json_files.write(made.folder / LINKS_JSON, kept)
    return _instead(lying or kept, outcome.unmeasured, interrupted=outcome.interrupted)


def _instead(known: LinkRecord | None, why: str, *, interrupted: bool = False) -> Outcome:
    """What is said where links cannot be measured now: old ones that are known are used."""
    if known is None:
        return Outcome(unmeasured=why, interrupted=interrupted)
    old = in_words(age(known.measured, datetime.now().astimezone()))
    when = f"{old} ago" if old else f"at {known.measured or 'an unknown time'}"
    return Outcome(
        f"the links of this run were measured {when}; measuring them again failed: {why}", interrupted=interrupted
    )


def _measure(made: Recording, started: Launch, first: Facts, quiet: bool) -> Outcome:
    from dptune.capture import link_cache, links
    from dptune.measure.communication.links import fitted
    from dptune.runfile import json_files

    assert started.interpreter is not None
    if not quiet:
        _say(f"measuring the links between {first.world_size} ranks, {LIMIT_S:g} s at most (--no-links skips this)")
    asked = _asked(first)
    here = links.on_this_host(started.interpreter, first.world_size, asked)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dptune-links-") as scratch:
        errors = Path(scratch) / "errors.txt"
        try:
            record = links.sweep(here, asked, lambda *_: None, link_cache.connecting(first.environment), errors)
        except CaptureError as error:
            if error.exit_status == INTERRUPTED:
                return Outcome(unmeasured="interrupted", interrupted=True)
            return Outcome(unmeasured=_reason(errors) or error.message)
        if record is None:
            return Outcome(unmeasured="the ranks ended before the first measurement")
        if record.ended == "interrupted":
            return Outcome(unmeasured="interrupted", interrupted=True)
        record = fitted(record)
        lacking = [kind for kind in record.kinds if kind.fit is None]
        if any(kind.kind == "all_reduce" for kind in lacking):
            why = _reason(errors) if record.ended == "failed" else ""
            return Outcome(unmeasured=why or record.note or lacking[0].no_fit)
    json_files.write(made.folder / LINKS_JSON, record)
    measured = f"links measured in {time.monotonic() - begun:.1f} s"
    if lacking or any(kind.fit.confidence == "low" for kind in record.kinds if kind.fit):
        return Outcome(f"{measured}, with low confidence: the next recording measures them again")
    link_cache.store(first, record)
    return Outcome(f"{measured} and kept for later runs of these ranks")


def _asked(first: Facts) -> SweepRequest:
    from dptune.capture.links import SweepRequest

    kinds, most = communicated(first)
    backend = first.backend or ""
    return SweepRequest(kinds, [size for size in SIZES if size < 4 * most], backend, 7, LIMIT_S, LIMIT_S, LIMIT_S)


def _covers(record: LinkRecord, first: Facts) -> bool:
    """Whether a sweep has a fit of every kind of collective in the run, up to about the size of its messages."""
    kinds, most = communicated(first)
    known = {kind.kind: kind for kind in record.kinds if kind.fit is not None and kind.sizes}
    return all(
        kind in known and (known[kind].left_out or 4 * max(size.message_bytes for size in known[kind].sizes) > most)
        for kind in kinds
    )


def _lying_there(folder: Path, facts: Sequence[Facts]) -> LinkRecord | None:
    """The sweep of its links that reports of this run find already, in the folder or beside it."""
    from dptune.runfile.links import read

    hosts = {rank.host for rank in facts}
    for place in (folder, folder.resolve().parent):
        with contextlib.suppress(OSError, ValueError):
            record = read(place / LINKS_JSON)
            if (record.backend, record.world_size) == (facts[0].backend, facts[0].world_size):
                return record if set(record.hosts) == hosts else None
    return None


def _all_here(started: Launch, facts: Sequence[Facts]) -> bool:
    """Whether every rank ran on this host."""
    on_one_node = started.torchrun is not None and not started.torchrun.several_nodes
    heard_of_all = len(facts) == facts[0].world_size
    return (on_one_node or heard_of_all) and {rank.host for rank in facts} == {socket.gethostname()}


def _unable(started: Launch, first: Facts) -> str:
    """Why dptune cannot start ranks of its own that are connected as those of the run were; "" where it can."""
    if started.job is not None:
        return f"the launcher started dptune once per rank: {_BY_HAND}, under that launcher"
    device = first.device.kind if first.device else ""
    if _BACKENDS.get(first.backend or "") != ("cuda" if device == "rocm" else device):
        return f"{NO_SWEEP}{first.backend} with tensors on {device or 'an unknown device'}"
    if started.interpreter is None:
        return "the ranks' Python is unknown: `dptune links --python PATH` measures them"
    return ""


def _reason(errors: Path) -> str:
    """The first error that a rank of the sweep reported."""
    with contextlib.suppress(OSError):
        lines = errors.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line.removeprefix("dptune: ")[:200] for line in lines if line.startswith("dptune: rank ")), "")
    return ""


def _note(folder: Path, why: str) -> None:
    """Put the reason into run.json."""
    from dptune.runfile import json_files, paths
    from dptune.runfile.record import RunRecord

    with contextlib.suppress(OSError, ValueError):
        record = json_files.read(folder / paths.RUN_JSON, RunRecord)
        record.links_unmeasured = why
        json_files.write(folder / paths.RUN_JSON, record)


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads it
        print(f"dptune: {text}", file=sys.stderr, flush=True)
