"""The colours of the report: one hue for each meaning, on a dark and on a light background.

Text is styled by the names of colours that terminals have; these are the values behind them, near those of the HTML
page, which people who are color-blind can distinguish, and dark or light enough to be read on the title's panel.
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
    (244, 110, 72),
    (46, 184, 138),
    (240, 180, 60),
    (92, 168, 236),
    (206, 140, 190),
    (86, 200, 216),
)
LIGHT = _theme(
    (245, 245, 245),
    (30, 30, 30),
    (150, 54, 0),
    (0, 98, 71),
    (118, 79, 0),
    (0, 88, 155),
    (134, 59, 111),
    (0, 94, 117),
)
