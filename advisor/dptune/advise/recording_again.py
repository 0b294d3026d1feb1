"""How to get a recording of a run, or a version of dptune that reads it."""

from __future__ import annotations

from collections.abc import Sequence

from dptune.finding import SCHEMA_NEWER, Finding

RECORD = "Record it: `dptune profile train.py`, with your script's name and arguments."
UPDATE = "Update dptune (`pip install --upgrade dptune`): a newer version recorded this run."


def recording(findings: Sequence[Finding]) -> str:
    """How to have the run recorded; a newer dptune recorded it already where that wrote a file."""
    return UPDATE if any(finding.code == SCHEMA_NEWER for finding in findings) else RECORD
