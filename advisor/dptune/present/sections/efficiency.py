"""How much of the device's peak the steps reach, rates of samples and tokens, and what they cost."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dptune.advice import Cost, CostSaving, Report
from dptune.measured import EfficiencyFigures, KindFlops, Missing
from dptune.present.amounts import (
    Hole,
    element_type,
    extrapolated,
    flops,
    milliseconds,
    number,
    percent,
    several,
    shown,
)
from dptune.present.lines import Line, heading, labelled, wrapped
from dptune.present.table import Cell, Column, table

_ATTENTION = re.compile(r"attention|flash_attn")  # in the names of operators
_LEAST_MONEY = 0.0001  # below it a cost is not written out

NOTE = (
    "FLOPs: matrix products, convolutions, attention and recurrent layers, from operator input sizes, 2 per "
    "multiply-add; causal masks are not subtracted. MFU counts forward and backward passes without recomputation "
    "(PaLM, appendix B); HFU counts all FLOPs."
)


def efficiency(report: Report, width: int) -> Iterator[Line]:
    """MFU, HFU and the peak, FLOPs by kind of operator, shares of the step, rates, cost."""
    try:
        found = report.measured.efficiency
    except Missing as missing:
        yield from heading("Efficiency", width)
        yield from wrapped(str(Hole(missing.reason)), width, "  ")
        return
    yield from heading(title(found), width)
    for label, text in summary(report, found):
        yield from labelled(label, text, width, column=18, indent="  ")
    yield from table(columns(found), rows(found), width)
    if said := note(report, found):
        yield from wrapped(said, width, "  ", role="dim")


def note(report: Report, found: EfficiencyFigures) -> str:
    """What is counted, what MFU and HFU are, and what the profiler does to the figures of traced steps."""
    words = [NOTE] if found.known("flops") else []
    if words and found.sharing_ranks > 1:
        words.append("Ranks that share a GPU have equal parts of its peak.")
    if _traced(report) and found.scope == "steps":
        cost = " and cost is lower" if report.cost else ""
        words.append(f"Steps are traced: without the profiler, MFU and rates are higher{cost}.")
    return " ".join(words)


def _traced(report: Report) -> bool:
    """Whether rates are of traced steps, which the profiler slows."""
    return report.measured.step.known("time_ns") is not None and report.measured.step.basis == "traced"


def columns(found: EfficiencyFigures) -> tuple[Column, ...]:
    """Those of the table of operators."""
    flops_of = Column("FLOPs per step" if found.scope == "steps" else "FLOPs")
    return (Column("operators", right=False), flops_of, Column("share"), Column("rate while running"))


def title(found: EfficiencyFigures) -> str:
    """The title, with the rank, the steps and the window that the FLOPs are from."""
    rank, window = found.known("rank"), found.known("window")
    if rank is None:
        return "Efficiency (whole recording)" if found.scope == "recording" else "Efficiency"
    if found.scope == "recording":
        return f"Efficiency (FLOPs of rank {rank}, whole recording)"
    return f"Efficiency (FLOPs of rank {rank}, {several(found.steps, 'traced step')}, {window} window)"


def summary(report: Report, found: EfficiencyFigures) -> Iterator[tuple[str, str]]:
    """Labels and texts, in the order of the section."""
    mfu = shown(lambda: found.mfu, lambda share: f"{found.bound}{percent(share)}")
    hfu = shown(lambda: found.hfu, lambda share: f"{found.bound}{percent(share)}")
    flops_known = found.known("flops") is not None
    on_cpu = report.measured.known("device_kind") == "cpu"
    each = "rank" if on_cpu or found.sharing_ranks > 1 or found.shared_doubt else "device"
    if isinstance(mfu, Hole) and mfu == hfu:
        yield "MFU, HFU", str(mfu)
    else:
        yield "MFU", str(mfu)
        yield "HFU", str(hfu)
    if found.known("peak_flops_per_s") is not None:
        yield "Peak", _peak(found)
    if flops_known:
        yield "FLOPs", _flops(found, each)
        yield "Achieved", str(shown(lambda: found.flops_per_s, lambda rate: _achieved(report, found, rate, each)))
        if found.lower_bound:
            yield "Not counted", _uncounted(found)
    whole = "step" if found.scope == "steps" else "recording"
    memory = f"of the {whole} (elementwise, normalization, reductions, optimizer, ...)"
    yield "Memory-bound", str(shown(lambda: found.memory_bound_share, lambda share: f"{percent(share)} {memory}"))
    matmul = report.measured.matmul
    if not on_cpu:
        units = shown(lambda: matmul.tensor_core_share, lambda share: f"{percent(share)} of the {whole}")
        yield "Tensor cores", str(units)
    of = "rank" if on_cpu else "device"
    notes = ["inferred batch size"] * report.measured.samples_inferred
    notes += [ranks for ranks in [extrapolated(report.measured)] if ranks]
    inferred = f" ({', '.join(notes)})" if notes else ""
    yield "Samples", str(shown(lambda: found.samples_per_s, lambda rate: f"{_rate(found, rate, of)}{inferred}"))
    if found.known("tokens_per_s") is not None or _attends(found):
        yield "Tokens", str(shown(lambda: found.tokens_per_s, lambda rate: _rate(found, rate, of)))
    if report.cost is not None:
        yield from _cost(report.cost, extrapolated(report.measured))


def _attends(found: EfficiencyFigures) -> bool:
    """Whether attention ran, with known sizes or without: the run may have tokens then."""
    kinds: list[KindFlops] = found.known("kinds") or []
    return any(kind.kind == "attention" for kind in kinds) or any(map(_ATTENTION.search, found.uncounted))


def rows(found: EfficiencyFigures) -> list[list[Cell]]:
    """FLOPs by kind of operator."""
    kinds: list[KindFlops] = found.known("kinds") or []
    shared = found.steps * found.devices
    return [
        [
            kind.kind,
            flops(kind.flops / shared),
            percent(kind.flops / found.flops),
            shown(lambda kind=kind: kind.flops_per_s, lambda rate: flops(rate, "FLOP/s")),  # type: ignore[misc]
        ]
        for kind in kinds
    ]


def _peak(found: EfficiencyFigures) -> str:
    total = sum(each.flops for each in found.dtypes)
    counted = [
        each for each in found.dtypes if each.known("peak_flops_per_s") is not None and each.flops * 1000 >= total
    ]
    parts = [f"{element_type(each.dtype)} {flops(each.peak_flops_per_s, 'FLOP/s')}" for each in counted]
    sources = dict.fromkeys(each.source for each in found.dtypes if each.known("source"))
    measured = found.known("peak_basis") == "measured"
    each_has = "per rank" if measured else "per device, dense"
    peak = f"{', '.join(parts)} {each_has}"
    if len(parts) > 1:
        shares = [f"{percent(each.flops / total)}{' of FLOPs' if each is counted[0] else ''} at " for each in counted]
        mix = ", ".join(map("".join, zip(shares, parts, strict=True)))
        peak = f"{flops(found.peak_flops_per_s * found.sharing_ranks, 'FLOP/s')} {each_has}: {mix}"
    if measured:
        return f"{peak}, {'; '.join(sources)}{_disturbed(found)}"
    shared = ""
    if found.sharing_ranks > 1:
        shared = f"; {found.sharing_ranks} ranks share it, {flops(found.peak_flops_per_s, 'FLOP/s')} each"
    return f"{peak}{shared}. Source: {'; '.join(sources)}"


def _disturbed(found: EfficiencyFigures) -> str:
    """That other processes ran while the peak was measured, if they did."""
    if not found.peak_disturbed:
        return ""
    withheld = percent(found.peak_withheld_share)
    return f". Other processes withheld up to {withheld} of the CPU time during this: the true peak may be higher"


def _flops(found: EfficiencyFigures, each: str) -> str:
    shared = found.steps * found.devices
    text = f"{_least(found)}{flops(found.flops_per_step)} per {'step and ' if found.scope == 'steps' else ''}{each}"
    parts = [
        f"{flops(value / shared)} {what}"
        for value, what in (
            (found.known("recomputed_flops"), "of recomputation"),
            (found.known("optimizer_flops"), "in the optimizer"),
        )
        if value
    ]
    return f"{text}, including {' and '.join(parts)}" if parts else text


def _achieved(report: Report, found: EfficiencyFigures, rate: float, each: str) -> str:
    least, ranks = _least(found), extrapolated(report.measured)
    partly = f", {ranks}" if ranks else ""
    total = shown(lambda: found.total_flops_per_s, lambda every: f", {least}{flops(every, 'FLOP/s')} in total{partly}")
    several_ranks = (found.known("total_flops_per_s") or rate) > rate
    return f"{least}{flops(rate, 'FLOP/s')} per {each}{total if several_ranks else ''} ({_per_step(report, found)})"


def _least(found: EfficiencyFigures) -> str:
    return "at least " if found.lower_bound else ""


def _per_step(report: Report, found: EfficiencyFigures) -> str:
    per = "per traced step" if _traced(report) else "per step"
    return f"{milliseconds(found.step_ns / 1e6)} {per if found.scope == 'steps' else 'recorded'}"


def _uncounted(found: EfficiencyFigures) -> str:
    share = found.known("counted_share")
    parts = [] if not found.uncounted else [f"{', '.join(found.uncounted[:4])} (sizes not known)"]
    if found.packed:
        parts.append(f"part of {', '.join(found.packed[:4])}: packed sequences are counted as if equally long")
    if share is not None and share < 1:
        parts.append(f"{percent(1 - share)} of the time of matrix kernels")
    return "; ".join(parts)


def _rate(found: EfficiencyFigures, rate: float, of: str) -> str:
    devices = found.known("all_devices")
    each = f", {number(rate / devices)} per {of}" if devices and devices > 1 else ""
    return f"{number(rate)} per second{each}"


def _cost(cost: Cost, ranks: str) -> Iterator[tuple[str, str]]:
    price, partly = _money(cost.gpu_hour_price), f", {ranks}" if ranks else ""
    if cost.per_1000_steps_between:
        (low, high), (fewest, most) = map(_money, cost.per_1000_steps_between), cost.devices_between
        counted = f"{fewest} to {several(most, 'device')} at {price} an hour{partly}"
        unit = f"in the unit of --gpu-hour-price; {cost.missing['devices']}"
        yield "Cost", f"{low} to {high} per 1,000 steps ({counted}), {unit}"
        yield from ((f"{saving.rule} saves", _saved(saving)) for saving in cost.savings)
        return
    text = shown(
        lambda: cost.per_1000_steps,
        lambda total: (
            f"{_money(total)} per 1,000 steps ({several(cost.devices, 'device')} at {price} an hour{partly}), in "
            "the unit of --gpu-hour-price"
        ),
    )
    yield "Cost", str(text)
    for saving in cost.savings:
        yield f"{saving.rule} saves", _saved(saving)


def _saved(saving: CostSaving) -> str:
    low, high = _money(saving.low), _money(saving.high)
    if saving.large_unknown:
        return "large, unknown"
    return f"up to {high} per 1,000 steps" if low in ("0", high) else f"{low} to {high} per 1,000 steps"


def _money(value: float) -> str:
    """Two digits after the point, below 1 three digits: 1,000 short steps cost little."""
    if value == 0 or value >= 1:
        return number(value)
    return f"{value:.3g}" if value >= _LEAST_MONEY else f"<{_LEAST_MONEY}"
