"""Everything recorded of this rank: the open window with its stopwatch and profiler, and the facts on disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from dataclasses import replace
from pathlib import Path

from torch.optim import Optimizer

from dptune.capture.injected.observe import call_time, cpu_peak, dtype_speed, process_rank
from dptune.capture.injected.observe.facts import gather
from dptune.capture.injected.observe.gradient_noise import GradientNoise
from dptune.capture.injected.observe.kept_tensors import Kept, optimizer_state
from dptune.capture.injected.observe.load import Reading
from dptune.capture.injected.observe.memory_held import Held
from dptune.capture.injected.observe.meters import Tally
from dptune.capture.injected.observe.observers import Observers
from dptune.capture.injected.observe.stack_samples import Sampling
from dptune.capture.injected.observe.stolen_time import Ticks, taken_share
from dptune.capture.injected.observe.tensors import tensors
from dptune.capture.injected.observe.weights import parameter_sums
from dptune.capture.injected.record.plan import Plan
from dptune.capture.injected.record.stopwatch import Stopwatch
from dptune.capture.injected.record.tracing import Tracing
from dptune.capture.injected.record.write_errors import remove_unfinished, why_not_written
from dptune.runfile import json_files, paths
from dptune.runfile.facts import Facts
from dptune.runfile.noise import NoiseFacts
from dptune.runfile.window import SampledFacts, Window

# A step of the detailed window, as text, against one of the light window: 2 to 5 in the sample runs.
_DETAILED_TO_LIGHT_BYTES = 6


class GivesWay(Exception):  # noqa: N818 - the recorder's choice, not an error
    """The recorder stops for a reason that it states."""


def runs_profiler(line: str) -> str:
    """Why the recorder gives way: two profilers in one process can crash it."""
    return f"the script runs torch.profiler itself ({line})"


class RankRecording:
    """Windows are prepared, opened and closed one after another; what is closed is on disk."""

    def __init__(self, plan: Plan, observers: Observers) -> None:
        self._plan = plan
        self._observers = observers
        self._stopwatch: Stopwatch | None = None
        self._window: Window | None = None
        self._tracing: Tracing | None = None
        self._noise: GradientNoise | None = None
        self._ticks: Ticks | None = None
        self._reading: Reading | None = None
        self._sampling: Sampling | None = None
        self._held: Held | None = None
        self._kept = Kept()
        self.facts = Facts(rank=process_rank.rank(), host=socket.gethostname(), pid=os.getpid())

    @property
    def window(self) -> str | None:
        """The window that is open."""
        return self._window.name if self._window else None

    @property
    def measures(self) -> bool:
        """Whether a window is open, or the profiler is set up for one."""
        return self._window is not None or self._tracing is not None

    def claim(self) -> bool:
        """Take this rank's place in the run folder; False where another living process has it.

        Where torchrun has started the ranks again, what their dead processes left unfinished is taken over.
        """
        target = paths.facts(self._plan.path, self.facts.rank)
        target.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            try:
                with open(target, "x", encoding="utf-8") as sink:
                    sink.write(json_files.text(self.facts))
                return True
            except FileExistsError:
                if not self._abandoned():
                    return False
                for left in self._plan.path.glob(f"rank-{self.facts.rank:05d}.*"):
                    left.unlink(missing_ok=True)
        return False

    def _abandoned(self) -> bool:
        if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
            return False
        try:
            theirs = json_files.read(paths.facts(self._plan.path, self.facts.rank), Facts)
        except (OSError, ValueError):
            return False
        if theirs.host != self.facts.host or theirs.ended == "complete" or theirs.pid == self.facts.pid:
            return False
        try:
            os.kill(theirs.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False

    def prepare(self, name: str) -> None:
        """Let the profiler set itself up for a traced window. Raises GivesWay where it must not or cannot run."""
        if line := self._observers.script_profilers.disturbs:
            raise GivesWay(runs_profiler(line))
        self._check_room(name)
        self._observers.target_counts.end()
        self._tracing = Tracing(name, self._plan.schedule.sync_events)
        self._tracing.prepare()

    def open(self, name: str, first_step: int) -> None:
        """Begin a window with the step of that number."""
        self._observers.script_profilers.opened()
        if not self.facts.windows:
            self._observers.calls.begin(self.facts.steps)
            self._observers.checkpointing.begin()
            self._observers.frozen_norms.end()
            self._observers.norm_samples.end()
            self._observers.dense_tables.end()
            self._observers.lost_updates.end()
            self._observers.module_calls.end()  # wrapped last, so unwrapped first
            self._observers.frozen_features.end()
            self._observers.repeated_forward.end()
            self._observers.probability_losses.end()
            self._observers.ignored_targets.end()
            self._observers.discarded_gradients.end()
            self._observers.broadcast_losses.end()
            self._observers.bootstrapped_targets.end()
            self._observers.policy_ratios.end()
            self._observers.causal_masks.end()
            self._observers.softmax_dimensions.end()
            self._observers.divergence_weights.end()
            self._observers.padded_attention.end()
            self._observers.sorted_labels.end()
            self._observers.gathered_embeddings.end()
            self._observers.shifted_labels.end()
            self._observers.weight_penalties.end()
            self._observers.loss_scaling.end()
            self._observers.same_results.end()
            self._observers.optimizer_gradients.end()
            self._observers.sampled_steps.end()
            self._observers.clipping.end()
            self._observers.undivided_losses.end()
            self._observers.active_dropouts.end()
            self._observers.step_draws.end()
            self._observers.carried_states.end()
            self._observers.histories.end()
            self._observers.unrestored_states.end()
            self._observers.counted_padding.end()
            self._observers.meters.padding.end()
            self._observers.unreached.end()
            self._observers.evaluation_mode.begin()
            self._observers.training_mode.begin()
            with contextlib.suppress(Exception):  # objects may be anything
                self.facts.tensors = tensors(self._observers.places, process_rank.device_kind())
            gather(self.facts, self._observers)  # a script that ends in the window has let go of its model by then
        self._observers.calls.profiled = name != "untraced"
        self._observers.unused.timing = name == "untraced"
        if not self.facts.dtype_speeds:
            with contextlib.suppress(Exception):  # a torch that lacks an operator for a dtype
                self.facts.dtype_speeds = dtype_speed.measured(self._observers.places)
        if self.facts.call_ns is None:
            self.facts.call_ns = call_time.measured()
        if name == "untraced":
            self._look(first_step - 1)
            self._held = Held(process_rank.device_kind())
        self._window = Window(name=name, first_step=first_step)
        self.facts.windows.append(self._window)
        self._reading = _reading()  # before the profiler runs: what it takes would be part of the first traced step
        if self._tracing is not None:
            self._tracing.begin()
            self._tracing.begin_step(first_step)
        if name == "noise":
            self._begin_noise()
        self._observers.garbage.take()
        self._observers.garbage.take_calls()
        self._observers.compilations.take()
        self._ticks = Ticks.now()
        self._stopwatch = Stopwatch(process_rank.device_kind() != "cpu")
        if name == "untraced":
            self._observers.iterators.begin()
            self._sampling = Sampling()
            self._sampling.begin()

    def step(self, tally: Tally, skipped: bool | None, last: bool, number: int) -> None:
        """A step has ended inside the open window, and unless it was the last one there, step `number` begins."""
        window, stopwatch = self._window, self._stopwatch
        if window is None or stopwatch is None:
            return
        if self._tracing is not None:
            self._tracing.end_step()
        if self._noise is not None:
            self._noise.end_step()
        stopwatch.mark()
        if self._sampling is not None:
            self._sampling.end_step()
        self._observers.iterators.end_step()
        window.loader_wait_ns.append(tally.loader_wait_ns)
        window.loader_cpu_ns.append(tally.loader_cpu_ns)
        window.loader_fetch_ns.append(tally.loader_fetch_ns)
        spent_ns, collections = self._observers.garbage.take()
        window.gc_ns.append(spent_ns)
        window.collections_ns += collections
        compiled_ns = self._observers.compilations.take()
        if compiled_ns is not None:
            window.compile_ns.append(compiled_ns)
        window.loader_batches.append(tally.loader_batches)
        window.loader_samples.append(tally.loader_samples)
        window.backwards.append(tally.backwards)
        window.backward_ns.append(tally.backward_ns)
        window.backward_cpu_ns.append(tally.backward_cpu_ns)
        window.unsynced_backwards.append(tally.unsynced_backwards)
        window.unsynced_updates.append(tally.unsynced_update)
        window.recomputed_ns.append(tally.recomputed_ns)
        window.buffer_sync_ns.append(tally.buffer_sync_ns)
        window.unused_search_ns.append(tally.unused_search_ns)
        held = self._held.bytes() if self._held is not None else None
        if held is not None:
            window.memory_bytes.append(held)
        window.skipped_steps = (
            None if window.skipped_steps is None or skipped is None else window.skipped_steps + skipped
        )
        if self._tracing is not None and not last:
            self._tracing.begin_step(number)

    def close(self, complete: bool, cut_short: bool = False) -> None:
        """End the open window and put it on disk."""
        ended = _reading() if self._window is not None else None
        window, stopwatch, tracing = self._window, self._stopwatch, self._tracing
        self._window = self._stopwatch = self._tracing = None
        self._observers.calls.profiled = True
        self._observers.unused.timing = False
        self._observers.iterators.end()
        self._observers.target_counts.end()
        if tracing is not None:
            tracing.end()
        self._end_noise()
        sampled = self._end_sampling()
        if self._held is not None:
            self._held.close()
            self._held = None
        if window is None or stopwatch is None:
            return
        if complete and window.name in ("untraced", "light"):
            self._look(window.first_step + len(window.loader_batches) - 1)
        window.sampled = sampled
        window.collect_calls = self._observers.garbage.take_calls()
        window.durations_ns, window.device_durations_ns = stopwatch.host_ns(), stopwatch.device_ns()
        window.complete, window.cut_short = complete, cut_short
        with contextlib.suppress(Exception):  # parameters may be anything
            window.parameter_sums = parameter_sums(self._observers.places)
        window.taken_share = taken_share(self._ticks, Ticks.now())
        if self._reading is not None and ended is not None:
            with contextlib.suppress(Exception):
                window.load = self._reading.until(ended)
        if tracing is not None:
            target = paths.trace(self._plan.path, self.facts.rank, window.name)
            begun = time.monotonic_ns()
            window.trace_text_bytes = self._save(tracing, target)
            window.saving_ns = time.monotonic_ns() - begun
            window.trace = target.name
        self.write()

    def _look(self, step: int) -> None:
        """Count the tensors that are alive after that step; not while steps are timed."""
        ours = list(self._observers.meters.kept_losses)
        with contextlib.suppress(Exception):  # an optimizer's state may be anything
            ours += optimizer_state(self._observers.places.alive(Optimizer))
        self._kept.look(step, ours)
        self.facts.kept = self._kept.facts()

    def _save(self, tracing: Tracing, target: Path) -> int:
        """Write a trace; raises GivesWay where there is no room for it."""
        try:
            return tracing.save(target)
        except OSError as error:
            why = why_not_written(error, target.parent)
            remove_unfinished(target.parent)
            if not why:
                raise
            raise GivesWay(f"{target.name} could not be written: {why}") from error

    def after_pass(self) -> None:
        """A backward pass of the script has ended."""
        if self._noise is not None:
            self._noise.after_pass()

    def _begin_noise(self) -> None:
        noise = GradientNoise(self._observers.places)
        try:
            noise.begin()
        except ValueError as error:
            self.facts.noise = NoiseFacts(why=str(error))
        else:
            self._noise = noise

    def _end_noise(self) -> None:
        noise, self._noise = self._noise, None
        if noise is not None:
            self.facts.noise = noise.end()

    def _end_sampling(self) -> list[SampledFacts]:
        sampling, self._sampling = self._sampling, None
        with contextlib.suppress(Exception):  # what it found may be anything
            return sampling.end() if sampling is not None else []
        return []

    def put_down(self, ended: str) -> None:
        """Write the facts as they stand, with the times of the open window but without its trace."""
        window, stopwatch = self._window, self._stopwatch
        if window is not None and stopwatch is not None:
            window.durations_ns = stopwatch.host_ns()
        self.facts.ended = ended
        json_files.write(paths.facts(self._plan.path, self.facts.rank), self.facts)

    def measure_peak(self) -> None:
        """Measure the peak of a CPU, if the detailed window has sizes to count FLOPs from."""
        detailed = self.facts.window("detailed")
        if self._plan.cpu_peak and detailed is not None and detailed.trace:
            with contextlib.suppress(Exception):  # no memory for the matrices
                self.facts.cpu_peak = cpu_peak.measured(self._observers.places, self._plan.ranks)

    def drop(self) -> None:
        """Stop the profiler without a file: something else needs it, or it failed."""
        tracing, self._tracing = self._tracing, None
        self._end_sampling()
        if tracing is not None:
            with contextlib.suppress(Exception):
                tracing.end()

    def write(self) -> None:
        """Put the facts on disk as they are now."""
        gather(self.facts, self._observers)
        json_files.write(paths.facts(self._plan.path, self.facts.rank), self.facts)

    def stopped(self, reason: str) -> None:
        """Put down why nothing more is recorded, on whatever room is left: in the end over what is there already."""
        self.facts.ended = reason
        target = paths.facts(self._plan.path, self.facts.rank)
        least = Facts(self.facts.rank, host=self.facts.host, pid=self.facts.pid, steps=self.facts.steps, ended=reason)
        least.world_size = self.facts.world_size
        without = replace(self.facts, environment={}, ddp=[])
        ways = (self.write, lambda: json_files.write(target, without), lambda: json_files.write(target, least))
        with contextlib.suppress(Exception):
            self.drop()
        for way in (*ways, lambda: json_files.overwrite(target, least)):
            with contextlib.suppress(Exception):
                way()
                return

    def _check_room(self, name: str) -> None:
        """The light window has shown how large a step is."""
        light = self.facts.window("light")
        if name != "detailed" or light is None or not light.trace_text_bytes or not light.steps:
            return
        needed = light.trace_text_bytes // light.steps * _DETAILED_TO_LIGHT_BYTES * self._plan.schedule.detailed
        free = shutil.disk_usage(self._plan.path).free
        if free < needed:
            raise GivesWay(
                f"writing the detailed window needs about {needed / 1e6:.0f} MB, but the disk has {free / 1e6:.0f} "
                f"MB left"
            )


def _reading() -> Reading | None:
    """The counters of CPU time, whatever system this is."""
    try:
        return Reading.now()
    except Exception:
        return None
