"""Long files of tests that wait and long ones that compute take turns; quick ones come last."""

from __future__ import annotations

from pathlib import Path

from .ordering import AS_MUCH_AS, DEAREST, ordered

ROOT = Path(__file__).parent


def of(names: str) -> list[Path]:
    return [Path(f"{name}.py") for name in names.split()]


def test_what_waits_and_what_computes_take_turns_and_quick_files_come_last() -> None:
    files = of("a b q c d r e f")
    assert ordered(files, of("a d"), of("a b c e f")) == of("a b c d e f q r")
    assert ordered(files, [], []) == files


def test_the_dearest_begin_first_and_beside_files_that_wait() -> None:
    waiting = of(" ".join(f"w{number}" for number in range(2 * AS_MUCH_AS)))
    computing = [*of(" ".join(f"c{number}" for number in range(AS_MUCH_AS))), Path("rules/test_recorded.py")]
    found = ordered([*computing, *waiting], waiting, computing)
    assert found[:2] == [Path("rules/test_recorded.py"), waiting[0]]
    assert found.index(computing[0]) == 1 + AS_MUCH_AS  # half of the time of those that compute is the dearest's


def test_the_dearest_are_there() -> None:
    assert all((ROOT / name).exists() for name in DEAREST)
