"""The account of a GPU's untraced step, by hand: what shrinks, what stays, and that the parts still sum up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.measured import CLASSES, Account

# A traced step of 100: computed 30, copied 5, waited for input 35, for launches 20, for the host 10.
TRACED = Account(window_ns=100, compute_ns=30, copy_ns=5, input_idle_ns=35, launch_idle_ns=20, host_idle_ns=10)


@pytest.mark.parametrize(
    ("window", "waits", "input_idle", "launch", "host"),
    [
        (80, None, 24, 14, 7),  # 45 of 65 idle are left: 24.2, 13.8 and 6.9, in running totals
        (80, 35, 35, 7, 3),  # the wait is as long untraced: 10 of 30 are left of the rest
        (80, 25, 25, 13, 7),  # it is shorter, as measured: 20 of 30 are left
        (80, 5, 15, 20, 10),  # but the rest is no longer than traced
        (60, 35, 25, 0, 0),  # and there is room for no more
    ],
)
def test_waiting_for_input_keeps_its_duration(
    window: int, waits: int | None, input_idle: int, launch: int, host: int
) -> None:
    found = TRACED.within(window, waits)
    assert (found.compute_ns, found.copy_ns) == (30, 5)
    assert found.input_idle_ns == pytest.approx(input_idle, abs=1)
    assert found.launch_idle_ns == pytest.approx(launch, abs=1)
    assert found.host_idle_ns == pytest.approx(host, abs=1)


@given(
    st.lists(st.integers(0, 10**9), min_size=len(CLASSES), max_size=len(CLASSES)),
    st.floats(0, 1.2),
    st.one_of(st.none(), st.integers(0, 2 * 10**9)),
)
def test_parts_sum_to_the_window_and_none_grows(parts: list[int], share: float, waits: int | None) -> None:
    sizes = dict(zip(CLASSES, parts, strict=True))
    exposed = sum(sizes[f"exposed_{what}_ns"] for what in ("transfer", "waiting", "unsplit"))
    traced = Account(window_ns=sum(parts), **sizes, communication_ns=exposed, hidden_communication_ns=0)
    found = traced.within(round(share * traced.window_ns), waits)
    assert (
        sum(getattr(found, name) for name in CLASSES)
        == found.window_ns
        == min(traced.window_ns, round(share * sum(parts)))
    )
    assert all(0 <= getattr(found, name) <= getattr(traced, name) + 1 for name in CLASSES)
