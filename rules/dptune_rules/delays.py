"""Figures and evidence for the rules on delayed collectives."""

from __future__ import annotations

from dptune.advice import Evidence
from dptune.measured import DelayCause, DelayedFigures, digits
from dptune.rule import RunView

_CAUSES = {"not_prefetched": " not prefetched"}  # of a part of the collectives


def delay_of(run: RunView, cause: DelayCause) -> DelayedFigures | None:
    """The collectives that one cause delays; None where there are none."""
    return next((delay for delay in run.measured.delayed if delay.cause == cause), None)


def overlap_share(run: RunView, delay: DelayedFigures) -> float:
    """The exposed communication that compute could overlap, as a share of the traced step (mean over ranks)."""
    share: float = delay.could_hide_ns / run.measured.account.window_ns
    return share


def size_of(delay: DelayedFigures) -> str:
    """The bytes per step and rank, as `36.1 MiB`; the number of collectives if the bytes are not known."""
    sent = delay.known("bytes_per_step")
    if sent is None:
        return f"{digits(delay.calls_per_step)} {named(delay)}"
    return f"{digits(sent / 2**20)} MiB" if sent >= 2**20 else f"{digits(sent / 2**10)} KiB"


def named(delay: DelayedFigures) -> str:
    """The kinds of collective in words, as `all-reduces and reduce-scatters`."""
    return " and ".join(f"{kind.replace('_', '-')}s" for kind in delay.kinds)


def evidence_of(run: RunView, delay: DelayedFigures) -> list[Evidence]:
    """How long the collectives are exposed, how much of that compute could overlap, their number and bytes."""
    window_ns = run.measured.account.window_ns
    group = delay.known("group")
    places = [f"process group {group}"] if group is not None else []
    places += [f"stream {', '.join(map(str, delay.streams))}"] if delay.streams else []
    sent = delay.known("bytes_per_step")
    label = f"exposed {named(delay)}" + (f" ({', '.join(places)})" if places else "")
    return [
        Evidence(label=label, value=delay.exposed_ns / window_ns, unit="of a traced step").at(delay.known("longest")),
        Evidence(label="part that compute could overlap", value=overlap_share(run, delay), unit="of a traced step"),
        Evidence(
            label=f"{named(delay)}{_CAUSES.get(delay.cause, '')}",
            value=round(delay.calls_per_step, 1),
            unit="per step and rank",
        ),
        *([] if sent is None else [Evidence(label="sent", value=round(sent), unit="bytes per step and rank")]),
    ]
