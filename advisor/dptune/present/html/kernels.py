"""What the devices run, by kind of kernel; of a CPU the operators with the most time."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Report
from dptune.measured import KernelFigures, short_name
from dptune.present.amounts import percent
from dptune.present.html import charts
from dptune.present.html.markup import Section, note
from dptune.present.html.style import COLORS

_MOST = 12


def kernel_classes(report: Report) -> Iterator[Section]:
    """A bar for each kind of kernel, or for each of the longest operators."""
    found = report.measured.known("kernels")
    shares = [] if found is None else _shares(found)
    if found is None or not shares:
        return
    longest = max(share for _, share in shares)
    bars = [
        (
            f"{name}: {percent(share)}",
            charts.bar([charts.Part(share / longest, _color(name), f"{name} {percent(share)}")]),
        )
        for name, share in shares[:_MOST]
    ]
    by_kind = found.known("kinds_ns") is not None
    what = (
        "kernel time; each moment counts for one kind, and communication includes waiting for late ranks"
        if by_kind
        else "step: self time, without nested operators"
    )
    title = "Kernel classes" if by_kind else f"Longest {found.counted}"
    body = f"{charts.rows(bars, long_names=True)}{note(f'Shares are of the {what}.')}"
    yield Section("kernels", title, title, body)


def _shares(found: KernelFigures) -> list[tuple[str, float]]:
    """The largest first."""
    kinds = found.known("kinds_ns")
    if kinds and found.total_ns:
        shares = [(kind, time_ns / found.total_ns) for kind, time_ns in kinds.items() if time_ns]
    else:
        shares = [(short_name(kernel.name), kernel.step_share) for kernel in found.top if kernel.step_share > 0]
    return sorted(shares, key=lambda pair: -pair[1])


def _color(kind: str) -> str:
    return COLORS["communication"] if kind == "communication" else COLORS["compute"]
