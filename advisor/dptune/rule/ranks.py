"""What a rule can ask about ranks and devices: which rank is late, and what holds up a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from dptune.advice import Evidence
from dptune.measured import HOST_IDLE, CommunicationFigures, DelayedFigures, Missing, StragglerFigures
from dptune.rule.recorded import RecordedView

_LAG_SHARE = 0.1  # of the step, from which a rank is late: on shared machines healthy ranks lag by a few per cent
_STEADY = 0.5  # of the median lag, in every traced step: then it is not chance, even with few steps
_ENOUGH_LAGS = 10  # untraced steps with a late rank
LEADING = 0.75  # of those: one of two equal ranks is the later one in 15 of 20 with 4 %


@dataclass(frozen=True)
class _CoreWait:
    """In a step: how long a training thread waited for a core, and the CPU time of other processes on its machine."""

    wait_ns: float
    others_ns: float


@dataclass(frozen=True)
class RanksView(RecordedView):
    """Comparisons of ranks and devices."""

    def unstretched(self, share: float) -> float:
        """A share of the traced step, converted to a share of the step time as an upper bound.

        The profiler slows operators, not the link: the same milliseconds are a larger share of the untraced step.
        """
        stretch = self.measured.traced_step_ns / self.measured.recorded_step_ns
        return min(1.0, max(0.0, share) * max(1.0, stretch))

    def gpus(self) -> dict[str, tuple[str, str]]:
        """Compute capability and name, "" where unknown, of each GPU model that either is known of; by what shows it.

        The capability in the trace counts before that in the facts.
        """
        recorded = {each.rank: each.device.capability for each in self.facts if each.device}
        found: dict[str, tuple[str, str]] = {}
        for rank in self.measured.ranks:
            name = str(rank.known("device_name") or "")
            capability = str(rank.known("compute_capability") or recorded.get(rank.rank, ""))
            if shown := name or (capability and f"compute capability {capability}"):
                known = found.get(shown, ("", ""))[0]
                found[shown] = (known or capability, name)
        return found

    def gpus_have(self, has: Callable[[str, str], bool], what: str) -> bool:
        """Whether the GPUs have something, by compute capability and name, "" where unknown.

        Raises Missing where neither is known, and where only some have it.
        """
        found = {shown: has(*identity) for shown, identity in self.gpus().items()}
        if not found:
            raise Missing("the GPU model is unknown, and so are the dtypes of its tensor cores")
        if len(set(found.values())) > 1:
            raise Missing(f"ranks compute on different GPU models, and not all have {what}: {' and '.join(found)}")
        return all(found.values())

    def exposed_transfer(self) -> Evidence:
        """Exposed communication that may be transfer: all of it but what is known to be waiting for a late rank.

        No change of what is sent saves more. Where traces of ranks are missing, the two cannot be separated.
        """
        unsplit = " or waiting" if self.measured.account.exposed_unsplit_ns else ""
        where = self.measured.where("exposed_transfer_ns", "exposed_unsplit_ns")
        share = self.measured.share("exposed_without_waiting_ns")
        return Evidence(label=f"exposed communication{unsplit}", value=share, unit="of a step").at(where)

    @property
    def one_is_late(self) -> bool:
        """Whether the others wait for one rank for 10 % of a step: without one collective they wait in the next."""
        late = self.measured.known("straggler")
        return late is not None and late.lag_ns >= _LAG_SHARE * self.measured.traced_step_ns

    @property
    def waiting_that_stays(self) -> float:
        """Exposed waiting for one late rank as a share of the traced step: fewer collectives do not make it shorter."""
        return self.measured.share("exposed_waiting_ns") if self.one_is_late else 0.0

    def held_up_share(self, row: CommunicationFigures) -> float:
        """The exposed time of communication as a share of the traced step: what a step saves without it.

        Where one rank is late, waiting for it is left out: the next collective would wait for it instead.
        """
        return (row.exposed_transfer_ns if self.one_is_late else row.exposed_ns) / self.measured.account.window_ns

    def most_exposed(self, rows: Sequence[CommunicationFigures]) -> float:
        """Exposed communication on the rank with most of it, as a share of the step: an upper bound.

        A rank that receives waits; one that sends continues and waits for the other in the next all-reduce. Only one
        process was traced, and others may communicate more slowly, so half of the spread of the timed processes is
        added. In three draws of the advice benchmark, removing all communication saved up to 1.7 % of a step more than
        was traced; half of the spread was 1, 3 and 5 %.
        """
        return self.most_of_process(sum(map(self._most_share, rows)))

    def most_overlapped(self, delay: DelayedFigures) -> float:
        """Exposed time of delayed collectives that compute could overlap / step, on the rank where it is longest.

        It is an upper bound. Where one rank is late, waiting for it is left out, see `held_up_share`.
        """
        return self.most_of_process(delay.most_transfer_share if self.one_is_late else delay.most_share)

    def _most_share(self, row: CommunicationFigures) -> float:
        """On the rank with most of it; without waiting for one late rank, see `held_up_share`, which others lack."""
        transfer, exposed = self.held_up_share(row), row.exposed_ns / self.measured.account.window_ns
        return row.most_share if transfer >= exposed else min(transfer, row.most_share)

    def slowed_share(self, purpose: str) -> float:
        """By how much hidden communication for this purpose slows compute, as a share of the traced step; 0 on a CPU,
        or if the slowdown was not measured.
        """
        slowdown = self.measured.overlap.known("slowdown") or 1.0
        if slowdown <= 1 or self.measured.known("device_kind") == "cpu":
            return 0.0
        hidden_ns = sum(row.hidden_ns for row in self.measured.overlap.rows if row.known("purpose") == purpose)
        return hidden_ns / self.measured.account.window_ns * (1 - 1 / slowdown)

    def most_of_process(self, share: float, *, traced: bool = True) -> float:
        """A share of the steps of one rank as an upper bound for any process: see `most_exposed`."""
        return min(1.0, (self.unstretched(share) if traced else share) + self._apart())

    def _apart(self) -> float:
        """Half of the spread between the fastest and slowest timed process, as a share of the step; else 0."""
        step = self.measured.step
        if not step.repeats_ns:
            return 0.0
        processes = [step.untraced_median_ns, *step.repeats_ns]
        return (max(processes) - min(processes)) / 2 / step.time_ns

    def busy_ns(self, *, with_input: bool = True) -> dict[int, float] | None:
        """Median time that each rank is busy in an untraced step, not waiting for another rank, ns by rank.

        This is the time outside of its backward passes plus the CPU time in them. With `with_input=False`, the wait for
        its loader is subtracted. None where devices compute, or where any rank lacks these times.
        """
        steps = self._busy_steps(with_input=with_input)
        return None if steps is None else {rank: median(times) for rank, times in steps.items()}

    def _busy_steps(self, *, with_input: bool) -> dict[int, list[float]] | None:
        """The busy times of each rank by step, ns: see `busy_ns`."""
        if self.measured.known("device_kind") != "cpu" or {rank_facts.rank for rank_facts in self.facts} != {
            rank.rank for rank in self.measured.ranks
        }:
            return None
        busy = {}
        for facts in self.facts:
            window = facts.window("untraced")
            if window is None or not window.steps or len(window.backward_cpu_ns) != window.steps:
                return None
            waited = [0] * window.steps if with_input else window.loader_wait_ns
            if len(waited) != window.steps:
                return None
            parts = zip(window.durations_ns, window.backward_ns, window.backward_cpu_ns, waited, strict=True)
            busy[facts.rank] = [float(took - backward + computed - wait) for took, backward, computed, wait in parts]
        return busy

    def untraced_lags(self) -> list[tuple[int, float]]:
        """For each step without the profiler: the busiest rank, and by how many ns it exceeds the mean of the others.

        Empty where devices compute, with one rank, or where ranks timed different steps.
        """
        steps = self._busy_steps(with_input=True) or {}
        windows = [facts.window("untraced") for facts in self.facts]
        if len(steps) < 2 or len({(window.first_step, window.steps) for window in windows if window is not None}) > 1:
            return []
        found = []
        for busy in zip(*steps.values(), strict=True):
            of_rank = dict(zip(steps, busy, strict=True))
            latest = max(of_rank, key=lambda rank: of_rank[rank])
            found.append((latest, of_rank[latest] - mean(ns for rank, ns in of_rank.items() if rank != latest)))
        return found

    def late_untraced(self, lag_ns: int = 0) -> list[int]:
        """The late rank of each step without the profiler, if most of these steps show a lag like the traced `lag_ns`.

        Empty otherwise: a sleep in a backward pass shows in traced steps only.
        """
        untraced = self.untraced_lags()
        far_ns = max(_LAG_SHARE * (self.measured.step.known("time_ns") or 0), _STEADY * lag_ns)
        late = [rank for rank, ns in untraced if ns >= far_ns > 0]
        return late if len(late) >= max(_ENOUGH_LAGS, len(untraced) / 2) else []

    def leads(self, late: StragglerFigures, least_share: float, most_chance: float) -> bool:
        """Whether the others always wait for the same rank, not for a different one in each step.

        Untraced steps decide if most of them show a similar lag: there are more of them, and tracing does
        not slow them. Otherwise traced steps decide: chance rarely makes one of equal ranks late this often
        (`most_chance`), or the rank is late by about the same time in every step.
        """
        untraced = self.late_untraced(late.lag_ns)
        if untraced:
            return untraced.count(late.rank) >= LEADING * len(untraced)
        ranks = {rank.rank: rank for rank in self.measured.ranks}
        lags = [step.lag_ns for step in ranks[late.rank].arrival.steps]
        least_ns = max(_STEADY * late.lag_ns, _LAG_SHARE * self.measured.traced_step_ns)
        steady = min(lags, default=0) >= least_ns
        often = steady or late.chance(round(len(lags) * late.late_share), len(ranks)) <= most_chance
        return late.steps_share >= least_share and often

    def core_wait_ns(self, rank: int) -> float:
        """How much longer this rank's training thread waits for a core in a step than those of the ranks beside it.

        At most what other processes of its machine run in a step. It is chance which of the ranks of one machine they
        slow down. 0 for a rank that is alone on its machine, and where these times were not recorded.
        """
        waits = self._core_waits()
        host = next((facts.host for facts in self.facts if facts.rank == rank), None)
        others = [
            waits[rank_facts.rank].wait_ns
            for rank_facts in self.facts
            if rank_facts.host == host and rank_facts.rank in waits
        ]
        if rank not in waits or len(others) < 2:
            return 0.0
        others.remove(waits[rank].wait_ns)
        return max(0.0, min(waits[rank].wait_ns - median(others), waits[rank].others_ns))

    def longest_core_wait_ns(self) -> float:
        """How long other processes make a training thread wait for a core in a step, on the rank with the longest wait.

        0 where this was not recorded.
        """
        return max(
            (min(core_wait.wait_ns, core_wait.others_ns) for core_wait in self._core_waits().values()), default=0.0
        )

    def _core_waits(self) -> dict[int, _CoreWait]:
        """By rank, from the traced steps, whose lags are known; where they were too few to count, from the others."""
        for name in ("light", "untraced"):
            loads = {figures.host: figures for figures in self.measured.known("load") or [] if figures.window == name}
            found = {}
            for facts in self.facts:
                window, load = facts.window(name), loads.get(facts.host)
                counted = window.load if window is not None and window.steps else None
                if window is not None and load is not None and counted and counted.training_waited_ns is not None:
                    ran_ns = float(load.other_cores) * counted.wall_ns
                    found[facts.rank] = _CoreWait(counted.training_waited_ns / window.steps, ran_ns / window.steps)
            if found:
                return found
        return {}

    def most_share(self, class_ns: str) -> float:
        """The share of traced steps in a class of the account, in each step on the device where it takes longest.

        A class can hold up a step for this time, because the other devices wait for that device.
        """
        by_step: dict[int, int] = {}
        for rank in self.measured.ranks:
            for step in (step for device in rank.devices for step in device.steps):
                by_step[step.number] = max(by_step.get(step.number, 0), getattr(step.account, class_ns))
        return sum(by_step.values()) / max(1, len(by_step)) / self.measured.traced_step_ns

    def idle_share(self) -> float:
        """The share of a step in which the device that computes longest in it neither computes nor waits for input.

        The profiler slows the host, not the GPUs, and no step is shorter than the compute of any device.
        """
        computed_ns = self.most_share("compute_ns") * self.measured.traced_step_ns
        untraced = self.measured.input.basis == "untraced" and self.measured.input.known("wait_share")
        waits = self.measured.step_share("input_idle_ns") if untraced else 0.0
        return max(0.0, 1 - computed_ns / self.measured.recorded_step_ns - waits)

    def host_caused_idle_share(self) -> float:
        """The share of a traced step in which devices idle while the script is blocked, launches or runs Python."""
        return sum(self.measured.share(name) for name in HOST_IDLE)

    def allocating_share(self) -> float:
        """The share of a step in the driver's memory calls, on the rank with the largest share; 0 if not known."""
        shares = [memory.known("malloc_share") for memory in self.measured.known("memory") or []]
        return max((share for share in shares if share is not None), default=0.0)
