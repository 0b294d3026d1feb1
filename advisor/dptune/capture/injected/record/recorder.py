"""Leads a recording: every step of the clock moves the agenda on; what is due is recorded; then the ranks leave.

Whatever goes wrong in here, the script goes on, and this rank still leaves together with the others.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

from dptune.capture.injected.leave.conclusion import conclude
from dptune.capture.injected.leave.departure import Departure
from dptune.capture.injected.leave.endings import Endings, signals_deferred
from dptune.capture.injected.leave.exits import end_without_destructors
from dptune.capture.injected.messages import say, say_unrecorded
from dptune.capture.injected.observe import process_rank
from dptune.capture.injected.observe.meters import Tally
from dptune.capture.injected.observe.observers import observers
from dptune.capture.injected.record.agenda import Agenda
from dptune.capture.injected.record.live import Live
from dptune.capture.injected.record.plan import DONE, ENDED, Plan
from dptune.capture.injected.record.rank_recording import GivesWay, RankRecording, runs_profiler
from dptune.capture.injected.record.step_clock import Clock
from dptune.capture.injected.record.write_errors import why_not_written

# How long a dying process waits for its main thread to finish what it writes; launchers kill after 30 s.
_PATIENCE_S = 20.0


class Recorder:
    """Records this process once its clock has ticked; until then it only waits."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._observers = observers()
        self._clock = Clock(self.tick, self._observers.stepped)
        self._live = Live(plan, self._beats)
        self._agenda = Agenda(plan.schedule)
        self._departure = Departure()
        self._take: RankRecording | None = None  # from the first step to the end of the recording, or until it fails
        self._begun = self._recorded = self._elsewhere = self._ends_script = False
        self._unrecorded = False  # and nothing has said so yet
        self._endings = Endings(self.finish, self._put_down)
        self._thread: threading.Thread | None = None  # the one that ticks: the profiler is bound to it
        self._lock = threading.RLock()
        self._busy = False
        self._afterwards: Callable[[], None] | None = None
        self.ended = ""

    def install(self) -> None:
        """Let every optimizer's step be a tick, and be ready before the first one."""
        self._clock.install()
        self.listen()
        if process_rank.is_worker(self._plan.launcher):
            process_rank.mark_trainer()
            self._live.start()
        self._observers.places.before_group = self._live.start  # ranks that the script itself has spawned

    def listen(self) -> None:
        """Heed the backward passes, the script's own profilers, and forks."""
        self._observers.meters.before_pass = self._leave_before_pass
        self._observers.meters.after_pass = self._after_pass
        self._observers.script_profilers.before = lambda line: self._guarded(lambda: self._give_way(line))
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._disown)

    def dismiss(self) -> None:
        """Heed nothing any more."""
        meters = self._observers.meters
        meters.before_pass = meters.after_pass = lambda: None
        self._observers.script_profilers.before = lambda line: None

    def tick(self, skipped: bool = False) -> None:
        """A step has ended."""
        if not self._begun:
            self._begun, self._thread = True, threading.current_thread()
            self._guarded(self._begin)
        if self._unrecorded:
            self._unrecorded = False
            self._live.name_unrecorded()
        tally = self._observers.meters.take()
        tally.unsynced_update = self._observers.averaging.take()
        tally.recomputed_ns = self._observers.checkpointing.take()
        due = self._agenda.tick()
        known = skipped if self._clock.skips_known else None
        self._guarded(lambda: self._advance(tally, known, due), writes=bool(due))
        if self._agenda.over and self._ends_script:
            # A rank that is not recorded, or whose recording failed, announces too: the others would wait for it.
            with contextlib.suppress(Exception):
                meters = self._observers.meters
                self._departure.announce(
                    meters.synchronised_passes, self._agenda.step, bool(self._observers.places.ddp())
                )
            self._leave_after_step()

    def finish(self, ended: str, then: Callable[[], None] = lambda: None) -> None:
        """Put everything on disk, once: when the windows are full, and when the process ends before that.

        A signal that comes while something is being written must not cut it off: that is finished first, then all this.
        """

        def now() -> None:
            try:
                self._guarded(lambda: self._conclude(ended), writes=True)
            finally:
                then()

        if not self._lock.acquire(timeout=_PATIENCE_S):
            then()  # another thread is stuck while it writes
            return
        try:
            if self._busy:
                self._afterwards = now
            else:
                now()
        finally:
            self._lock.release()

    def _begin(self) -> None:
        rank = process_rank.rank()
        if not process_rank.may_be_recorded(self._plan.launcher):
            self._elsewhere = self._unrecorded = True  # a program that the script has started trains by itself
            return
        self._ends_script = self._plan.end_when_full and process_rank.may_be_ended(self._plan.launcher)
        if not self._plan.records(rank):
            self._live.claim(rank, stays=not self._ends_script)
            return
        take = RankRecording(self._plan, self._observers)
        if not take.claim():
            self._elsewhere, self._ends_script = True, False
            text = f"rank {rank}: not recorded: {self._plan.folder} already has its recording"
            say_unrecorded(self._plan.path, rank, text)
            return
        self._take, self._recorded = take, True
        self._observers.frozen_norms.begin()
        self._observers.dense_tables.begin()
        self._observers.lost_updates.begin()
        self._observers.repeated_forward.begin()
        self._observers.probability_losses.begin()
        self._observers.ignored_targets.begin()
        self._observers.discarded_gradients.begin()
        self._observers.broadcast_losses.begin()
        self._observers.bootstrapped_targets.begin()
        self._observers.target_counts.begin()
        self._observers.sorted_labels.begin()
        self._observers.policy_ratios.begin()
        self._observers.causal_masks.begin()
        self._observers.softmax_dimensions.begin()
        self._observers.divergence_weights.begin()
        self._observers.padded_attention.begin()
        self._observers.gathered_embeddings.begin()
        self._observers.shifted_labels.begin()
        self._observers.weight_penalties.begin()
        self._observers.loss_scaling.begin()
        self._observers.same_results.begin()
        self._observers.optimizer_gradients.begin()
        self._observers.sampled_steps.begin()
        self._observers.clipping.begin()
        self._observers.undivided_losses.begin()
        self._observers.active_dropouts.begin()
        self._observers.step_draws.begin()
        self._observers.carried_states.begin()
        self._observers.histories.begin()
        self._observers.counted_padding.begin()
        if not self._observers.places.compiled:
            self._observers.meters.padding.begin(self._observers.module_calls)
        self._observers.unreached.begin()
        self._observers.module_calls.begin()
        self._observers.frozen_features.begin()
        self._live.claim(rank, stays=not self._ends_script)
        self._endings.install()

    def _beats(self) -> int:
        return self._observers.meters.passes + self._clock.steps_of_all

    def _advance(self, tally: Tally, skipped: bool | None, due: list[tuple[str, str]]) -> None:
        take = self._take
        if take is not None:
            self._observers.repeated_forward.ticked()
            self._observers.same_results.ticked()
            self._observers.histories.ticked()
            self._observers.frozen_features.ticked()
            take.facts.steps = self._agenda.step
            take.step(tally, skipped, last=bool(due), number=self._agenda.step + 1)
            for action, window in due:
                if action == "close":
                    take.close(complete=True, cut_short=self._agenda.cut_short)
                elif action == "prepare":
                    take.prepare(window)
                elif action == "open":
                    take.open(window, self._agenda.step + 1)
                elif action == "end":
                    self._conclude("complete")
        if not self._elsewhere and not self.ended:
            self._live.say(self._agenda.step, self._agenda.phase)

    def _after_pass(self) -> None:
        take = self._take
        if take is not None:
            self._guarded(take.after_pass)
        self._clock.settle()

    def _leave_before_pass(self) -> None:
        passes = self._observers.meters.synchronised_passes
        self._leave_if(lambda: self._departure.goes_before_pass(passes))

    def _leave_after_step(self) -> None:
        self._leave_if(lambda: self._departure.goes_after_step(self._agenda.step))

    def _leave_if(self, due: Callable[[], bool]) -> None:
        """End the script, with status 0, where all ranks have agreed to: once, for a script may not let it end."""
        if not self._ends_script or threading.current_thread() is not self._thread:
            return
        goes = False
        with contextlib.suppress(Exception):
            goes = due()
        if not goes:
            return
        self._ends_script = False
        if process_rank.together():
            end_without_destructors()
        if not self._plan.launcher and process_rank.rank() == min(self._plan.ranks or (0,)):
            what = f"recording complete after {self._agenda.step} steps: the script ends here"
            say(what, f"next: dptune report {self._plan.folder}")
        raise SystemExit(0)

    def _put_down(self, ended: str) -> None:
        """From another thread, while the main one is blocked: what is known goes on disk, the profiler is let be."""
        take = self._take
        if take is not None and not self._busy:
            with contextlib.suppress(Exception):
                take.put_down(ended)

    def _give_way(self, line: str) -> None:
        """The script makes or starts a profiler of its own, at that line."""
        if self._take is not None and self._take.measures:
            self._take.drop()
            raise GivesWay(runs_profiler(line))

    def _disown(self) -> None:
        """A forked child of a rank is not that rank: it records nothing, and writes nothing when it ends."""
        if not self._begun:
            process_rank.note_fork()
        else:
            if self._recorded:
                self._endings.disown()
                end_without_destructors()
            self._take, self._elsewhere, self._ends_script = None, True, False
            self._unrecorded = True
            self._observers.same_results.end()
            self._lock, self._busy, self._afterwards = threading.RLock(), False, None

    def _guarded(self, act: Callable[[], None], writes: bool = False) -> None:
        if self._elsewhere or self.ended:
            return
        with self._lock:
            self._busy = True
            try:
                with signals_deferred() if writes else contextlib.nullcontext():
                    self._try(act)
            finally:
                self._busy = False
        if self._afterwards is not None:
            afterwards, self._afterwards = self._afterwards, None
            afterwards()

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            reason = str(error) if isinstance(error, GivesWay) else ""
            if isinstance(error, OSError):
                reason = why_not_written(error, self._plan.path)
            reason = reason or f"{type(error).__name__}: {error}"
            self.ended = f"recording stopped: {reason}"
            take, self._take = self._take, None
            say(f"rank {process_rank.rank()}: {self.ended}")
            self._observers.same_results.end()
            if take is not None:
                take.stopped(self.ended)
                with contextlib.suppress(Exception):
                    conclude(self._plan, take.facts)
            self._live.say(self._agenda.step, ENDED)

    def _conclude(self, ended: str) -> None:
        take = self._take  # which stays until all is written: it says so where that fails
        if take is None:
            return
        take.facts.ended = ended
        if threading.current_thread() is not self._thread and take.window is not None:
            self._take = None
            take.put_down(ended)  # the profiler could only be stopped in the thread that started it,
            end_without_destructors()  # and is not to be met running
        else:
            take.close(complete=False)
            if ended == "complete":
                take.measure_peak()
            take.write()
        self._take, self.ended = None, ended
        conclude(self._plan, take.facts)
        self._live.say(self._agenda.step, DONE if ended == "complete" else ENDED)
