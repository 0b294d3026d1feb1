"""One launcher's part in a recording: run the script, watch it, and say in run.json how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from dptune.capture import effect, gpu_readings, launch, processes, progress, stacks, topology
from dptune.capture.conclusion import conclude, facts_in
from dptune.capture.folder import RunFolder
from dptune.capture.injected.record.plan import Plan
from dptune.capture.launch import Launch
from dptune.capture.options import Options
from dptune.capture.out_of_memory import MemoryKills
from dptune.capture.progress import ProgressLine
from dptune.capture.signals import Signals
from dptune.capture.watch import Watch, Watched, leftovers
from dptune.errors import CaptureError
from dptune.runfile.record import Ending, RunRecord, Schedule

_OTHERS_END_WITHIN_S = 20.0  # launchers that share the folder, after this one
_OTHERS_NOTICE_WITHIN_S = 3.0  # that they hang as well, before this one ends its ranks and thereby theirs
_LEFT_END_WITHIN_S = 3.0  # what a script started and left
_WORKERS_END_WITHIN_S = 8.0  # a loader's worker looks every 5 s whether its rank still lives


@dataclass(frozen=True)
class Recording:
    """What came of it: the folder, how it ended, the ranks that were recorded, and the status to end with.

    `leads`: whether this launcher reports to the user, where a launcher starts one per rank. `alone`: no other launcher
    shares the folder. `interrupted`: whether the user asked dptune to end, although the script may have
    ended well meanwhile. `hung`: whether a limit on waiting was passed; `stacks` is the file that says
    who waited where, if it could be written. `without_effect`: settings that were not in force, with the reason.
    `unrecorded`: scripts that trained in processes which were not recorded.
    """

    folder: Path
    ending: Ending
    ranks: list[int]
    complete: bool = False
    steps: int = 0
    ended_by_us: bool = False
    leads: bool = True
    alone: bool = False
    own_status: int | None = None
    hung: bool = False
    interrupted: bool = False
    stacks: Path | None = None
    without_effect: dict[str, str] = field(default_factory=dict)
    unrecorded: list[str] = field(default_factory=list)

    @property
    def exit_status(self) -> int:
        """The script's own status; 2 where it ended well but left nothing to read, or hung."""
        if self.hung:
            return 2
        return self.own_status or (2 if self.ending.how == "no-steps" else 0)


