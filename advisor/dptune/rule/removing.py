"""What a CPU run saves without some work, by the time that each rank spends on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from dptune.advice import Basis, Saving
from dptune.measured import FunctionOperators
from dptune.rule.ranks import RanksView
from dptune.runfile.removed import Share, saved_share, saved_share_of_steps

_SAVED_PART = (0.8, 1.1)  # of the time of removed work: lower and upper end
_SAMPLED_PART = (0.8, 1.3)  # the same for sampled work: most measured savings exceeded the sampled time


@dataclass(frozen=True)
class RemovedView(RanksView):
    """Savings of work that is removed, done less often, or replaced by shorter work, and upper bounds."""

    def bound(self, low_share: float, high_share: float, how: str, *, in_few_steps: bool = False) -> Saving:
        """A saving between two shares of the step that is an upper bound.

        `in_few_steps`: most steps do not contain the time that is saved, so milliseconds refer to the mean step.
        """
        step = self.measured.step
        mean_ns = (step.untraced_mean_ns or step.time_ns) if in_few_steps else None
        return self._saving(low_share, high_share, "bound", how, mean_ns=mean_ns)

    def bound_of_all(self, high_share: float, how: str, durations_ns: Sequence[float]) -> Saving:
        """An upper bound as a share of the time of all steps, for example of slow ones: milliseconds of the mean step.

        `durations_ns` are all these steps. Their mean is scaled to the step time, like all milliseconds of a report.
        """
        times = mean(durations_ns) / median(durations_ns)
        return self._saving(0.0, high_share, "bound", how, mean_ns=times * self.measured.step.time_ns)

    def without_function(self, name: str, at: str, calling: str = "") -> Saving | None:
        """What a CPU run saves without a function of the script that is not part of training.

        None where stack samples are too few or not from every rank, and on a GPU, which may hide the time.
        """
        found = self.sampled_share(name, at, calling)
        if found is None:
            return None
        named = f"`{calling}` in `{name}`" if calling else f"`{name}`"
        return self.removed(found.by_rank, f"{named} is in {found.samples} stack samples")

    def removed(
        self,
        spent: Mapping[int, Share],
        how: str,
        saved_part: tuple[float, float] = _SAMPLED_PART,
        *,
        timed: bool = False,
    ) -> Saving | None:
        """What a CPU run saves without work that takes these shares of the steps of each rank.

        They are known from stack samples, or, if `timed`, from times measured in untraced steps.

        Ranks that are not in `spent` do none of the work; `saved_part` is the least and the largest part of it that is
        saved. None where devices compute, which may hide the work, where not all ranks were recorded, and where the
        saving may be zero: use a bound then.
        """
        if not self._every_rank():
            return None
        ranks = self.measured.known("world_size") or len(self.facts)
        share = saved_share(spent, self._busy_steps(with_input=True), self.measured.step.time_ns, ranks)
        alone = [rank for rank, spent_share in spent.items() if spent_share.likely]
        by_rank = "" if len(alone) == ranks else f" of rank {', '.join(map(str, alone))}"
        if share.least <= 0:
            return None
        if timed:
            return self.timed(share.least, share.likely, share.most, f"{how}{by_rank}", saved_part=saved_part)
        how = f"{how}{by_rank}; the interval includes the sampling error"
        return self.sampled(share.least, share.likely, share.most, how, saved_part)

    def replaced(
        self,
        function: FunctionOperators,
        part: tuple[float, float, float],
        how: str,
        *,
        of_all: float = 1.0,
        within: tuple[str, str] | None = None,
    ) -> Saving | None:
        """What a CPU run saves if shorter work replaces operators of a function and their backward pass.

        `part` is the least, the likely and the largest part of their time that the replacement saved where it was
        measured, as `how` says; `of_all` is the part of them that is replaced. `within`: the function of the script in
        whose stack samples they run, if it is another one (name and place).

        The lower end is that of the rank where they take least, and leaves out communication that their backward pass
        may hide. None where devices compute, where a rank was not traced with stacks, where times do not hold, and
        where the saving may be zero.
        """
        code, account = self.measured.known("user_code"), self.measured.known("account")
        ranks = [facts.rank for facts in self.facts]
        if not self.times_hold or account is None or code is None or code.ranks != ranks or not self._every_rank():
            return None
        least, likely, most = (of_all * each for each in part)
        passes = function.backward_ns / max(1, function.cost_ns + function.backward_ns)
        hidden = account.share("hidden_communication_ns")
        name, at = within or (function.name, function.at)
        sampled = self.sampled_share(name, at, training=True) if name else None
        forward = (1 - passes) * function.share
        spent = {}
        for rank in ranks:
            limits = sampled.by_rank[rank] if sampled and forward else None
            usual, high = (min(1.0, limit / forward) for limit in limits[1:]) if limits else (1.0, 1.0)
            low = usual * least * function.least_share
            middle = usual * likely * (function.least_share + function.share) / 2
            spent[rank] = Share(
                low - min(low * passes, hidden),
                middle - min(middle * passes, hidden) / 2,
                high * most * function.share,
            )
        all_of_it = "the time of these operators and their backward pass"
        return self.removed(spent, f"{all_of_it}; {how}", _SAVED_PART, timed=True)

    def removed_of_steps(
        self, spent_ns: Mapping[int, Sequence[int]], how: str, *, in_turn: bool = False
    ) -> Saving | None:
        """What a CPU run saves without work that was timed in each step without the profiler, of the mean step.

        `in_turn`: ranks may do the work one after another, and each may hold up all others.
        """
        windows = {facts.rank: facts.window("untraced") for facts in self.facts}
        durations_ns = {rank: window.durations_ns for rank, window in windows.items() if window is not None}
        numbers = {(window.first_step, window.steps) for window in windows.values() if window is not None}
        if not self._every_rank() or set(spent_ns) != set(durations_ns) or len(numbers) != 1:
            return None
        share = saved_share_of_steps(spent_ns, durations_ns, self._busy_steps(with_input=True), in_turn=in_turn)
        all_ns = [mean(step_durations_ns) for step_durations_ns in zip(*durations_ns.values(), strict=True)]
        return self.timed(share.least, share.likely, share.most, how, all_ns) if share.least > 0 else None

    def _every_rank(self) -> bool:
        """Whether CPUs compute, and all ranks of the run have facts."""
        ranks = self.measured.known("world_size") or len(self.facts)
        return self.measured.known("device_kind") == "cpu" and len(self.facts) == ranks

    def sampled(
        self,
        low_share: float,
        likely_share: float,
        high_share: float,
        how: str,
        saved_part: tuple[float, float] = _SAMPLED_PART,
    ) -> Saving:
        """The saving from removing work whose time is known from stack samples of untraced steps.

        `saved_part` is the least and the largest part of this time that is saved. The default starts at four fifths,
        because some work usually remains every N steps, and ends three tenths above the time, because other ranks on
        the same cores and the code that runs next are also faster.
        """
        most = min(1.0, saved_part[1] * high_share)
        low = min(most, saved_part[0] * low_share)
        return self._saving(low, most, "sampled", how, min(most, max(low, likely_share)))

    def timed(
        self,
        low_share: float,
        likely_share: float,
        high_share: float,
        how: str,
        durations_ns: Sequence[float] | None = None,
        saved_part: tuple[float, float] = _SAVED_PART,
    ) -> Saving:
        """The saving from removing work that was timed in untraced steps.

        `saved_part` is the least and the largest part of its time that is saved.

        With `durations_ns` of these steps, the shares refer to their mean, else to the step time.
        """
        times = 1.0 if durations_ns is None else mean(durations_ns) / median(durations_ns)
        mean_ns = None if durations_ns is None else times * self.measured.step.time_ns
        most = min(1.0, saved_part[1] * high_share)
        low = min(most, saved_part[0] * low_share)
        return self._saving(low, most, "timed", how, min(most, max(low, likely_share)), mean_ns)

    def of_pass(
        self,
        share: float,
        least: float,
        likely: float,
        most: float,
        how: str,
        saved_part: tuple[float, float] = _SAVED_PART,
    ) -> Saving | None:
        """What a CPU run saves without a part of backward passes that take this share of the step, by their operators.

        `saved_part` is the least and the largest part of its time that is saved.

        Of several ranks the lower end counts the time in which passes compute: in the rest they may wait for
        collectives. None on a GPU, and where the saving may be zero.
        """
        window = self.facts[0].window("untraced") if self.facts else None
        if self.measured.known("device_kind") != "cpu" or window is None or not sum(window.backward_cpu_ns):
            return None
        alone = self.measured.known("world_size") == 1
        computing = 1.0 if alone else min(1.0, sum(window.backward_cpu_ns) / max(1, sum(window.backward_ns)))
        least *= share * computing
        if least <= 0:
            return None
        return self.timed(least, max(least, share * likely), share * most, how, saved_part=saved_part)

    def _saving(
        self,
        low_share: float,
        high_share: float,
        basis: Basis,
        how: str,
        predicted_share: float | None = None,
        mean_ns: float | None = None,
    ) -> Saving:
        """The shares refer to the mean step if it is given, or if the step time is the mean of uneven steps."""
        step = self.measured.step
        mean_ns = step.time_ns if mean_ns is None and step.uneven else mean_ns
        step_ns = step.time_ns if mean_ns is None else mean_ns
        batch = None if self.measured.samples_inferred else self.measured.known("samples_per_step")
        per_sample_us = step_ns / batch / 1e3 if batch else None
        return Saving(
            low_ms=low_share * step_ns / 1e6,
            high_ms=high_share * step_ns / 1e6,
            low_share=low_share,
            high_share=high_share,
            low_us_per_sample=None if per_sample_us is None else low_share * per_sample_us,
            high_us_per_sample=None if per_sample_us is None else high_share * per_sample_us,
            mean_step_ms=None if mean_ns is None else mean_ns / 1e6,
            global_batch=batch,
            predicted_share=predicted_share,
            basis=basis,
            how=how,
        )
