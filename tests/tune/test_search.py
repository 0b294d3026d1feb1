"""The search with trials whose effects and noise are known."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from dptune.present.sections.tuning import trial_line
from dptune.tune import error_budget, order
from dptune.tune.candidate import LEAST_GAIN, Candidate, combined
from dptune.tune.error_budget import ErrorBudget
from dptune.tune.search import Found, InterruptedSearchError, Moment, search
from dptune.tune.timed import Failed, Timed


def candidate(name: str, low: float, high: float, subject: str = "", basis: str = "replayed") -> Candidate:
    return Candidate(name, low_share=low, high_share=high, basis=basis, subjects=frozenset({subject or name}))  # type: ignore[arg-type]


class Known:
    """Trials of 5 s with known savings (absolute, of 100 ns) and noise."""

    def __init__(self, saves: dict[str, float], noise: float = 0.01, seed: int = 1) -> None:
        self.saves, self.noise, self.draw = saves, noise, random.Random(seed)
        self.ran: list[tuple[str, ...]] = []
        self.fails: dict[str, str] = {}
        self.alters: dict[str, str] = {}
        self.ends_at: int | None = None

    def run(self, changes: Sequence[Candidate]) -> Timed | Failed:
        names = tuple(change.name for change in changes)
        if len(self.ran) == self.ends_at:
            raise InterruptedSearchError
        self.ran.append(names)
        for name in names or ("original",):
            if name in self.fails:
                return Failed(self.fails[name], 5.0)
        time = 100 - sum(self.saves[name] for name in names)
        return Timed(time * (1 + self.draw.uniform(-self.noise, self.noise)), 5.0)

    def altered(self, stack: Sequence[Timed], trials: Sequence[Timed], changed: Candidate) -> str:
        return self.alters.get(changed.name, "")


def names(found: Found) -> list[str]:
    return [kept.name for kept in found.stack]


def test_the_line_of_a_trial_names_the_candidate_that_is_ahead() -> None:
    """Without noise: 60 of 100 ns in each trial of "b", 105 in each of "d"; nothing is kept before six rounds."""
    lines: list[str] = []
    runner = Known({"b": 40.0, "d": -5.0}, noise=0.0)
    search(
        [candidate("b", 0.3, 0.5), candidate("d", 0.1, 0.2)],
        runner,
        3600,
        seed=1,
        show=lambda moment: lines.append(trial_line(moment, 3600)),
    )
    assert lines[0] == "first run: original (nothing kept yet; 60 min left)"
    first, later = ([line for line in lines if line.startswith(f"race 1, round {round}:")] for round in (1, 3))
    assert not any("ahead" in line for line in first)
    assert later
    assert all("(nothing kept yet; b ahead: 40.0 % less time; " in line for line in later)


def test_what_saved_most_without_being_shown_to_is_raced_once_more() -> None:
    """Savings of 4 % in noise of 20 % are seen in neither race; "c" costs 30 %, and is raced once."""
    runner = Known({"b": 4.0, "c": -30.0}, noise=0.2, seed=2)
    found = search([candidate("b", 0.3, 0.5), candidate("c", 0.1, 0.2)], runner, 36_000, seed=1)
    assert [(each.candidate.name, each.result) for each in found.attempts] == [
        ("b", "dropped"),
        ("c", "dropped"),
        ("b", "dropped"),
    ]
    assert found.attempts[0].gain is not None
    assert found.attempts[0].gain >= LEAST_GAIN
    assert (found.races, found.ended) == (2, "complete")
    assert found.level_spent == pytest.approx(3 * error_budget.COST)


def test_winners_are_stacked_in_the_order_of_what_they_save() -> None:
    runner = Known({"a": 10.0, "b": 40.0, "c": 0.0, "d": -30.0})
    found = search([candidate(name, 0.1, 0.3) for name in "abcd"], runner, 3600.0, seed=1)
    assert (names(found), found.ended) == (["b", "a"], "complete")
    b, a = (attempt for attempt in found.attempts if attempt.result == "kept")
    assert (b.stack, a.stack) == ((), ("b",))
    assert b.gain == pytest.approx(0.4, abs=0.02)
    assert a.gain == pytest.approx(10 / 60, abs=0.02)  # of what b leaves
    assert a.ratios is not None
    assert a.ratios[0] < 50 / 60 < a.ratios[1] < 1
    dropped = {attempt.candidate.name: attempt.why for attempt in found.attempts if attempt.result == "dropped"}
    assert dropped["d"] == "slower in each of 2 rounds"  # and not run again


def test_nothing_is_kept_of_a_healthy_script() -> None:
    runner = Known(dict.fromkeys("abcdef", 0.0), noise=0.05)
    found = search([candidate(name, 0.05, 0.4) for name in "abcdef"], runner, 3600.0, seed=3)
    assert (names(found), found.ended) == ([], "complete")
    assert found.level_spent == pytest.approx(6 * error_budget.COST)
    assert all(attempt.result == "dropped" for attempt in found.attempts)


def test_what_a_kept_change_already_saves_is_not_raced_again() -> None:
    runner = Known({"workers 4": 40.0, "workers 2": 35.0, "fused": 10.0})
    tried = [
        candidate("workers 4", 0.4, 0.4, "loader"),
        candidate("workers 2", 0.35, 0.36, "loader"),
        candidate("fused", 0.1, 0.1),
    ]
    found = search(tried, runner, 3600.0, seed=1)
    assert names(found) == ["workers 4", "fused"]
    assert [(each.name, why) for each, why in found.waiting] == [
        ("workers 2", "nothing left to save with the kept changes")
    ]


def test_a_change_that_could_not_be_seen_is_tried_again_on_a_much_faster_stack() -> None:
    runner = Known({"a": 70.0, "b": 3.0}, noise=0.04)
    found = search([candidate("a", 0.7, 0.7), candidate("b", 0.02, 0.04)], runner, 36000.0, seed=5)
    stacks = [attempt.stack for attempt in found.attempts if attempt.candidate.name == "b"]
    assert stacks[-1] == ("a",)
    assert names(found) == ["a", "b"]


def test_a_change_that_fails_or_alters_training_is_never_kept() -> None:
    runner = Known({"a": 50.0, "b": 50.0, "c": 5.0})
    runner.fails["a"] = "ValueError: no"
    runner.alters["b"] = "losses differ"
    found = search([candidate(name, 0.3, 0.5) for name in "abc"], runner, 3600.0, seed=1)
    assert names(found) == ["c"]
    why = {attempt.candidate.name: attempt.why for attempt in found.attempts}
    assert (why["a"], why["b"]) == ("ValueError: no", "losses differ")


def test_a_script_that_does_not_run_ends_the_search() -> None:
    runner = Known({"a": 10.0})
    runner.fails["original"] = "no data"
    found = search([candidate("a", 0.1, 0.2)], runner, 3600.0, seed=1)
    assert (found.ended, found.failure, runner.ran) == ("cannot run", "no data", [(), ()])


@pytest.mark.parametrize("limit_s", [30.0, 150.0, 400.0])
def test_time_is_left_for_the_final_comparison(limit_s: float) -> None:
    runner = Known({"a": 30.0, "b": 20.0, "c": 10.0, "d": 5.0})
    found = search([candidate(name, 0.1, 0.3) for name in "abcd"], runner, limit_s, seed=1)
    assert found.ended == "out of time"
    assert found.spent_s == 5.0 * len(runner.ran)
    assert found.spent_s <= max(5.0, limit_s - 2 * 6 * 5.0)
    assert {why for _, why in found.waiting} == {"no time left"}


def test_an_interrupt_keeps_what_was_found_and_the_same_trials_lead_to_the_same_end() -> None:
    whole, cut = (Known({"a": 30.0, "b": 20.0, "c": 0.0}) for _ in range(2))
    tried = [candidate(name, 0.1, 0.3) for name in "abc"]
    expected = search(tried, whole, 3600.0, seed=1)
    cut.ends_at = len(whole.ran) - 3
    found = search(tried, cut, 3600.0, seed=1)
    assert found.ended == "interrupted"
    assert names(found) == names(expected)[: len(found.stack)]
    assert cut.ran == whole.ran[: cut.ends_at]


def test_an_interrupt_between_two_trials_keeps_what_was_found_too() -> None:
    def show(moment: Moment) -> None:
        if moment.stack:
            raise KeyboardInterrupt

    runner = Known({"a": 30.0, "b": 20.0})
    found = search([candidate(name, 0.1, 0.3) for name in "ab"], runner, 3600.0, seed=1, show=show)
    assert (found.ended, names(found)) == ("interrupted", ["a"])


def test_the_error_budget_allows_so_many_candidates_and_kept_ones_are_free() -> None:
    budget = ErrorBudget()
    allowed = budget.candidates
    assert allowed * error_budget.COST <= error_budget.LEVEL < (allowed + 1) * error_budget.COST
    budget.charge(3)
    budget.pay_back()
    assert budget.candidates == allowed - 2
    many = [candidate(f"c{number}", 0.1, 0.3) for number in range(allowed + 3)]
    found = search(many, Known({each.name: 0.0 for each in many}, noise=0.05), 1e6, seed=1)
    assert found.ended == "error budget used"
    assert len({attempt.candidate.name for attempt in found.attempts}) == allowed


def test_smaller_gains_need_more_rounds() -> None:
    assert [order.rounds(gain, 0.03) for gain in (0.5, 0.06, 0.045, 0.01)] == [6, 9, 13, 18]
    fast, slow = candidate("fast", 0.3, 0.3), candidate("slow", 0.04, 0.04)
    assert order.proof_s(slow.expected, 0.03, 5.0) == 18 * 5.0
    assert order.remaining(fast, 0.3, [(fast, 0.1)], 0.5) == pytest.approx(0.4)


def test_a_bound_orders_by_half_and_what_nothing_predicts_comes_last() -> None:
    assert candidate("a", 0.0, 0.3, basis="bound").expected == pytest.approx(0.15)
    assert candidate("a", 0.2, 0.3).expected == pytest.approx(0.25)
    assert Candidate("a").expected < 0.03
    assert combined([Candidate("a")]) == ()


def test_a_candidate_that_no_trial_ran_with_is_left_out_once() -> None:
    runner = Known({"a": 10.0})
    runner.ends_at = 1  # after the first run of the original
    found = search([candidate("a", 0.1, 0.3)], runner, 3600.0, seed=1)
    assert (found.ended, found.attempts, [why for _, why in found.waiting]) == ("interrupted", [], ["interrupted"])
