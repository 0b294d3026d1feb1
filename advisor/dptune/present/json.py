"""The report as JSON: `schemas/report.json` describes it."""

from __future__ import annotations

import json

from dptune.advice import Report


def text(report: Report) -> str:
    """The whole report, in ASCII, so that any terminal, file or name of a file can carry it."""
    return json.dumps(report.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"
