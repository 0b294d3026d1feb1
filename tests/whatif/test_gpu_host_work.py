"""What hosts do before each call, by hand: work that is spread or gone, and what varies by chance."""

from __future__ import annotations

import pytest

from dptune.whatif.gpu.host_work import HostWork

CALLS = 4
# Of two ranks, by step; the first does not count.
BY_CHANCE = ((100.0, 100.0), (100.0, 90.0), (110.0, 100.0), (90.0, 110.0), (100.0, 100.0))


def spent(more: dict[tuple[int, int, int], float], slow: float = 1.0) -> dict[tuple[int, int], dict[int, float]]:
    """Each call takes these, on rank 1 `slow` times as long, and some of a step, call and rank take longer."""
    return {
        (step, call): {
            rank: ns * (slow if rank else 1.0) + more.get((step, call, rank), 0.0) for rank, ns in enumerate(of_ranks)
        }
        for step, of_ranks in enumerate(BY_CHANCE)
        for call in range(CALLS)
    }


def near(found: dict[tuple[int, int], dict[int, float]], true: dict[tuple[int, int], dict[int, float]]) -> float:
    """The largest difference, as a share."""
    return max(abs(found[key][rank] / ns - 1) for key, of_ranks in true.items() for rank, ns in of_ranks.items())


def after(work: HostWork, before: dict[tuple[int, int], dict[int, float]]) -> dict[tuple[int, int], dict[int, float]]:
    factors = work.factors(before)
    return {
        key: {rank: ns * factors.get(key, {}).get(rank, 1.0) for rank, ns in of_ranks.items()}
        for key, of_ranks in before.items()
    }


@pytest.mark.parametrize("work", [HostWork(), HostWork(1)])
def test_hosts_vary_by_chance_as_before(work: HostWork) -> None:
    assert near(after(work, spent({})), spent({})) < 1e-9


def test_a_slower_host_is_as_quick_as_the_others_and_varies_as_before() -> None:
    slow, even = spent({}, slow=1.6), spent({})
    for key, of_ranks in after(HostWork(1), slow).items():
        assert of_ranks == pytest.approx(even[key])
    for key, of_ranks in after(HostWork(), slow).items():
        assert of_ranks == pytest.approx({rank: 1.3 * ns for rank, ns in even[key].items()})


def test_work_of_single_steps_is_spread_or_gone() -> None:
    """Rank 1 takes 1,000 longer for a call of the third step: about half of it each, or nothing."""
    late = spent({(2, 2, 1): 1000.0})
    shared, gone = after(HostWork(), late), after(HostWork(1), late)
    assert shared[2, 2] == pytest.approx({0: 110 + 500, 1: 100 + 500}, rel=0.03)
    assert gone[2, 2] == pytest.approx({0: 110, 1: 100}, rel=0.1)
    assert near(gone, spent({})) < 0.1


def test_a_call_of_one_rank_alone_stays() -> None:
    alone = {(step, 0): {0: 100.0} for step in range(3)}
    assert HostWork(0).factors(alone) == HostWork().factors(alone) == {}
