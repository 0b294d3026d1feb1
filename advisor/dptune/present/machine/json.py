"""A report, a comparison or an outcome of `check` as JSON: files of these names in `schemas/` describe them."""

from __future__ import annotations

import json

from dptune.advice import Report
from dptune.check.result import Gate
from dptune.compare.result import Comparison


def text(report: Report | Comparison | Gate) -> str:
    """The whole of it, in ASCII, so that any terminal, file or name of a file can carry it."""
    return json.dumps(report.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"
