"""The first screen of a report, before anyone draws it: what ran, the verdict, a bar per kind of rank, what to do.

Text, the full-screen report, the HTML page and the summary of a CI job all draw this one; at most 24 lines at 80
columns. Nothing is measured or decided here.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from dptune.advice import Advice, Report, Saving, Verified
from dptune.advise.late_places import late_places
from dptune.advise.limits import COMMUNICATION, LATE
from dptune.advise.trust import PROFILER_CHEAP
from dptune.advise.unjudgeable import NO_DATA, is_why
from dptune.measured import Account, EfficiencyFigures, Measured, RankFigures
from dptune.present.amounts import element_type, milliseconds, percent, several
from dptune.present.lines import Role
from dptune.present.script_name import script_name
from dptune.present.step_classes import PARTS, Part
from dptune.runfile.ranks import spans

MOST_FIXES = 3
MOST_BARS = 4
EXPLAIN = "Explain"  # the command that explains a rule
_BESIDE = 15  # characters, of a sentence that is no more than a command: `How: ...`
_ALIKE = 0.03  # of a step, by which no class of two ranks differs that share a bar
_LEAST_SHARE = 0.005  # of a step: a class of less is not in the legend, unless a bar shows it
_SEEN_SHARE = 1 / 60  # of a bar of usual width: a cell
_TRADE = re.compile(r"\((R|TM)\)| Processor| CPU(?= @|$)| @ [0-9.]+ ?GHz")  # of a device's name, says nothing


_RISKY = ("Results at risk", NO_DATA, "Times not reliable")


def verdict_role(label: str) -> Role:
    """How alarming a verdict is."""
    calm: dict[str, Role] = {"Healthy": "good", "No findings": "note"}
    return calm.get(label, "error" if label in _RISKY else "warning")


@dataclass(frozen=True)
class Bar:
    """Ranks whose steps look alike: `shares` of a step by part, in the order of `PARTS`; `marked`: the straggler.

    `odd` is the part in which they differ most from the other bars; its largest part where there is one bar.
    """

    ranks: tuple[int, ...]
    shares: tuple[float, ...]
    marked: bool = False
    odd: Part = PARTS[0]

    @property
    def name(self) -> str:
        """`r0`, `r2-7`."""
        return "r" + spans(self.ranks, ",")


@dataclass(frozen=True)
class Fix:
    """One row of what to do."""

    rule: str
    slug: str
    where: str
    saves: str
    confidence: str
    results: str


@dataclass(frozen=True)
class FirstScreen:
    """All that the first screen shows; an empty text or tuple where there is nothing to show."""

    run: tuple[str, ...]
    label: str
    rates: tuple[str, ...]
    sentences: tuple[str, ...]  # the verdict, then its cause, the most telling first
    bars: tuple[Bar, ...]
    fixes: tuple[Fix, ...]
    more_fixes: int
    together: str
    commands: tuple[tuple[str, str], ...]
    next: str
    unseen: tuple[str, ...]
    path: str

    def mean_shares(self) -> list[tuple[Part, float]]:
        """Each part that takes a visible share of a bar, with its mean over ranks."""
        count = sum(len(bar.ranks) for bar in self.bars)
        means = [
            sum(bar.shares[i] * len(bar.ranks) for bar in self.bars) / count if count else 0.0
            for i in range(len(PARTS))
        ]
        return [
            (part, share)
            for i, (part, share) in enumerate(zip(PARTS, means, strict=True))
            if share >= _LEAST_SHARE or any(bar.shares[i] >= _SEEN_SHARE for bar in self.bars)
        ]


def first_screen(report: Report, *, patches: bool = True) -> FirstScreen:
    """What the report's first screen shows; `patches`: whether the script can be read here, for a diff of it."""
    headline, path = report.headline, _path(report)
    first = next((advice for advice in report.advice if advice.rule == headline.rule), None)
    commands = _commands(first or next(iter(report.advice), None), path, patches)
    return FirstScreen(
        run=tuple(_run(report)),
        label=headline.label or headline.verdict.partition(":")[0].rstrip("."),
        rates=tuple(_rates(report.measured)),
        sentences=tuple(_sentences(report)),
        bars=tuple(_bars(report)),
        fixes=tuple(fix_of(advice, report.verified) for advice in report.advice[:MOST_FIXES]),
        more_fixes=max(0, len(report.advice) - MOST_FIXES),
        together=_together(report),
        commands=tuple(commands),
        next=_without_commands(headline.next, commands),
        unseen=tuple(_unseen(report)),
        path=path,
    )


