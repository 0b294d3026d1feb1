"""Predictions with their intervals, and the replay error that they rest on.

A prediction is the measured step plus what the replay says the changes add or save. How far that may be off has many
causes, which have nothing to do with each other, so its interval is the root of their squares: what the link may be
(the low and high of its fit), what part of the compute does not grow with the batch, how much communication and
backward passes slow each other, either half of the recorded steps, each brought to the level of the recorded step; what
the unchanged replay is off; what any model is off; and how far the steps of other processes lie from each other. It is
of the step where the script as it is takes what it took: a machine that has become slower is so with the change, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import hypot
from statistics import mean
from typing import Any

from dptune import __version__
from dptune.capture.effect import in_force
from dptune.knobs import KNOBS, Value
from dptune.measured import Measured, Missing
from dptune.predicted import BucketSize, Prediction, WhatIf, missed
from dptune.runfile.facts import Facts
from dptune.trace.run import Run
from dptune.whatif import flat_settings, needed_facts, ranges, traced_steps
from dptune.whatif.assumptions import assumed
from dptune.whatif.blocks import as_units
from dptune.whatif.bounds import bounded
from dptune.whatif.cpu.building import read
from dptune.whatif.cpu.changes import changed
from dptune.whatif.cpu.held_out import held_out_share
from dptune.whatif.cpu.median_process import communicating, computing
from dptune.whatif.cpu.model import StepModel
from dptune.whatif.cpu.processes import unsure_ns
from dptune.whatif.cpu.replay import step_ns
from dptune.whatif.cpu.step_times import untraced
from dptune.whatif.cpu.topology import UNKNOWN_NETWORK, lacks_network
from dptune.whatif.cpu.uncertainty import slack_ns
from dptune.whatif.cpu.uncertainty import unknown_ns as cpu_unknown_ns
from dptune.whatif.cpu.unit_building import read as read_units
from dptune.whatif.cpu.variants import others as others_of
from dptune.whatif.cpu.variants import variants
from dptune.whatif.gpu import unmatched
from dptune.whatif.gpu.changes import OF_LINK, UNPROFILED, sides, with_quickest_host, without_part, without_profiler
from dptune.whatif.gpu.changes import bounded as gpu_bounded
from dptune.whatif.gpu.changes import changed as gpu_changed
from dptune.whatif.gpu.effects import effect, in_full
from dptune.whatif.gpu.held_out import NONE_ALIKE, held_out
from dptune.whatif.gpu.links import NO_MESSAGES, NO_SIZES, has_no_sizes, relinked
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.recorded import program_of, views_of
from dptune.whatif.gpu.uncertainty import OF_DIFFERENCE, interval, one_way
from dptune.whatif.gpu.uncertainty import unknown_ns as gpu_unknown_ns
from dptune.whatif.link import source_of
from dptune.whatif.searching import curve

Model = StepModel | Program
ENOUGH_STEPS = 20  # traced; of the recordings above with 4, 8 and 12 of them 15, 18 and 20 of 25 changes were predicted
MORE_STEPS = f"record more traced steps (--light {ENOUGH_STEPS})"
_OF_BATCH = frozenset({"batch.times", "loader.batch_size", "accumulation.micro_batches"})


@dataclass(frozen=True)
class RunModel:
    """What the predictions of a run rest on: its model, others that the data allow, and how far off the replay is.

    `variants` are other models in groups, each of one cause. `step_ns` is the measured step, `replayed_ns` the same as
    the unchanged model has it, before what it lacks is laid to its communication. All predictions may be off by
    `slack_ns`. `facts` are those of the recorded ranks, `crowded` whether they share cores. A replay of GPU steps uses
    every recorded step; `variation_share` is the difference between the mean steps of its two halves, as a share of a
    step, among steps of the same kind. `unlike` names steps that no other is comparable with. `recorded`: when, if
    known.
    """

    model: Model
    variants: tuple[tuple[Model, ...], ...]
    step_ns: int
    replayed_ns: float
    error_share: float
    held_out_share: float | None
    slack_ns: float
    measured: Measured
    facts: Sequence[Facts] = ()
    crowded: bool = False
    variation_share: float | None = None
    unlike: str = ""
    recorded: str = ""

    @classmethod
    def of(cls, run: Run, measured: Measured) -> RunModel:
        """Raises Missing where the run does not tell enough."""
        needed_facts.check(run.facts.values())
        found = cls._of_cpus(run, measured) if measured.device_kind == "cpu" else cls._of_gpus(run, measured)
        return found if run.record is None else replace(found, recorded=run.record.recorded)

    @classmethod
    def _of_cpus(cls, run: Run, measured: Measured) -> RunModel:
        recorded_ns, step = measured.step.untraced_median_ns, measured.step.time_ns
        is_sharded = any(facts.fsdp for facts in run.facts.values())
        recorded = read_units(run, measured) if is_sharded else read(run, measured)
        processes = [run.facts, *({rank_facts.rank: rank_facts for rank_facts in facts} for facts in run.repeats)]
        unchanged = computing(recorded.model(), processes)
        replayed = step_ns(unchanged)
        # Where ranks share cores what communication takes is compute, too.
        model = unchanged if recorded.crowded else communicating(unchanged, step)
        others = unsure_ns([untraced(facts) for facts in run.facts.values()], recorded_ns, measured.step.repeats_ns)
        return cls(
            model=model,
            variants=tuple(variants(model, measured)),
            step_ns=step,
            replayed_ns=replayed,
            error_share=abs(replayed - step) / step,
            held_out_share=held_out_share(recorded, processes, step / recorded_ns),
            slack_ns=slack_ns(replayed - step, others),
            measured=measured,
            facts=[*run.facts.values()],
            crowded=recorded.crowded,
        )

    @classmethod
    def _of_gpus(cls, run: Run, measured: Measured) -> RunModel:
        views = views_of(run)
        groups = [group.numbers for group in measured.steps.groups]
        program, alike = program_of(run, measured, views), held_out(views, groups)
        program = program.counting(alike.alike({step.number for step in program.steps}))
        step, traced = measured.step.time_ns, program.recorded_step_ns()
        stretch = 1.0 if measured.step.basis == "traced" else measured.step.light_median_ns / measured.recorded_step_ns
        wanted = traced / stretch  # of the mean step, which is what a program reports
        model = without_profiler(program, wanted)
        if measured.step.basis == "untraced" and model is program:  # else the host takes its time without the profiler
            model = replace(model, added_times=UNPROFILED)
        replayed = model.step_ns()
        halves = program.halves_ns(groups)
        apart = alike.share if alike.freeing_ns else abs(halves[0] - halves[1]) / mean(halves)
        return cls(
            model=model,
            variants=(tuple(relinked(model)), (with_quickest_host(model),)),
            step_ns=step,
            replayed_ns=replayed * step / wanted,
            error_share=abs(replayed - wanted) / wanted,
            held_out_share=None,
            slack_ns=0.0,
            measured=measured,
            facts=[*run.facts.values()],
            variation_share=apart,
            unlike=alike.sentence,
        )

    def predict(self, changes: Mapping[str, Value]) -> Prediction:
        """The step with these changes together. The reason for a missing figure is under `missing`.

        What the run has already changes nothing, whether or not a model predicts it; except for a bucket size, which
        is that of the first one, too, where torch's own is not.
        """
        try:
            new = {
                name: value
                for name, value in as_units(changes, self.facts).items()
                if name == "ddp.bucket_cap_mb" or name not in KNOBS or not in_force(name, value, self.facts)
            }
            flat_settings.check(new, self.facts)
            other, difference, way = self._difference(self.model, new, self._unchanged_ns)
            off = [self._off(group, new, difference) for group in self._variants_ns]
            ends, apart = list[Program](), (0.0, 0.0)
            if isinstance(self.model, Program):
                ends = [in_full(self.model, new, side) for side in sides(new)]
                off.append(self._off_ends(ends, difference))
                apart = self._apart_ns(other)
                off.append(apart)
            else:
                others = [(model, self._unchanged_ns) for model in others_of(self.model, new)]
                off.append(self._off(others, new, difference))
        except Missing as lack:
            return Prediction.only(lack.reason, changes=dict(changes))
        least = traced_steps.least_ns(self.measured, new)
        at_best = traced_steps.with_room(least, self.step_ns, self.model)
        first, *others_ns = self._floors_ns(other, ends)
        floors = [max(least, first), *(max(at_best, ns) for ns in others_ns)]
        by_host = traced_steps.why_only_a_bound(self.model, other, new, difference) if self.traced else ""
        why = self.why_only_a_bound(new) or by_host or unmatched.unknown(apart[0], self.step_ns)
        always = self._unknown_ns(other, difference, only_a_bound=bool(why), of_batch=not _OF_BATCH.isdisjoint(new))
        below_ns, above_ns = (hypot(*always, *side) for side in zip(*off, strict=True))
        estimate_ns = self.step_ns + difference
        if by_host:
            estimate_ns, below_ns = traced_steps.least_of_devices_ns(self.model, self.step_ns, min(floors)), 0.0
        low_ns, predicted_ns, high_ns = interval(estimate_ns, below_ns, above_ns, floors, self._least_ns(new))
        low_ns, high_ns = one_way(0 if ends else way, low_ns, high_ns, self.step_ns)
        nothing = not (difference or any(chain.from_iterable(off)) or lacks_network(self.model.hosts, new))
        if nothing and self.missed and isinstance(self.model, StepModel):  # it changes nothing, whatever is missed
            why, low_ns, predicted_ns, high_ns = "", *[float(self.step_ns)] * 3
        assumptions = [*assumed(self.model, new, self.traced), *flat_settings.arguments(new, self.facts)]
        known: dict[str, Any] = {"changes": dict(changes), "assumptions": assumptions}
        batch = None if other.samples is None else round(other.samples)
        why_none = self.measured.missing.get("samples_per_step", "")
        if why:
            of_traced = self.traced and not by_host
            low_ns = traced_steps.bound_ns(self.model, self.step_ns, low_ns, first) if of_traced else low_ns
            bound = Prediction.only(why, **known, global_batch=batch, low_ns=round(low_ns))
            lacking = {"global_batch": why_none} if batch is None and why_none else {}
            return bound.model_copy(update={"missing": {**bound.missing, **lacking}})
        figures = {
            "global_batch": batch,
            "ns_per_sample": None if other.samples is None else predicted_ns / other.samples,
        }
        prediction = Prediction(
            **known,
            **figures,
            missing={name: why_none for name, value in figures.items() if value is None},
            step_ns=max(0, round(predicted_ns)),
            low_ns=round(low_ns),
            high_ns=max(0, round(high_ns)),
        )
        return ranges.as_range(prediction, new if ends else ())

    def lack(self, changes: Mapping[str, Value]) -> str:
        """Why neither a step nor a bound is known with these changes, as far as it takes no replay; else empty."""
        try:
            wanted = as_units(changes, self.facts)
            flat_settings.check(wanted, self.facts)
            if isinstance(self.model, Program):
                gpu_changed(self.model, wanted)
            else:
                changed(self.model, wanted)
        except Missing as lack:
            return lack.reason
        return ""

    @property
    def traced(self) -> bool:
        """Whether the measured step is a traced one: no other was recorded."""
        return self.measured.step.basis != "untraced"

    @cached_property
    def missed(self) -> str:
        """What the replay misses by too much; empty where it does not."""
        return missed(self.error_share, self.held_out_share)

    def why_only_a_bound(self, changes: Mapping[str, Value]) -> str:
        """Why no more is known of these changes; empty where it is."""
        if self.missed:
            bound = f"{self.missed}: only an upper bound of the saving is known"
            few = isinstance(self.model, StepModel) and min(map(len, self.model.steps.values())) < ENOUGH_STEPS
            return f"{bound}; {MORE_STEPS}" if few else bound
        if lacks_network(self.model.hosts, changes):
            return UNKNOWN_NETWORK
        only = gpu_bounded(self.model, changes) if isinstance(self.model, Program) else bounded(changes)
        named = f"for {' and '.join(only)}, " if len(changes) > 1 else ""
        return f"{named}the model gives only an upper bound of the saving" if only else ""

    @cached_property
    def _unchanged_ns(self) -> float:
        return _replayed(self.model)

    @property
    def _level(self) -> float:
        """How many times as long the measured step is as the unchanged model's."""
        return self.step_ns / self._unchanged_ns

    @cached_property
    def _variants_ns(self) -> list[list[tuple[Model, float]]]:
        """The variants with their own unchanged steps."""
        return [[(model, _replayed(model)) for model in group] for group in self.variants]

    def _off(
        self, group: Sequence[tuple[Model, float]], changes: Mapping[str, Value], difference: float
    ) -> tuple[float, float]:
        """How far below and above the difference models of one cause have it, at most.

        A slower link, say, on which the unchanged step would take longer than it did, is no link that the measured step
        allows; it predicts that a part of it is saved.
        """
        deviations = [
            self._difference(model, changes, unchanged_ns)[1] - difference
            for model, unchanged_ns in group
            if not isinstance(model, Program) or self._differs(model, changes)
        ]
        return -min([0.0, *deviations]), max([0.0, *deviations])

    def _differs(self, variant: Program, changes: Mapping[str, Value]) -> bool:
        """Whether changes may do something else to a variant: one that has another link only, where they are of it."""
        assert isinstance(self.model, Program)
        return variant.edges is not self.model.edges or not OF_LINK.isdisjoint(changes)

    def _off_ends(self, ends: Sequence[Program], difference: float) -> tuple[float, float]:
        """The same for the ends of what is assumed about the changes."""
        deviations = [(end.step_ns() / self._unchanged_ns - 1) * self.step_ns - difference for end in ends]
        return -min([0.0, *deviations]), max([0.0, *deviations])

    def _apart_ns(self, other: Model) -> tuple[float, float]:
        """The same for waiting in collectives that were not matched on all ranks."""
        assert isinstance(self.model, Program) and isinstance(other, Program)  # noqa: PT018
        below_ns, above_ns = unmatched.apart_ns(self.model, self._alone_ns, other)
        return self._level * below_ns, self._level * above_ns

    @cached_property
    def _alone_ns(self) -> Mapping[int, float]:
        return unmatched.alone_ns(self.model) if isinstance(self.model, Program) else {}

    def _floors_ns(self, other: Model, ends: Sequence[Program]) -> list[float]:
        """How long the devices compute in a step with the changes, which no step is shorter than.

        Then the same at both `ends` of what is assumed about the changes. Zero for steps that CPUs compute.
        """
        if not isinstance(other, Program) or not isinstance(self.model, Program):
            return [0.0]
        level = min(1.0, self.step_ns / busy_ns) if (busy_ns := self.model.busy_ns()) else 1.0
        return [level * program.busy_ns() for program in (other, *ends)]

    def _least_ns(self, changes: Mapping[str, Value]) -> float:
        """The step without all that the changes make faster, as the model has it that saves most; 0 if not known."""
        if not isinstance(self.model, Program):
            return 0.0
        saved = [0.0]
        for model, unchanged_ns in ((self.model, self._unchanged_ns), *chain(*self._variants_ns)):
            with suppress(Missing):
                assert isinstance(model, Program)
                saved.append(1 - without_part(model, changes).step_ns() / unchanged_ns)
        return self.step_ns * (1 - (1 + OF_DIFFERENCE) * max(saved)) if len(saved) > 1 else 0.0

    def _difference(self, model: Model, changes: Mapping[str, Value], before: float) -> tuple[Model, float, int]:
        """The model with the changes, what they add to the step, and its only way; `before`: the step without them."""
        if isinstance(model, Program):
            after, ratio, way = effect(model, changes, before)
            return after, (ratio - 1) * self.step_ns, way
        other = changed(model, changes)
        return other, (step_ns(other) / before - 1) * self.step_ns, 0

    def _unknown_ns(
        self, other: Model, difference: float, *, only_a_bound: bool, of_batch: bool = False
    ) -> tuple[float, ...]:
        """What the step with the changes may be off by, by cause, beside what variants of the model say."""
        if isinstance(other, Program):
            assert isinstance(self.model, Program)
            shares = self.step_ns, self.error_share
            return gpu_unknown_ns(self.model, other, *shares, only_a_bound=only_a_bound, of_batch=of_batch)
        assert isinstance(self.model, StepModel)
        slack = self.slack_ns
        if self.missed:  # a bound is lower by all of that
            slack = (self.error_share + (self.held_out_share or 0.0)) * max(self.step_ns + difference, self.step_ns)
        several = bool(self.measured.step.repeats_ns)
        known = self.step_ns, self._level, difference
        return slack, *cpu_unknown_ns(self.model, other, *known, several=several, crowded=self.crowded)

    def at_best_ns(self) -> float | None:
        """The step if communication took no time; None where no link is known."""
        if isinstance(self.model, StepModel):
            return self.step_ns * _replayed(self.model.without_transfers()) / self._unchanged_ns
        no_time: dict[str, Value] = {"link.alpha_us": 0.0, "link.gb_per_s": float("inf")}
        with suppress(Missing):
            return max(0.0, self.step_ns + self._difference(self.model, no_time, self._unchanged_ns)[1])
        return None

    def curve(self) -> list[BucketSize]:
        """The step by the size that is asked for buckets; of steps that CPUs compute."""
        assert isinstance(self.model, StepModel)
        return [size.model_copy(update={"step_ns": round(self._level * size.step_ns)}) for size in curve(self.model)]

    def result(self, predictions: Sequence[Prediction], curve: Sequence[BucketSize] = ()) -> WhatIf:
        """Predictions, with what they rest on."""
        batch, floor_ns = self.measured.known("samples_per_step"), None if self.missed else self.at_best_ns()
        try:
            link, missing = self.model.link_source or source_of(self.measured, self.recorded), {}
        except Missing as lack:
            unsized = isinstance(self.model, Program) and has_no_sizes(self.model)
            link, missing = None, {"link": NO_SIZES if unsized else lack.reason}
        if floor_ns is None:
            why = self.missed or missing.get("link", NO_MESSAGES)
            missing["floor_ns"] = why
        if self.held_out_share is None:
            missing["held_out_share"] = "a GPU model is built from every recorded step"
        if self.variation_share is None:
            checked = isinstance(self.model, StepModel)
            missing["variation_share"] = "the model check compares held-out steps" if checked else NONE_ALIKE
        if batch is None:
            missing["global_batch"] = self.measured.missing["samples_per_step"]
        return WhatIf(
            dptune=__version__,
            measured_ns=self.step_ns,
            processes=1 + len(self.measured.step.repeats_ns),
            traced=self.traced,
            replayed_ns=round(self.replayed_ns),
            error_share=self.error_share,
            held_out_share=self.held_out_share,
            variation_share=self.variation_share,
            floor_ns=None if floor_ns is None else round(floor_ns),
            global_batch=batch,
            link=link,
            predictions=list(predictions),
            curve=list(curve),
            limits=[self.unlike] if self.unlike else [],
            missing=missing,
        )


def _replayed(model: Model) -> float:
    return model.step_ns() if isinstance(model, Program) else step_ns(model)
