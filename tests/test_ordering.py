"""Long files of tests that wait and long ones that compute take turns; quick ones come last."""

from __future__ import annotations

from pathlib import Path

from .ordering import DEAREST, ordered

ROOT = Path(__file__).parent


def of(names: str) -> list[Path]:
    return [Path(f"{name}.py") for name in names.split()]


def test_what_waits_and_what_computes_take_turns_and_quick_files_come_last() -> None:
    files = of("a b q c d r e f")
    assert ordered(files, of("a d"), of("a b c e f")) == of("a b c d e f q r")
    assert ordered(files, [], []) == files


def test_the_dearest_begin_first() -> None:
    files = [Path("a.py"), Path("b.py"), Path("test_recorded.py"), Path("c.py")]
    assert ordered(files, [], files)[0] == Path("test_recorded.py")
    assert ordered(files, files, [])[0] == Path("test_recorded.py")
    assert {path.name for path in ROOT.rglob("test_*.py")} >= DEAREST