def _path(report: Report) -> str:
    """The run as it is named on a command line; empty where no one path names it."""
    return shlex.quote(report.run.sources[0]) if len(report.run.sources) == 1 else ""


def _run(report: Report) -> list[str]:
    """`train.py`, `8 ranks`, `8 x NVIDIA H100 (nccl)`, `torch 2.13.0`, `2026-11-22 04:00`; `2 ranks on 1 x NVIDIA H100`
    where they share it.
    """
    measured, run = report.measured, report.run
    world = measured.known("world_size")
    count = len(measured.ranks)
    ranks = several(count, "rank") if world is None or world <= count else f"{count} of {world:,} ranks"
    found = [script_name(run.command) if run.command else _source(run.sources)]
    devices = _devices(measured)
    shared = any(rank.gpu_ranks for rank in measured.ranks)
    found += [f"{ranks} on {devices}"] if shared and devices else [ranks, devices]
    found += [f"torch {run.torch.partition('+')[0]}" if run.torch else ""]
    foreign = "torch.profiler traces" if measured.step.basis == "traced" else ""
    found.append(run.recorded[:16].replace("T", " ") if run.recorded else foreign)
    return [text for text in found if text]


def _source(sources: Sequence[str]) -> str:
    """The file that was read; of several the folder that holds them."""
    if len(sources) == 1:
        return PurePath(sources[0]).name
    folders = {str(PurePath(source).parent) for source in sources}
    return PurePath(folders.pop()).name if len(folders) == 1 else ""


def _devices(measured: Measured) -> str:
    names = Counter(
        _TRADE.sub("", str(name))
        for rank in measured.ranks
        if (name := rank.known("device_name")) and rank.rank == min(rank.gpu_ranks, default=rank.rank)
    )
    kind, backend = measured.known("device_kind"), measured.known("backend")
    what = " + ".join(name if kind == "cpu" else f"{count:,} x {name}" for name, count in names.most_common(2))
    how = ", ".join(filter(None, ("CPU" if kind == "cpu" and what else "", backend)))
    what = what or (str(kind).upper() if kind else "")
    return f"{what} ({how})" if what and how else what or how


def _rates(measured: Measured) -> list[str]:
    """Step time, samples and tokens per second, MFU; which average the time is where no median of untraced steps."""
    time_ns = measured.step.known("time_ns")
    if time_ns is None:
        return []
    basis = "" if measured.step.basis == "untraced" else " (traced mean)"
    mean_ns = measured.step.rate_ns or time_ns
    found = [f"{milliseconds(time_ns / 1e6)}/step{basis}"]
    if measured.step.slow_share:
        found[0] = f"{milliseconds(mean_ns / 1e6)}/step (mean; median {milliseconds(time_ns / 1e6)})"
    samples = measured.known("samples_per_step")
    if samples and mean_ns:
        about = "~" if measured.samples_inferred else ""
        found.append(f"{about}{samples / mean_ns * 1e9:,.0f} samples/s")
    efficiency = measured.known("efficiency")
    if efficiency is not None and (tokens := efficiency.known("tokens_per_s")) is not None:
        found.append(f"{tokens:,.0f} tokens/s")
    return [*found, *_utilization(efficiency)]


def _utilization(efficiency: EfficiencyFigures | None) -> Iterator[str]:
    """`MFU 41 % of bf16 peak`, of the types that have most of the FLOPs."""
    mfu = efficiency.known("mfu") if efficiency else None
    if efficiency is None or mfu is None:
        return
    measured = "measured " if efficiency.known("peak_basis") == "measured" else ""
    dtypes = "/".join(map(element_type, efficiency.main_dtypes))
    yield f"MFU {efficiency.bound}{percent(mfu)} of {measured}{dtypes} peak"


