"""The report as one page of HTML: one file that needs no network, and no script but to sort its tables."""

from __future__ import annotations

from dptune.present.html.page import RunDetails, page

__all__ = ["RunDetails", "page"]
