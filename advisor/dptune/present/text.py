"""The report as text, for a terminal or a file: the first screen, one section, or the whole page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import Report
from dptune.present.ink import paint
from dptune.present.lines import Line
from dptune.present.sections import without_steps
from dptune.present.sections.advice import advice
from dptune.present.sections.breakdown import account
from dptune.present.sections.critical_path import path
from dptune.present.sections.efficiency import efficiency
from dptune.present.sections.first import first
from dptune.present.sections.fsdp import fsdp
from dptune.present.sections.gaps import gaps
from dptune.present.sections.headline import headline, quality, source, trust, which
from dptune.present.sections.inferred import inferred
from dptune.present.sections.kernels import kernels
from dptune.present.sections.links import links
from dptune.present.sections.memory import memory
from dptune.present.sections.outliers import outliers
from dptune.present.sections.phases import phases
from dptune.present.sections.ranks import ranks
from dptune.present.sections.skipped import next_command, skipped
from dptune.present.sections.sources import attribution
from dptune.present.sections.steps import steps
from dptune.present.sections.traffic import collectives, copies, data_loading

SECTIONS: dict[str, without_steps.Section] = {
    "quality": quality,
    "advice": advice,
    "breakdown": account,
    "phases": phases,
    "fsdp": fsdp,
    "path": path,
    "gaps": gaps,
    "steps": steps,
    "ranks": ranks,
    "outliers": outliers,
    "collectives": collectives,
    "links": links,
    "copies": copies,
    "kernels": kernels,
    "efficiency": efficiency,
    "sources": attribution,
    "memory": memory,
    "input": data_loading,
    "inferred": inferred,
    "skipped": skipped,
    "files": source,
}  # in the order of the page
_ALONE = "quality"  # this section repeats what the headline of a whole page already has
_PAGE = (which, headline, trust, *(section for name, section in SECTIONS.items() if name != _ALONE), next_command)


def page(report: Report, width: int) -> Iterator[Line]:
    """Every section of the report, as lines."""
    return without_steps.page(_PAGE, report, width)


def text(report: Report, width: int = 80, colour: bool = False, blocks: bool = True) -> str:
    """The whole report, folded at `width`, ending with a line break; `blocks`: see `dptune.present.ink.paint`."""
    return paint(page(report, width), colour, blocks)


def first_screen(
    report: Report, width: int = 80, colour: bool = False, blocks: bool = True, patches: bool = True
) -> str:
    """The first screen alone: at most 24 lines at 80 columns. Options: see `dptune.present.sections.first.first`."""
    return paint(first(report, width, patches=patches), colour, blocks)


def sections(report: Report, names: Sequence[str], width: int = 80, colour: bool = False, blocks: bool = True) -> str:
    """The named sections (see `SECTIONS`), in the order of the page."""
    chosen = [section for name, section in SECTIONS.items() if name in names]
    lines = list(without_steps.page(chosen, report, width))
    return paint(lines[1:] if lines and not lines[0] else lines, colour, blocks)