def _sentences(report: Report) -> list[str]:
    headline = report.headline
    if headline.label == NO_DATA:  # its verdict repeats the label
        return [headline.why]
    said = headline.verdict.removeprefix(f"{headline.label}: ") if headline.label else headline.verdict
    found = [said[:1].upper() + said[1:] if not re.match(r"\S*[._/]", said) else said]
    if headline.cause:
        found += sentences_of(headline.cause)
    elif report.trust.level == "unjudgeable" or not _bars(report):
        found.append(headline.why)
    elif headline.label in (LATE.verdict, COMMUNICATION.verdict) and (late := late_places(report.measured)):
        found.append(late)
    return found


def sentences_of(text: str) -> list[str]:
    """The text by sentences; a full stop inside a name or number ends none."""
    return re.split(r"(?<=\.) (?=[A-Z`])", text)


def _bars(report: Report) -> list[Bar]:
    """A bar per kind of rank: a straggler that is reported by itself, others together where their steps look alike."""
    ranks, scaled = report.measured.ranks, report.measured.without_profiler()
    accounts = [(rank.rank, total) for rank in ranks if (total := _account(rank, scaled)) is not None]
    late = reported_straggler(report) if len(accounts) > 1 else None
    shares = {rank: tuple(sum(map(total.share, part.classes)) for part in PARTS) for rank, total in accounts}
    others = [rank for rank in shares if rank != late]
    groups, alike = [others], _ALIKE
    while others:
        groups = _grouped(others, shares, alike)
        if len(groups) <= MOST_BARS - (late is not None):
            break
        alike *= 1.5
    bars = [_bar(group, shares) for group in groups if group]
    if late is not None and late in shares:
        bars.append(Bar((late,), shares[late], marked=True))
    return sorted((replace(bar, odd=_odd(bar, bars)) for bar in bars), key=lambda bar: bar.ranks)


def reported_straggler(report: Report) -> int | None:
    """The rank of the verdict, of the first advice or of one not of low confidence; None where none is named."""
    straggler = report.measured.known("straggler")
    if straggler is None:
        return None
    found = [advice for advice in report.advice if advice.title.startswith(f"Rank {straggler.rank} ")]
    named = any(advice.confidence != "low" or advice.rule == report.headline.rule for advice in found)
    return straggler.rank if named or report.headline.cause else None


def _odd(bar: Bar, bars: Sequence[Bar]) -> Part:
    """The part of which it has most beyond the other bars."""
    others = [other for other in bars if other is not bar]
    if not others:
        return PARTS[max(range(len(PARTS)), key=lambda i: bar.shares[i])]
    usual = [sum(other.shares[i] for other in others) / len(others) for i in range(len(PARTS))]
    return PARTS[max(range(len(PARTS)), key=lambda i: bar.shares[i] - usual[i])]


def _grouped(ranks: Sequence[int], shares: dict[int, tuple[float, ...]], alike: float) -> list[list[int]]:
    groups: list[list[int]] = []
    for rank in ranks:
        for group in groups:
            first = shares[group[0]]
            if all(abs(here - there) <= alike for here, there in zip(shares[rank], first, strict=True)):
                group.append(rank)
                break
        else:
            groups.append([rank])
    return groups


def _bar(ranks: Sequence[int], shares: dict[int, tuple[float, ...]]) -> Bar:
    columns = zip(*(shares[rank] for rank in ranks), strict=True)
    return Bar(tuple(sorted(ranks)), tuple(sum(column) / len(ranks) for column in columns))


def _account(rank: RankFigures, without_profiler: Callable[[Account], Account]) -> Account | None:
    """The account of a rank's devices together: of its steps, else of the recording; None where it ran nothing."""
    stepped = [without_profiler(device.total) for device in rank.devices if device.steps]
    found = stepped or [device.whole for device in rank.devices if device.whole.window_ns]
    total = sum(found[1:], found[0]) if found else None
    return total if total is not None and total.window_ns else None


def fix_of(advice: Advice, verified: Sequence[Verified]) -> Fix:
    """A recommendation as a row, with what running it showed in place of what was predicted."""
    proof = next((proof for proof in reversed(verified) if proof.advice == advice.rule), None)
    at = advice.place
    return Fix(
        rule=advice.rule,
        slug=advice.slug,
        where=f"{PurePath(at.file).name}:{at.line}" if at else "",
        saves=_expected(advice) if proof is None else _measured(proof, advice),
        confidence=advice.confidence if proof is None else "inconclusive" if _undecided(proof) else "verified",
        results="unchanged" if advice.numerics == "same" else "may change",
    )


