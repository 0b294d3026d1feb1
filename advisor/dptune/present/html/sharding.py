"""Units of FSDP: how they are sharded, what each pass sends for them, and each unit by itself."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Report
from dptune.present.html.markup import Section, note, paragraph
from dptune.present.html.tables import table
from dptune.present.sections import fsdp


def shard_units(report: Report) -> Iterator[Section]:
    """The passes with all units together, then every unit. Nothing of a run without FSDP."""
    found = report.measured.known("shard_units")
    if found is None:
        if why := fsdp.no_table(report):
            yield Section("shard-units", fsdp.TITLE, "FSDP units", paragraph(why))
        return
    partial = "".join(paragraph(gap) for gap in fsdp.gaps(report, found))
    policies = "".join(paragraph(fsdp.policy_words(policy)) for policy in found.policies)
    passes = table(*fsdp.sums(report, found), "FSDP units by pass")
    remarks = "".join(paragraph(remark) for remark in fsdp.remarks(report, found))
    every = table(*fsdp.units(report, found, found.rows), "FSDP units")
    waits = table(*fsdp.groups(report, found), "Waiting by process group") if len(found.groups) > 1 else ""
    body = f"{partial}{policies}{passes}{remarks}{every}{waits}{note(fsdp.words(report, found))}"
    yield Section("shard-units", fsdp.TITLE, "FSDP units", body)
