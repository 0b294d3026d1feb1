from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.present.visible import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [bold]x[/bold] <b>", "plain [bold]x[/bold] <b>"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\nb\tc\r", r"a\x0ab\x09c\x0d"),
        ("\x9b31m", r"\x9b31m"),
        ("abc\u202efdp.exe", r"abc\u202efdp.exe"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("bad\udc80name", r"bad\udc80name"),
        ("größe 卷积", "größe 卷积"),
    ],
)
def test_what_cannot_be_seen_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text(st.characters(codec=None)))
def test_nothing_invisible_is_left_and_twice_is_once(text: str) -> None:
    shown = visible(text)
    assert not any(unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for c in shown)
    assert visible(shown) == shown
    shown.encode()  # raises on a surrogate