def _expected(advice: Advice) -> str:
    return _saves(advice.saves) if advice.saves else {"time": "unknown"}.get(advice.kind, advice.kind)


def _measured(proof: Verified, advice: Advice) -> str:
    """What running the change showed, `28-40 %` or `slower`; what is expected where that showed nothing."""
    if proof.outcome == "worse":
        return "slower"
    if _undecided(proof) or proof.low_ratio is None or proof.high_ratio is None:
        return _expected(advice)
    low, high = sorted((1 - proof.low_ratio, 1 - proof.high_ratio))
    return _interval(low, high)


def _undecided(proof: Verified) -> bool:
    return proof.outcome == "inconclusive" or (proof.outcome != "worse" and None in (proof.low_ratio, proof.high_ratio))


def _saves(saves: Saving) -> str:
    """`25-43 %`, `up to 11 %`; `large, unknown` for a bound above half of the step."""
    if saves.large_unknown:
        return "large, unknown"
    if saves.basis == "bound":
        return f"up to {_whole(saves.high_share)} %"
    return _interval(saves.low_share, saves.high_share)


def _interval(low_share: float, high_share: float) -> str:
    low, high = _whole(low_share), _whole(high_share)
    return f"{low} %" if low == high else f"{low}-{high} %"


def _whole(share: float) -> str:
    return percent(share).removesuffix(" %") if share < 0.0995 else f"{100 * share:.0f}"


def _together(report: Report) -> str:
    """The largest combination: `DP102 + DP301: 36-51 % per sample, 1.6-2.0x throughput, results may change`."""
    if not report.together:
        return ""
    combined = max(report.together, key=lambda combination: len(combination.rules))
    low, high = combined.saves.low_share, combined.saves.high_share
    faster = f", {1 / (1 - low):.1f}-{1 / (1 - high):.1f}x throughput" if 0 < low <= high < 1 else ""
    learning = "unchanged" if combined.numerics == "same" else "may change"
    return f"{' + '.join(combined.rules)}: {_saves(combined.saves)} per sample{faster}, results {learning}"


def _commands(first: Advice | None, path: str, patches: bool) -> list[tuple[str, str]]:
    """What applies the first fix, and what verifies it."""
    if first is None:
        return []
    found = []
    if first.verify:  # before it is applied: afterwards both sides have it
        found.append(("Verify", first.verify))
    if patches and any(change.at for change in first.changes):
        run = f" {path}" if path else ""
        found.append(("Apply", f"dptune report{run} --patch --advice {first.rule} | git apply"))
    return found or [(EXPLAIN, f"dptune rules explain {first.rule}")]


def _without_commands(text: str, commands: Sequence[tuple[str, str]]) -> str:
    """The text without short sentences that only name a command shown below it."""
    sentences = [
        sentence
        for sentence in sentences_of(text)
        if not any(f"`{command}`" in sentence and len(sentence) < len(command) + _BESIDE for _, command in commands)
    ]
    return " ".join(sentences)


def _unseen(report: Report) -> list[str]:
    """Limits of the data, and the checks that could not run with what most of them lack."""
    found = [
        finding.text
        for finding in report.trust.findings
        if finding.level != "unjudgeable"
        and finding.code != PROFILER_CHEAP
        and not is_why(finding, report.headline.why)
    ][:1]
    answered = {advice.rule for advice in report.advice} | set(report.quiet)
    lacking = [skip for skip in report.skipped if skip.could_not_run and skip.rule not in answered]
    needing = [skip for skip in report.skipped if skip.needs_recording]
    if (lacking or needing) and report.trust.level != "unjudgeable":
        ran = len({skip.rule for skip in report.skipped if skip.set_aside} | answered)
        could_not = len({skip.rule for skip in lacking})
        words = [f"{ran} of {ran + could_not + len(needing)} rules ran"]
        if needing:
            words.append(f"{len(needing)} need a recording by `dptune profile`")
        if lacking:
            reason, count = Counter(skip.reason for skip in lacking).most_common(1)[0]
            most = f"{could_not} could not, {count} because {reason.partition(': ')[0]}"
            words.append(most if count < could_not else f"{count} could not: {reason}")
        found.append("; ".join(words))
    return found
