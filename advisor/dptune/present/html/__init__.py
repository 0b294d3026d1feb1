"""The report as one page of HTML: pictures and words in one file that needs nothing else, no network and no script."""

from __future__ import annotations

from dptune.present.html.page import page

__all__ = ["page"]
