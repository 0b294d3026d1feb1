"""A report or a comparison as JSON: `schemas/report.json` and `schemas/comparison.json` describe them."""

from __future__ import annotations

import json

from dptune.advice import Report
from dptune.compared import Comparison


def text(report: Report | Comparison) -> str:
    """The whole of it, in ASCII, so that any terminal, file or name of a file can carry it."""
    return json.dumps(report.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"
