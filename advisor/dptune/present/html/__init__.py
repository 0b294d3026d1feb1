"""Reports as pages of HTML: each one file that needs no network, and no script but to sort tables."""

from __future__ import annotations

from dptune.present.html.page import RunDetails, page
from dptune.present.html.tuning import tuning_page

__all__ = ["RunDetails", "page", "tuning_page"]
