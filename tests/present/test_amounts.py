from __future__ import annotations

import pytest

from dptune.present import amounts


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (0.004, "<0.01"),
        (0.42, "0.42"),
        (9.999, "10.0"),
        (42.04, "42.0"),
        (999.96, "1,000"),
        (4201.4, "4,201"),
    ],
)
def test_a_number_has_three_digits_and_zero_is_not_a_small_one(value: float, said: str) -> None:
    assert amounts.number(value) == said


@pytest.mark.parametrize(
    ("share", "said"),
    [(0, "0 %"), (0.0004, "<0.1 %"), (0.146, "14.6 %"), (0.9994, "99.9 %"), (0.9996, ">99.9 %"), (0.1 * 10, "100 %")],
)
def test_a_share_is_said_in_percent(share: float, said: str) -> None:
    assert amounts.percent(share) == said


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1.00 KiB"),
        (26_214_400, "25.0 MiB"),
        (5 * 1024**4, "5,120 GiB"),
    ],
)
def test_bytes_are_said_in_their_largest_unit(size: int, said: str) -> None:
    assert amounts.data(size) == said


def test_an_interval_that_starts_at_nothing_is_said_as_up_to() -> None:
    assert amounts.between("0", "3.00", "ms") == "up to 3.00 ms"
    assert amounts.between("1.00", "3.00", "ms") == "1.00 to 3.00 ms"
    assert amounts.between("3.00", "3.00", "ms") == "3.00 ms"
