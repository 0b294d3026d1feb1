"""The page: verdict, the step by rank, advice, one step's timeline, ranks, links, buckets, and the whole text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from dptune.advice import Advice, Report
from dptune.measure.lanes import StepLanes
from dptune.measured import Account
from dptune.predicted import BucketSize
from dptune.present import text as plain
from dptune.present.amounts import milliseconds, several
from dptune.present.html import pictures
from dptune.present.html.pictures import colour_of, text
from dptune.present.html.style import COLOURS, CSS
from dptune.present.lines import Line
from dptune.present.sections.account import CLASSES
from dptune.present.sections.advice import body, nothing_to_say, other_proofs, proven, sections, tag
from dptune.present.sections.headline import headline, trust
from dptune.present.sections.ranks import straggler

_WIDE = 10_000  # no line is folded: a browser does that
_LEAST_SHARE = 0.0005


def page(report: Report, lanes: StepLanes | None = None, sizes: Sequence[BucketSize] = ()) -> str:
    """The whole page. `lanes` is one step to draw, `sizes` what was tried for buckets."""
    title = f"dptune: {report.run.subject}"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{text(title)}</title><style>{CSS}</style></head><body>",
        *_head(report),
        *_step(report),
        *_advice(report),
        *_timeline(lanes),
        *_ranks(report),
        *_links(report),
        *_buckets(sizes),
        *_whole(report),
        f"<footer>Made by dptune {text(report.dptune)}. Shares are of traced steps; ms are scaled to untraced steps "
        f"where those were timed.</footer></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _head(report: Report) -> Iterator[str]:
    yield f'<header><h1>dptune report</h1><p class="faint">{text(report.run.subject)}</p></header>'
    yield "<main>"
    yield from _labelled(headline(report, _WIDE))
    if report.trust.level != "sound" or report.trust.findings:
        yield "<details><summary>Data quality</summary>"
        yield from _labelled(list(trust(report, _WIDE))[2:])
        yield "</details>"


def _step(report: Report) -> Iterator[str]:
    """A stacked bar for each rank, and what the colours are; of the whole recording where it has no steps."""
    account = report.measured.known("account")
    rows = [] if account is None else [("all ranks", _shares(account))]
    for rank in report.measured.ranks:
        accounts = [
            device.whole if account is None else device.total for device in rank.devices if device.steps or not account
        ]
        accounts = [device_account for device_account in accounts if device_account.window_ns]
        if accounts:
            rows.append((f"rank {rank.rank}", _shares(sum(accounts[1:], accounts[0]))))
    if not rows:
        return
    took = report.measured.step.known("time_ns")
    yield "<h2>Step time breakdown</h2>" if account else "<h2>Time breakdown of the recording</h2>"
    if account is None:
        yield "<p>No steps were found.</p>"
    elif took is not None:
        yield f"<p>A step takes {milliseconds(took / 1e6)}.</p>"
    shown = rows if len(rows) > 2 or account is None else rows[:1]
    yield _scrolled(pictures.bars(shown, "Time by class, for each rank"))
    yield from _rest(len(rows))
    used = {field for _, shares in rows for field, share in shares if share >= _LEAST_SHARE}
    yield '<ul class="key">'
    for kind in CLASSES:
        if kind.field in used:
            square = f'<span style="background:{colour_of(kind.field)}"></span>'
            yield f"<li>{square}{text(kind.name)}: {text(kind.words)}</li>"
    yield "</ul>"


def _shares(account: Account) -> list[tuple[str, float]]:
    return [(kind.field, account.share(kind.field)) for kind in CLASSES]


def _advice(report: Report) -> Iterator[str]:
    if not report.advice:
        yield f"<h2>Recommendations</h2><p>{text(nothing_to_say(report))}</p>"
    for title, cards in sections(report.advice):
        yield f"<h2>{text(title)}</h2>"
        for card in cards:
            yield from _card(card, report)
    others = list(other_proofs(report, _WIDE))
    yield from (f"<p>{text(_joined(line))}</p>" for line in others if line)


def _card(advice: Advice, report: Report) -> Iterator[str]:
    title = f"<h3>{text(advice.title)}</h3>"
    yield f'<article class="card {advice.impact}"><div class="tag">{text(tag(advice))}</div>{title}'
    yield from _labelled([*proven(report, advice.rule, _WIDE), *body(advice, report.measured, _WIDE)])
    yield "</article>"


def _timeline(lanes: StepLanes | None) -> Iterator[str]:
    if lanes is None or not lanes.lanes:
        return
    yield f"<h2>One step: number {lanes.number} of rank {lanes.rank}</h2>"
    took = milliseconds(lanes.length_ns / 1e6)
    yield f"<p>As traced, {took} long. Hover over a piece for its name.</p>"
    yield _scrolled(pictures.timeline(lanes))
    kinds = dict.fromkeys(piece.kind for lane in lanes.lanes for piece in lane.pieces)
    squares = (
        f'<li><span style="background:{COLOURS.get(kind, COLOURS["idle"])}"></span>{kind}</li>' for kind in kinds
    )
    yield f'<ul class="key">{"".join(squares)}</ul>'


def _ranks(report: Report) -> Iterator[str]:
    known = [(rank.rank, arrival) for rank in report.measured.ranks if (arrival := rank.known("arrival")) is not None]
    late = sorted(known, key=lambda pair: -sum(step.lag_ns for step in pair[1].steps))[: pictures.MOST_ROWS]
    late.sort(key=lambda one: one[0])
    rows = [(f"rank {rank}", [step.lag_ns for step in arrival.steps]) for rank, arrival in late]
    picture = pictures.heat(rows, "Lateness of each rank at collectives, by step") if len(rows) > 1 else ""
    if picture:
        yield "<h2>Late ranks</h2>"
        yield f"<p>{text(straggler(report.measured))}</p>"
        yield '<p class="faint small">One row per rank, one column per step; stronger color: later.</p>'
        yield _scrolled(picture)
        yield from _rest(len(known), "The latest")


def _links(report: Report) -> Iterator[str]:
    links = report.measured.known("links") or []
    picture = pictures.bandwidth(links)
    if picture:
        yield "<h2>Link bandwidth</h2>"
        words = "Bus bandwidth as nccl-tests defines it; the lines are time = latency + bytes / rate."
        yield f'<p class="faint small">{words}</p>'
        yield _scrolled(picture)


def _buckets(sizes: Sequence[BucketSize]) -> Iterator[str]:
    if sizes:
        yield f"<h2>Bucket sizes</h2><p>{several(len(sizes), 'size')} tried by replaying the recorded steps.</p>"
        yield _scrolled(pictures.curve(sizes))


def _whole(report: Report) -> Iterator[str]:
    words = text_block(plain.text(report, 100))
    yield f'<details class="whole"><summary>The whole report as text</summary><pre>{words}</pre></details>'
    yield "</main>"


def _rest(rows: int, which: str = "The first") -> Iterator[str]:
    """That a picture does not show all rows, where it does not."""
    if rows > pictures.MOST_ROWS:
        words = f"{which} {pictures.MOST_ROWS} of {rows:,} rows; dptune report --format json has them all."
        yield f'<p class="faint small">{words}</p>'


def _scrolled(picture: str) -> str:
    """Where a page is too narrow for it, a picture scrolls by itself."""
    return f'<div class="scroll">{picture}</div>'


def text_block(words: str) -> str:
    """Lines as they are."""
    return "\n".join(text(row) for row in words.split("\n"))


def _labelled(lines: Iterable[Line]) -> Iterator[str]:
    """Lines with a label in their first columns as a list of terms; rows of code that follow each other as a block."""
    yield "<dl>"
    for is_code, rows in groupby((line for line in lines if line), _is_code):
        if is_code:
            block = "\n".join(text("".join(span.text for span in line[1:])) for line in rows)
            yield f"<dt></dt><dd><pre>{block}</pre></dd>"
            continue
        for line in rows:
            words = _joined(line)
            label = line[0].text.strip() if line[0].role == "dim" and len(line) > 1 else ""
            description = "".join(span.text for span in line[1:]) if label else words
            role = line[-1].role
            look = ' class="saves"' if role == "strong" else f' class="{role}"' if role in ("error", "good") else ""
            yield f"<dt>{text(label)}</dt><dd{look}>{text(description.strip())}</dd>"
    yield "</dl>"


def _is_code(line: Line) -> bool:
    """Whether it is a row to paste: an empty span for the margin, then the code with its own indentation."""
    return len(line) > 1 and not line[0].text.strip() and any(span.role == "code" for span in line)


def _joined(line: Line) -> str:
    return "".join(span.text for span in line).strip()
