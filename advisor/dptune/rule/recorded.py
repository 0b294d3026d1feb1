"""What a rule can ask of a recording: facts, where the script spends time, and stack samples."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isclose, isfinite
from typing import Any

from dptune.advice import CONFIDENCES, NEEDS_RECORDING, Advice, Confidence, Impact, impact_of
from dptune.knobs import Value
from dptune.measured import Measured, Missing, digits
from dptune.predicted import MemoryPrediction, Prediction
from dptune.rule.declared import Threshold
from dptune.rule.lacking import WORDS
from dptune.runfile.dealt_batches import DealtBatches, dealt_batches
from dptune.runfile.epochs import EpochStarts, enough_steps, epoch_starts, epoch_steps, restarted
from dptune.runfile.experience import collects
from dptune.runfile.facts import Facts
from dptune.runfile.garbage_collections import CollectingLine, collecting_line
from dptune.runfile.hot_lines import Place, SampledShare, found_share, hottest_line, sampled_phase, sampled_share
from dptune.runfile.iterators import NewIterators, new_iterators
from dptune.runfile.line_forms import LineForm, line_form
from dptune.runfile.loader_lines import HotFunction, hottest_in_loader, least_wait_share
from dptune.runfile.memory_growth import MemoryGrowth, memory_growth
from dptune.runfile.repeated_forward import RepeatedForwardFacts
from dptune.runfile.same_results import SameResultFacts
from dptune.runfile.slow_steps import SlowSteps, share_inside, slow_steps
from dptune.runfile.unaveraged import unaveraged_agree
from dptune.runfile.work_between import HostWork, work_between
from dptune.runfile.work_kinds import kind_of

_ROUNDING = 1e-9  # of sums in 64 bits: equal weights agree to the last bit, or nearly so on other processors

Predictor = Callable[[Mapping[str, Value]], Prediction]
MemoryPredictor = Callable[[Mapping[str, Value]], MemoryPrediction]


@dataclass(frozen=True)
class RecordedView:
    """The figures and the facts of each rank, and the rule's own thresholds."""

    measured: Measured
    facts: Sequence[Facts]
    limits: Mapping[str, float] = field(default_factory=dict)
    predictor: Predictor | None = None
    advised: Sequence[Advice] = ()
    times_hold: bool = True
    used: set[str] = field(default_factory=set)
    memory_predictor: MemoryPredictor | None = None

    def memory_after(self, changes: Mapping[str, Value]) -> MemoryPrediction | None:
        """The peak memory of a rank with these changes together; None where it is not known."""
        if self.memory_predictor is None:
            return None
        found = self.memory_predictor(changes)
        return found if found.known("peak_bytes") is not None else None

    def limit(self, threshold: Threshold) -> float:
        """The threshold's value: the user's, else its default."""
        return self.limits.get(threshold.name, threshold.default)

    def impact(self, share: float, least: Threshold) -> Impact | None:
        """Impact of something that takes a share of the step; None below `least` and for a share of 0.

        A share above `least` has low impact even if the user sets `least` below the usual limit for low impact.
        """
        return None if share <= 0 or share < self.limit(least) else impact_of(share) or "low"

    def any_facts(self, *names: str) -> Facts:
        """The facts of the lowest rank. Of a trace that dptune did not record, those of these names that it shows.

        A name is a field of Facts (`ddp`), or one of its records (`ddp.buffer_bytes`): what the rule cannot do without.
        Raises Missing where one is not known, and without names for every trace that dptune did not record. A rule that
        goes by inferred facts is no surer than they are (`confidence_in`).
        """
        if self.facts:
            return self.facts[0]
        inferred = self.measured.known("inferred")
        if not names or inferred is None:
            raise Missing(NEEDS_RECORDING)
        if unknown := [name for name in names if name not in inferred.confidence and _holds(inferred.facts, name)]:
            lacking = WORDS.get(unknown[0], f"`{unknown[0]}`")
            raise Missing(f"the trace does not show {lacking}: record with `dptune profile`")
        self.used.update(names)
        facts: Facts = inferred.facts
        return facts

    def recorded_about(self, name: str, counts: Callable[[Any], bool] = lambda _: True) -> Facts | None:
        """The recorded facts, for a rule on records that only a recording describes, as `loaders`.

        None where the trace shows that the run has none of them for which `counts` is true: there is nothing to say.
        Raises Missing where it has some, or may have.
        """
        if self.facts:
            return self.facts[0]
        found = getattr(self.any_facts(name), name)
        if not found or (isinstance(found, list) and not any(map(counts, found))):
            return None
        return self.any_facts()

    def has_none(self, name: str) -> bool:
        """Whether a trace that dptune did not record shows that the run has none of these, for example no `loaders`."""
        inferred = None if self.facts else self.measured.known("inferred")
        return inferred is not None and name in inferred.confidence and not getattr(inferred.facts, name)

    def shows(self, name: str) -> bool:
        """Whether a trace that dptune did not record shows this fact, as `any_facts` names it."""
        inferred = None if self.facts else self.measured.known("inferred")
        return inferred is not None and name in inferred.confidence

    def debug_switches(self) -> set[str]:
        """Debug variables that are on, on any rank: recorded, or inferred from the trace."""
        inferred = self.measured.known("inferred")
        all_facts = self.facts or ([] if inferred is None else [inferred.facts])
        return {name for facts in all_facts for name in facts.debug_switches}

    def confidence_in(self) -> Confidence:
        """How sure the facts are that the rule asked for: high where they were recorded."""
        inferred = None if self.facts else self.measured.known("inferred")
        levels = [inferred.confidence[name] for name in self.used if name in inferred.confidence] if inferred else []
        return min(levels, key=CONFIDENCES.index, default="high")

    def explained(self, *names: str, but: Collection[str] = ()) -> bool:
        """Whether advice of another rule on time names one of these: a function, or a file and line.

        Only a `last` rule sees the advice of other rules; `but`: rules that do not count.
        """
        words = [re.compile(rf"(?<![\w.]){re.escape(name)}(?=`| \(| at |[,;)]|$)") for name in names if name]
        texts = (text for each in self.advised if each.kind == "time" and each.rule not in but for text in _texts(each))
        return any(word.search(text) for text in texts for word in words)

    def weights_agree(self) -> bool | None:
        """Whether all ranks had the same weights after the last window that all completed; None if not known."""
        for reference in reversed(self.facts[0].windows) if len(self.facts) > 1 else ():
            windows = [facts.window(reference.name) for facts in self.facts]
            whole = [window for window in windows if window is not None and window.complete and window.parameter_sums]
            shapes = {
                (rank_window.first_step, rank_window.steps, len(rank_window.parameter_sums)) for rank_window in whole
            }
            if len(whole) != len(self.facts) or len(shapes) > 1:
                continue
            if not all(isfinite(total) for rank_window in whole for total in rank_window.parameter_sums):
                return None
            pairs = [
                pair
                for rank_window in whole
                for pair in zip(reference.parameter_sums, rank_window.parameter_sums, strict=True)
            ]
            return all(isclose(a, b, rel_tol=_ROUNDING, abs_tol=_ROUNDING) for a, b in pairs)
        return None

    def collecting_line(self) -> CollectingLine | None:
        """The line of the script whose calls of gc.collect() take most of the collection time; None without one."""
        return collecting_line(self.facts)

    def unaveraged_agree(self) -> bool | None:
        """Whether all ranks hold the same values of the parameters that DDP does not average; None if not known."""
        return unaveraged_agree(self.facts)

    def epoch_starts(self) -> EpochStarts:
        """Recorded steps that start an epoch of a loader that restarts its workers each epoch, on the lowest rank.

        Raises Missing where no loader restarts its workers, or where no recorded step starts an epoch; the reason then
        gives the number of steps to record.
        """
        facts, ranks = self.any_facts(), self.measured.world_size
        if restarted(facts) is None:
            raise Missing("no loader restarts its workers for each epoch")
        steps = epoch_steps(facts, ranks)
        if steps is None:
            raise Missing("the number of batches per epoch was not recorded")
        found = epoch_starts(facts, ranks)
        if found is None:
            enough = enough_steps(steps)
            raise Missing(
                f"no recorded step starts an epoch of {digits(steps)} steps: record {enough:,} untraced ones "
                f"(--untraced {enough} --window-time 0)"
            )
        return found

    def slow_steps(self, times: float) -> list[SlowSteps]:
        """What the script does in steps that take at least `times` the median, most time first.

        Raises Missing where no untraced steps were timed, for example in a run that dptune did not record.
        """
        self.any_facts()
        if not any((window := facts.window("untraced")) and window.steps for facts in self.facts):
            raise Missing("no untraced steps were timed")
        return slow_steps(self.facts, times)

    def share_inside(self, cause: SlowSteps, function: str) -> float:
        """The share of what makes steps slow that is spent in a function of the script, by stack samples."""
        window = next(facts for facts in self.facts if facts.rank == cause.rank).window("untraced")
        return 0.0 if window is None else share_inside(cause, window, function)

    def work_between(self) -> list[HostWork]:
        """Logging, metrics, plotting and saving in the usual steps, by function and line, most time first.

        Raises Missing where the training thread was not sampled while steps were timed.
        """
        self.any_facts()
        if not any((window := facts.window("untraced")) and window.sampled for facts in self.facts):
            raise Missing("no stack samples of untraced steps: record more untraced steps (--untraced)")
        return work_between(self.facts)

    def memory_growth(self) -> list[MemoryGrowth]:
        """The ranks whose memory grows every step, by tensors counted between windows or by a GPU's allocator.

        Empty where memory does not grow, or was not recorded.
        """
        return memory_growth(self.facts)

    def collects_experience(self, name: str, at: str = "") -> bool:
        """Whether a function collects what reinforcement learning trains on, by its name: `rollout`, `play_episode`.

        `at`: its file and line, where stack samples may show that it acts in an environment.
        """
        return collects(self.facts, name, at.rpartition(":")[0]) if at else kind_of(name) == "experience"

    def reports(self, name: str) -> bool:
        """Whether a function of that name logs, computes metrics, plots, evaluates or saves."""
        return kind_of(name) not in ("", "experience")

    def hottest_line(self, name: str, at: str, calling: str = "") -> str | None:
        """`file:line` with most stack samples in the function of that name and file; None if there are too few.

        `calling`: only while that line itself calls a library's function of this name.
        """
        return hottest_line(self.facts, name, at, calling)

    def line_form(self, name: str, at: str, form: str = "") -> LineForm | None:
        """The known costly pattern in which a function spends most time; `form`: only lines with this one."""
        return line_form(self.facts, name, at, form)

    def hottest_in_loader(self) -> HotFunction | None:
        """The function of the script that takes most of batch preparation; None if none was sampled."""
        return hottest_in_loader(self.facts)

    def least_loader_wait(self) -> float:
        """The smallest share of any window on any rank spent waiting for loaders; 0 if any loader has workers.

        Workers may be waiting for cores that other processes use.
        """
        return least_wait_share(self.facts)

    def new_iterators(self) -> list[NewIterators]:
        """Lines that make iterators of a DataLoader and leave them before their end, most time first.

        Empty also where no iterator was made while steps were timed without the profiler.
        """
        return new_iterators(self.facts)

    def ranks_here(self) -> int:
        """The number of ranks on the host of the first recorded rank, as far as known."""
        local = [1 + (facts.local_rank or 0) for facts in self.facts if facts.host == self.facts[0].host]
        return max(len(local), *local)

    def dealt_batches(self, rank: int) -> DealtBatches | None:
        """The batches of this rank compared with the others; None where ranks train no replicas, or not known."""
        return dealt_batches(self.facts, rank)

    def backward_share(self, spent_ns: int) -> float:
        """The share of a step that backward passes take that ran for `spent_ns` on the host in the untraced window.

        On a GPU it is their part of the compute of all backward passes. Raises Missing where this is not known.
        """
        window = self.any_facts().window("untraced")
        if window is None or not window.steps:
            raise Missing("no untraced steps were timed")
        if self.measured.device_kind == "cpu":
            return min(1.0, spent_ns / sum(window.durations_ns))
        phases = {phase.phase: phase for phase in self.measured.phases}
        if "backward" not in phases or not any(window.backward_ns):
            raise Missing("the traces do not separate the backward pass from the rest")
        part = min(1.0, spent_ns / sum(window.backward_ns))
        share: float = part * phases["backward"].compute_ns / self.measured.account.window_ns
        return share

    def repeated_share(self, found: RepeatedForwardFacts) -> tuple[float, float]:
        """The shares of a step in the forward calls that are not needed, and in the backward pass through them.

        On a GPU they are parts of the compute of either pass. Raises Missing where this is not known.
        """
        if not found.step_ns:
            raise Missing("repeated forward passes were not measured: no warm-up step was observed")
        window = self.any_facts().window("untraced")
        backward_ns = sum(window.backward_ns) if window is not None else 0
        backward = self.backward_share(round(found.backward_part * backward_ns)) if any(found.graph_ns) else 0.0
        if self.measured.device_kind == "cpu":
            return min(1.0, found.step_share), min(backward, 1.0 - min(1.0, found.step_share))
        return self._forward_share(found.forward_part), backward

    def same_results_share(self, found: SameResultFacts) -> float:
        """The share of a step in operators that compute the same in every step, or what nothing reads.

        On a GPU it is their part of the compute of the forward pass. Raises Missing where this is not known.
        """
        return found.step_share if self.measured.device_kind == "cpu" else self._forward_share(found.forward_part)

    def _forward_share(self, part: float) -> float:
        """The share of a step in this part of the forward pass's compute on a GPU."""
        phases = {phase.phase: phase for phase in self.measured.phases}
        if "forward" not in phases:
            raise Missing("the traces do not separate the forward pass from the rest")
        return part * phases["forward"].compute_ns / self.measured.account.window_ns

    def agreed_share(self, share: float, rank: int, name: str, at: str, calling: str = "", package: str = "") -> float:
        """A function's share of the few detailed steps, limited to its upper bound from stack samples of many steps.

        `calling`: the share of a library's function that it calls; a trace may have another name for it than samples,
        which then limit it by all calls of that library, `package`.
        """
        found = found_share(self.facts, rank, name, at, calling=calling, few=True)
        if calling and (found is None or not found[0]):
            found = found_share(self.facts, rank, name, at, few=True, package=package) if package else None
        return share if found is None else min(share, found[1])

    def found_share(
        self, rank: int, name: str, at: str, without: Sequence[Place] = (), calling: str = "", package: str = ""
    ) -> tuple[float, float] | None:
        """The share of a rank's untraced steps in which a function is on the stack, and its upper bound.

        Time in functions that it calls is included; `without` and `calling`: see `sampled_share`. None for few samples.
        """
        return found_share(self.facts, rank, name, at, without, calling, package=package)

    def sampled_share(
        self,
        name: str,
        at: str,
        calling: str = "",
        *,
        training: bool = False,
        without: Sequence[tuple[str, str]] = (),
    ) -> SampledShare | None:
        """The share of the untraced steps in which a function runs on each rank, by stack samples.

        `calling`: only while its line calls a library's function of this name; `training`: in all phases of a step;
        `without`: functions that it calls and that are not counted (name and place). None for too few samples.
        """
        return sampled_share(self.facts, name, at, calling, training=training, without=without)

    def sampled_phase(self, phase: str) -> SampledShare | None:
        """The share of a phase, by stack samples: `forward`, `backward`, `optimizer`, `loader` or `collective`."""
        return sampled_phase(self.facts, phase)


def _holds(facts: Facts, name: str) -> bool:
    """Whether a field is asked for of records that there are: without any, it has no value that could be missing."""
    record, _, field_name = name.partition(".")
    return not field_name or record not in ("ddp", "fsdp", "optimizers", "loaders") or bool(getattr(facts, record))


def _texts(advice: Advice) -> Iterator[str]:
    """The texts in which a finding names its cause: title, evidence and the places of its changes."""
    yield advice.title
    for evidence in advice.evidence:
        yield from (evidence.label, str(evidence.value))
    yield from (str(change.at or "") for change in advice.changes)
