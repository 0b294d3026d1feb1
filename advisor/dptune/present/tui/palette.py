"""The colours of the report: one hue for each meaning, on a dark and on a light background.

Text is styled by the names of colours that terminals have; these are the values behind them, near those of the HTML
page, which people who are color-blind can distinguish.
"""

from __future__ import annotations

from rich.terminal_theme import TerminalTheme

_Rgb = tuple[int, int, int]


def _theme(back: _Rgb, fore: _Rgb, *hues: _Rgb) -> TerminalTheme:
    """`hues`: red, green, yellow, blue, magenta, cyan; the bright ones are the same."""
    return TerminalTheme(back, fore, [back, *hues, fore], [back, *hues, fore])


DARK = _theme(
    (18, 18, 18),
    (224, 224, 224),
    (240, 104, 66),
    (46, 184, 138),
    (240, 180, 60),
    (92, 168, 236),
    (206, 140, 190),
    (86, 200, 216),
)
LIGHT = _theme(
    (245, 245, 245),
    (30, 30, 30),
    (190, 68, 0),
    (0, 124, 90),
    (146, 98, 0),
    (0, 96, 170),
    (150, 66, 124),
    (0, 112, 138),
)