class Session:
    """One launcher's part in a recording, from the folder on."""

    def __init__(self, started: Launch, options: Options, run_folder: RunFolder, run: RunRecord) -> None:
        self._started, self._options, self._folder, self._run = started, options, run_folder, run
        self._leads = started.job is None or started.job.rank == 0
        self._plan = Plan(
            folder=str(run_folder.path.resolve()),
            launcher=os.getpid(),
            schedule=options.schedule,
            end_when_full=options.end_when_full,
            ranks=options.ranks,
            live=str(run_folder.live.resolve()),
            settings=options.settings,
            nccl_log=options.nccl_log,
            cpu_peak=options.cpu_peak,
        )
        self._entry = launch.mark(self._plan)
        self._hung = False
        self._stacks: Path | None = None
        self._cards: gpu_readings.Cards | None = None

    def record(self, signals: Signals) -> Recording:
        """Start, watch, end and conclude."""
        process = self._start()
        signals.hold()
        seen = Watched()
        try:
            if not self._options.trial:
                self._cards = gpu_readings.Cards(socket.gethostname())
            self._run.topology = topology.read() if self._leads else None
            seen = self._watch(process, signals)
        finally:
            if process.poll() is None:
                processes.end(process, self._entry)
            if self._options.trial:
                processes.end_all(processes.carrying(self._entry), _LEFT_END_WITHIN_S)
            self._run.unrecorded = progress.unrecorded(self._folder.live)
            self._folder.close()
            self._put_down_cards()
            whole, facts = conclude(self._folder, self._run, seen.steps > 0, remembered=not self._options.trial)
        if self._folder.seat is not None and self._leads:
            self._wait_for_the_others(signals)
            whole, facts = conclude(self._folder, self._run, seen.steps > 0, remembered=not self._options.trial)
        asked_to_end = signals.came()
        return Recording(
            folder=self._folder.path,
            ending=whole.ending,
            ranks=[rank_facts.rank for rank_facts in facts],
            complete=bool(facts) and all(rank_facts.ended == "complete" for rank_facts in facts),
            steps=max((rank_facts.steps for rank_facts in facts), default=0),
            ended_by_us=self._options.end_when_full and not seen.stays,
            unrecorded=self._run.unrecorded,
            leads=self._leads,
            alone=self._folder.seat is None,
            own_status=self._run.ending.exit_status,
            hung=self._hung,
            interrupted=seen.interrupted or seen.stopped is not None or asked_to_end,
            stacks=self._stacks,
            without_effect=effect.without_effect(self._options.settings, facts),
        )

    def _start(self) -> subprocess.Popen[bytes]:
        """Write what a reader finds while it runs, and start it; nothing stays where that fails."""
        what = f"cannot write into {self._folder.path}"
        try:
            self._folder.live.mkdir(parents=True, exist_ok=True)
            self._folder.write(self._run)
            what = f"cannot start {self._started.words[0]}"
            base = {**os.environ, **self._options.environment}
            with contextlib.ExitStack() as opened:
                sink = None
                if self._options.output is not None:
                    sink = opened.enter_context(self._options.output.open("wb"))
                return subprocess.Popen(
                    self._started.words,
                    env=launch.environment(self._plan, base),
                    cwd=self._options.directory,
                    stdin=subprocess.DEVNULL if sink else None,
                    stdout=sink,
                    stderr=sink,
                )
        except OSError as error:
            self._folder.undo()
            raise CaptureError(f"{what}: {error.strerror}") from None

    def _watch(self, process: subprocess.Popen[bytes], signals: Signals) -> Watched:
        kills = MemoryKills()
        schedule = self._options.schedule
        line = ProgressLine(
            schedule.total_steps, self._options.quiet, mute=not self._leads, notes=_notes(schedule, self._started)
        )
        must_end, look = self._options.end_when_full, self._cards.look if self._cards else lambda phase: None
        watch = Watch(process, self._folder.live, self._options.limits, line, must_end, look)
        seen = watch.until_over(signals)
        line.clear()
        if seen.waited_s is not None:
            self._run.ending = Ending("timed-out", note=self._hang(seen, signals))
            processes.end(process, self._entry)
            return seen
        if seen.status is None:
            processes.end(process, self._entry)
        elif seen.status or self._options.end_when_full:
            self._end_leftovers(watch.ranks)
        self._run.ending = _ending(seen, process.returncode, kills)
        return seen

    def _put_down_cards(self) -> None:
        """Into run.json, those that this host's ranks computed on."""
        if self._cards is not None:
            here = [rank.device for rank in facts_in(self._folder.path) if rank.host == socket.gethostname()]
            used = {device.uuid for device in here if device and device.uuid}
            self._run.cards, self._run.cards_unread = self._cards.finish(used)

    def _hang(self, seen: Watched, signals: Signals) -> str:
        """Who waits where, in a sentence; their stacks go to a file."""
        found = stacks.waiting(self._folder.live, self._entry)
        self._hung = True
        with contextlib.suppress(OSError):  # a full disk, or the folder was removed: the sentence must do
            self._folder.stacks.write_text(stacks.as_text(found), encoding="utf-8")
            self._stacks = self._folder.stacks
        if self._folder.seat is not None:
            signals.wait(_OTHERS_NOTICE_WITHIN_S)
        what = f"no optimizer step {'for' if seen.steps else 'within'} {seen.waited_s:g} s"
        if seen.complete:
            what = f"the recording is complete, but the script did not end within {seen.waited_s:g} s"
        return f"{what} ({stacks.in_words(found, self._started.ranks)})"

    def _end_leftovers(self, ranks_seen: set[int]) -> None:
        """Ranks whose launcher is gone, after time to end by themselves."""
        deadline = time.monotonic() + _WORKERS_END_WITHIN_S
        while left := leftovers(ranks_seen, self._entry):
            if time.monotonic() > deadline:
                processes.end_all(left)
                return
            time.sleep(0.1)

    def _wait_for_the_others(self, signals: Signals) -> None:
        deadline = time.monotonic() + _OTHERS_END_WITHIN_S
        while time.monotonic() < deadline and any(
            record.ending.how == "recording" for record in self._folder.records()
        ):
            if signals.wait(0.2) is not None:
                return


def _notes(schedule: Schedule, started: Launch) -> dict[str, str]:
    """What the progress line says of windows whose length is decided while they last."""
    if schedule.light_steps <= schedule.light or started.ranks == (0,):
        return {}
    return {"light": f" ({schedule.light} to {schedule.light_steps} steps, more where step times vary)"}


def _ending(seen: Watched, returned: int, kills: MemoryKills) -> Ending:
    if seen.stopped is not None:
        return Ending("interrupted", 128 + seen.stopped, note=f"signal {seen.stopped} to dptune")
    status = 128 - returned if returned < 0 else returned
    if seen.interrupted and status:
        return Ending("interrupted", 130)
    return Ending("script-ended" if status == 0 else "failed", status, _killed(status, kills))


def _killed(status: int, kills: MemoryKills) -> str:
    if hasattr(signal, "SIGXFSZ") and status == 128 + signal.SIGXFSZ:
        return "killed by SIGXFSZ: a file exceeded the file-size limit (ulimit -f)"
    if not hasattr(signal, "SIGKILL") or status != 128 + signal.SIGKILL:
        return ""
    if kills.seen:
        return "the kernel killed one of its processes: out of memory"
    return "killed by SIGKILL, possibly by the kernel for lack of memory"
