"""Says in run.json how a run ended, where no launcher watches that could."""

from __future__ import annotations

import sys

from dptune.capture.injected.record.plan import Plan
from dptune.runfile import json_files, origin, paths
from dptune.runfile.facts import Facts
from dptune.runfile.record import Ending, RunRecord
from dptune.runfile.redaction import redacted_command


def conclude(plan: Plan, facts: Facts) -> None:
    """Complete run.json and `latest`: rank 0 does, or the first rank of a host that has no run.json of the others."""
    target = plan.path / paths.RUN_JSON
    if plan.launcher or (facts.rank != 0 and target.exists()):
        return
    try:
        record = json_files.read(target, RunRecord)
    except (OSError, ValueError):
        record = RunRecord(
            launched_by="environment", origin=origin.here(), schedule=plan.schedule, cpu_peak=plan.cpu_peak
        )
    record.command = record.command or redacted_command(["python", *sys.argv])
    record.world_size, record.torch = facts.world_size, facts.torch
    record.hosts = sorted({*record.hosts, facts.host})
    how = facts.ended if facts.ended in ("complete", "script-ended") else "failed"
    if facts.ended == "SIGTERM":
        how = "interrupted"
    record.ending = Ending(how, note="" if facts.ended == how else facts.ended)
    json_files.write(target, record)
    if plan.path.parent.name == paths.RUNS.name:
        json_files.name_newest(plan.path.parent, plan.path.name)
