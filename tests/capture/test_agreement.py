"""All ranks change windows at the same steps, whatever their clocks say and however they are apart.

Each rank is a thread with an agenda and a clock of its own. One thread runs at a time, the one that is earliest in made
time, so that what happens is the same each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.runfile.record import Schedule

from .conftest import Run

pytest.importorskip("torch", reason="the agenda asks torch for its process group")
from dptune.capture.injected.observe import process_rank
from dptune.capture.injected.record import agenda as agendas
from dptune.capture.injected.record import agreement

Moments = list[tuple[int, str, str]]
HOUR = 3600.0


@dataclass
class World:
    """Ranks in made time. `store_ends_at`: from then on every request to the store fails."""

    ranks: int
    offsets: list[float]
    store_s: float = 1e-4
    store_ends_at: float = float("inf")
    requests: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.times = [0.0] * self.ranks
        self.runs = [True] * self.ranks  # False while in a collective, and at the end
        self.there: dict[int, list[int]] = {}
        self.data: dict[str, str] = {}
        self.turn = threading.Condition()
        self.this = threading.local()
        self.waited_s = [0.0] * self.ranks  # for a decision

    @property
    def rank(self) -> int:
        return int(self.this.rank)

    def pass_time(self, seconds: float) -> None:
        with self.turn:
            self.times[self.rank] += seconds
            self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        self.turn.notify_all()
        own = self.rank
        assert self.turn.wait_for(lambda: self.runs[own] and self._earliest() == own, timeout=600), "ranks hang"

    def _earliest(self) -> int:
        return min((rank for rank in range(self.ranks) if self.runs[rank]), key=lambda rank: (self.times[rank], rank))

    def meet(self, step: int) -> None:
        """A collective: all go on when the last has come."""
        with self.turn:
            come = self.there.setdefault(step, [])
            come.append(self.rank)
            if len(come) < self.ranks:
                self.runs[self.rank] = False
            else:
                latest = max(self.times)
                for rank in come:
                    self.times[rank], self.runs[rank] = latest, True
            self._wait_for_turn()

    # What `time` and the store are to the agenda.

    def monotonic(self) -> float:
        return self.times[self.rank] + self.offsets[self.rank]

    def sleep(self, seconds: float) -> None:
        self.waited_s[self.rank] += seconds
        self.pass_time(seconds)

    def _asked(self, what: str) -> None:
        self.requests.append((self.rank, what))
        self.pass_time(self.store_s)
        if self.times[self.rank] >= self.store_ends_at:
            raise RuntimeError("Connection reset by peer")

    def check(self, keys: list[str]) -> bool:
        self._asked("check")
        return all(key in self.data for key in keys)

    def get(self, key: str) -> bytes:
        self._asked("get")
        return self.data[key].encode()

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self._asked("compare_set")
        assert expected == ""
        return self.data.setdefault(key, desired).encode()

    def train(self, schedule: Schedule, step_s: Callable[[int, int], float], meets: Callable[[int], bool]) -> Moments:
        """Every rank to the end of its agenda; what all of them did, at which step."""
        done: list[Moments] = [[] for _ in range(self.ranks)]
        problems: list[BaseException] = []

        def rank_trains(rank: int) -> None:
            self.this.rank = rank
            try:
                with self.turn:
                    self._wait_for_turn()
                agenda = agendas.Agenda(schedule)
                while not agenda.over:
                    self.pass_time(step_s(rank, agenda.step))
                    if meets(agenda.step):
                        self.meet(agenda.step)
                    due = agenda.tick()
                    done[rank] += [(agenda.step, *what) for what in due]
            except BaseException as problem:
                problems.append(problem)
            finally:
                with self.turn:
                    self.runs[rank] = False
                    self.turn.notify_all()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(agendas, "time", self)
            patch.setattr(agreement, "time", self)
            patch.setattr(process_rank, "rank", lambda: self.rank)
            patch.setattr(process_rank, "world_size", lambda: self.ranks)
            patch.setattr(process_rank, "in_group", lambda: True)
            patch.setattr(agreement.distributed_c10d, "_get_default_store", lambda: self)
            threads = [threading.Thread(target=rank_trains, args=(rank,)) for rank in range(self.ranks)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not problems, problems
        assert all(moments == done[0] for moments in done), done
        return done[0]


def always(step: int) -> bool:
    return True


def never(step: int) -> bool:
    return False


def at_steps(moments: Moments) -> dict[str, int]:
    return {f"{action} {window}": step for step, action, window in moments}


SECONDS = st.floats(min_value=0.0, max_value=HOUR)


@given(
    ranks=st.integers(2, 8),
    starts=st.lists(SECONDS, min_size=8, max_size=8),
    offsets=st.lists(st.floats(-HOUR, HOUR), min_size=8, max_size=8),
    paces=st.lists(st.sampled_from([0.001, 0.3, 3.0, 7.0, 12.0, 25.0, 70.0]), min_size=8, max_size=8),
    later=st.sampled_from([1.0, 0.1, 30.0]),
    meets=st.sampled_from([always, never, lambda step: step % 5 == 4]),
    window_s=st.sampled_from([0.0, 10.0, 60.0]),
    least_s=st.sampled_from([0.0, 1.0]),
    light_most=st.sampled_from([0, 20]),
    uneven=st.sampled_from([0.0, 0.1, 0.5]),
    store_s=st.sampled_from([1e-4, 0.5]),
)
def test_all_ranks_change_windows_at_the_same_steps(
    ranks: int,
    starts: list[float],
    offsets: list[float],
    paces: list[float],
    later: float,
    meets: Callable[[int], bool],
    window_s: float,
    least_s: float,
    light_most: int,
    uneven: float,
    store_s: float,
) -> None:
    """Whatever the start of each takes, and its steps, which also get quicker or slower; apart or together."""
    schedule = Schedule(untraced=12, window_s=window_s, least_s=least_s, light_most=light_most)
    if least_s:
        paces = [max(pace, 0.05) for pace in paces]
        later = max(later, 1.0)

    def step_s(rank: int, step: int) -> float:
        pace = paces[rank] * (later if step > 10 else 1.0) * (1 + uneven * (step % 3))
        return (0.0 if step else starts[rank]) + pace

    moments = World(ranks, offsets, store_s).train(schedule, step_s, meets)
    assert [what for what in at_steps(moments) if what.startswith("close")] == [
        "close untraced",
        "close light",
        "close detailed",
    ]


@pytest.mark.parametrize(
    ("spread", "light"),
    [
        (0.0, 5),
        (0.05, 5),  # quartiles 5 % of the step apart: 2 (1.25 x 0.05 / 1.349 / 0.05)^2 = 1.7 steps would do
        (0.12, 10),  # 2 (1.25 x 0.12 / 1.349 / 0.05)^2 = 9.9
        (0.5, 20),  # 172
    ],
)
@pytest.mark.parametrize("ranks", [2, 5])
def test_as_many_traced_steps_as_their_spread_asks_for(ranks: int, spread: float, light: int) -> None:
    """Steps of 1 - spread / 2, 1 and 1 + spread / 2, each as often, in turn; the quartiles are the outer ones."""
    pattern = [1 - spread / 2, 1.0, 1 + spread / 2, 1.0]
    pattern = [pattern[0], pattern[2], pattern[1], pattern[0], pattern[2]]
    world = World(ranks, [rank * 500.0 for rank in range(ranks)])
    steps = at_steps(world.train(Schedule(light_most=20), lambda _, step: 0.1 * pattern[step % 5], always))
    assert steps["close light"] - steps["open light"] == light


def test_a_number_of_traced_steps_that_was_asked_for_is_kept() -> None:
    uneven = World(2, [0.0, 0.0]).train(Schedule(light=7), lambda _, step: 0.1 + 0.1 * (step % 2), always)
    steps = at_steps(uneven)
    assert steps["close light"] - steps["open light"] == 7


def test_more_traced_steps_are_bounded_in_time() -> None:
    """By hand: steps of 2.5 s in the mean reach 20 s after 8 or 9 of them."""
    uneven = World(2, [0.0, 0.0]).train(Schedule(light_most=20), lambda _, step: 1.5 + 2.0 * (step % 2), always)
    steps = at_steps(uneven)
    assert 8 <= steps["close light"] - steps["open light"] <= 9


def test_without_the_store_traced_steps_are_those_asked_for() -> None:
    world = World(3, [0.0] * 3, store_ends_at=0.0)
    steps = at_steps(world.train(Schedule(light_most=20), lambda _, step: 0.1 + 0.1 * (step % 2), always))
    assert steps["close light"] - steps["open light"] == 5


def test_how_many_steps_are_traced_costs_few_requests() -> None:
    """By hand: 20 of 50 steps are traced, and a rank other than the first asks at a few of them."""
    world = World(4, [0.0] * 4)
    world.train(Schedule(light_most=20), lambda _, step: 0.1 + 0.1 * (step % 2), always)
    for rank in range(1, 4):
        assert len([who for who, _ in world.requests if who == rank]) <= 30


@pytest.mark.parametrize("start_s", [0.5, 22.0, 27.0, 90.0, HOUR])
@pytest.mark.parametrize("late", [0.0, 20.0])
def test_a_slow_start_is_no_step(start_s: float, late: float) -> None:
    """By hand: 5 steps of warm-up, 20, set-up, 5, set-up, 3, however long the first one takes, and on whom."""
    world = World(2, [0.0, 0.0])
    moments = world.train(Schedule(), lambda rank, step: 0.1 + (0 if step else start_s + late * rank), always)
    steps = at_steps(moments)
    assert [steps["open untraced"], steps["open light"], steps["open detailed"], steps["end "]] == [5, 26, 32, 35]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ten_second_steps_of_several_ranks(ranks: int) -> None:
    """By hand, as of one rank: 60 s without the profiler are 6 steps."""
    steps = at_steps(World(ranks, [rank * 500.0 for rank in range(ranks)]).train(Schedule(), lambda *_: 10.0, always))
    assert steps["close untraced"] - steps["open untraced"] == 6
    assert steps["open untraced"] == 5
    assert steps["close light"] - steps["open light"] == 5


def test_long_steps_end_windows_soon() -> None:
    """By hand: of steps of two minutes, the fewest that a decision two steps ahead allows."""
    steps = at_steps(World(2, [0.0, HOUR]).train(Schedule(), lambda *_: 120.0, always))
    assert steps["open untraced"] == 4
    assert steps["close untraced"] - steps["open untraced"] == 3
    assert steps["close light"] - steps["open light"] == 3


def test_short_steps_last_as_long_as_they_have_to() -> None:
    world = World(2, [0.0, HOUR])
    steps = at_steps(world.train(Schedule(least_s=3.0), lambda *_: 0.002, always))
    assert (steps["close untraced"] - steps["open untraced"]) * 0.002 == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize(("schedule", "most"), [(Schedule(), 9), (Schedule(least_s=3.0), 40)])
def test_short_steps_hardly_ask_the_store(schedule: Schedule, most: int) -> None:
    """Of 35 steps, and of 1,500: nobody pays for a request in each."""
    world = World(4, [0.0] * 4)
    world.train(schedule, lambda *_: 0.002, always)
    for rank in range(4):
        assert len([who for who, _ in world.requests if who == rank]) <= most
    assert world.waited_s == [0.0] * 4


def test_ranks_that_never_meet_wait_once_and_not_for_long() -> None:
    """Rank 0 starts an hour after the others, and no collective holds these."""
    world = World(4, [0.0] * 4)
    steps = at_steps(world.train(Schedule(), lambda rank, step: 20.0 + (HOUR if not rank + step else 0.0), never))
    assert steps["end "] == 35  # the full numbers of steps: nobody could say earlier
    assert max(world.waited_s) < 4.0


@pytest.mark.parametrize("gone_at", [0.0, 40.0, 200.0])
def test_without_the_store_each_window_has_its_full_number_of_steps(gone_at: float) -> None:
    world = World(3, [0.0] * 3, store_ends_at=gone_at)
    steps = at_steps(world.train(Schedule(), lambda *_: 10.0, always))
    assert steps["end "] >= 5 + 6 + 1 + 5 + 1 + 3
    assert world.waited_s == [0.0] * 3


def test_ranks_without_a_group_count_steps() -> None:
    """Started as ranks, and not yet, or never, in a process group: their clocks are not asked."""
    for pace in (0.5, 40.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("WORLD_SIZE", "2")
            patch.setenv("RANK", "1")
            world = World(1, [0.0])
            world.this.rank = 0
            patch.setattr(agendas, "time", world)
            agenda = agendas.Agenda(Schedule())
            while not agenda.over:
                world.times[0] += pace
                agenda.tick()
            assert agenda.step == Schedule().total_steps


SLOW_START = """
    import time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(200):
        if step == 0:
            time.sleep(0.6 + 0.4 * dist.get_rank())
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.records
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_a_first_step_that_is_slow_by_another_amount_on_each_rank(profile: Callable[..., Run], ranks: int) -> None:
    run = profile(SLOW_START, "--nproc-per-node", str(ranks), "--window-time", "6", "--warmup", "5")
    assert run.status == 0, run.err
    windows = {tuple((w.name, w.first_step, w.steps) for w in run.facts(rank).windows) for rank in range(ranks)}
    (alike,) = windows
    assert alike[0][:2] == ("untraced", 6)
