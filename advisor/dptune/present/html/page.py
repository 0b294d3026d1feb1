"""The page: the first screen, the recommendations, pictures, tables, and the report as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dptune.advice import Report
from dptune.measure.lanes import StepLanes
from dptune.measure.steps.history import WindowHistory
from dptune.predicted import BucketSize
from dptune.present import text as plain
from dptune.present.first_screen import first_screen, reported_straggler
from dptune.present.html import advice
from dptune.present.html.changes import changes
from dptune.present.html.communication import hidden_and_exposed, links
from dptune.present.html.document import document
from dptune.present.html.efficiency import efficiency
from dptune.present.html.first import first
from dptune.present.html.functions import functions
from dptune.present.html.kernels import kernel_classes
from dptune.present.html.markup import WIDE, Section, joined, labelled, paragraph, text, text_block
from dptune.present.html.outliers import outliers
from dptune.present.html.ranks import lateness, ranks
from dptune.present.html.sharding import shard_units
from dptune.present.html.steps import history
from dptune.present.html.tables import collective_table, kernel_table, rank_table
from dptune.present.html.timeline import timeline
from dptune.present.sections.headline import quality
from dptune.present.sections.skipped import skipped


@dataclass(frozen=True)
class RunDetails:
    """What the page shows of the run that the report lacks: steps to draw, step times, bucket sizes that were tried.

    `patches`: whether the first fix can be made as a patch of the script that is here.
    """

    steps: Sequence[StepLanes] = ()
    history: Sequence[WindowHistory] = ()
    sizes: Sequence[BucketSize] = ()
    patches: bool = True


def page(report: Report, details: RunDetails | None = None) -> str:
    """The whole page, one file that fetches nothing."""
    details = details or RunDetails()
    screen = first_screen(report, patches=details.patches)
    sections = list(_sections(report, details))
    shares = "Shares are of traced steps; ms are scaled to untraced steps where those were timed."
    if report.measured.tables_of == "recording":
        shares = "Shares are of the whole recording."
    footer = f"Made by dptune {report.dptune}. {shares}"
    title = f"dptune: {screen.label}, {report.run.subject}"
    description = ". ".join(filter(None, [", ".join(screen.rates), *screen.sentences[:1]])).replace("`", "")
    return document(title, first(screen, advice.anchors(report.advice)), sections, footer, description)


def _sections(report: Report, details: RunDetails) -> Iterator[Section]:
    recorded = report.measured.step.basis == "untraced"
    shown = [
        *ranks(report),
        *timeline(details.steps, named=reported_straggler(report) is not None),
        *(lateness(report) if advice.shows_late_ranks(report) else ()),
        *outliers(report),
        *hidden_and_exposed(report),
        *links(report),
        *shard_units(report),
        *kernel_classes(report),
        *functions(report),
        *efficiency(report),
        *history(details.history, recorded=recorded, step_ns=report.measured.step.known("time_ns")),
        *changes(report, details.sizes),
        *kernel_table(report),
        *collective_table(report),
        *rank_table(report),
    ]
    yield advice.recommendations(report, {section.anchor: section.short for section in shown})
    yield from shown
    yield from _quality(report)
    yield from _rules(report)
    yield _whole(report)


def _quality(report: Report) -> Iterator[Section]:
    if report.trust.level != "sound" or report.trust.findings:
        yield Section("quality", "Data quality", "Data quality", "".join(labelled(list(quality(report, WIDE))[2:])))


def _rules(report: Report) -> Iterator[Section]:
    """The rules that could not run, and those without findings."""
    lines = [line for line in skipped(report, WIDE) if line]
    parts = (
        f"<h3>{text(joined(line))}</h3>" if line[0].role == "strong" else paragraph(joined(line)) for line in lines
    )
    if lines:
        yield Section("rules", "Rules", "Rules", "".join(parts))


def _whole(report: Report) -> Section:
    block = f"<pre>{text_block(plain.text(report, 100))}</pre>"
    body = f'<details class="whole"><summary>Every section as text</summary>{block}</details>'
    return Section("text", "The whole report as text", "Text", body)
