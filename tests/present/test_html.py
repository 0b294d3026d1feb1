"""The page: whole and well formed, with nothing to fetch, whatever a trace calls its things."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Callable
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dptune.advice import Report, Verified
from dptune.cli import main
from dptune.commands.shared.reading import run_and_report
from dptune.errors import DptuneError
from dptune.finding import Finding
from dptune.measure.lanes import Lane, Piece, StepLanes, step_lanes, unnamed
from dptune.measure.steps.history import step_history
from dptune.measure.straggler_lanes import timeline_steps
from dptune.measured import Measured
from dptune.predicted import BucketSize, WhatIf
from dptune.present.anonymous import anonymous
from dptune.present.first_screen import first_screen
from dptune.present.html import RunDetails, page
from dptune.present.html.advice import shows_late_ranks
from dptune.present.html.markup import prose
from dptune.present.html.ranks import lateness
from dptune.trace import load
from dptune.trace.run import Run
from dptune.whatif.predicting import search

from .. import in_process, reading, sharing  # noqa: TID252 - tests are no installed package

SAMPLES = Path(__file__).parents[2] / "sample_traces"
EVIL = "void \x1b[31mgemm<float>\"'><script>alert(1)</script>\u202e&amp;"
LANES = StepLanes(
    rank=0,
    number=7,
    length_ns=10_000_000,
    lanes=[
        Lane(
            "stream 7", [Piece(0, 4_000_000, "compute", EVIL, 12), Piece(5_000_000, 1_000_000, "communication", "a", 1)]
        ),
        Lane(EVIL, [Piece(1_000_000, 10, "copy", "", 1)]),
    ],
)
VOID = {"meta"}


class Whole(HTMLParser):
    """Notes every element, and that each is closed in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data.replace("\N{NO-BREAK SPACE}", " "))


def read(written: str) -> Whole:
    whole = Whole()
    whole.feed(written)
    whole.close()
    assert whole.open == []
    return whole


def whole_page(run: Run, report: Report, find: Callable[[Run, Measured], WhatIf] = search) -> str:
    """As the command writes it."""
    sizes = find(run, report.measured).curve if report.measured.known("device_kind") == "cpu" else []
    steps = timeline_steps(run, report.measured, late=shows_late_ranks(report))
    return page(report, RunDetails(steps, step_history(run, report.measured), sizes))


@functools.cache
def searched(sample: str) -> WhatIf:
    """What is found of the bucket sizes of a sample run, by all processes of tests once."""

    def find() -> WhatIf:
        run, report = reading.sample(sample)
        return search(run, report.measured)

    return sharing.once(f"searched {sample}", find)


@functools.cache
def page_of(sample: str) -> str:
    """The page of a sample run."""
    return whole_page(*reading.sample(sample), lambda *_: searched(sample))


def test_the_page_says_what_the_report_says(report: Report) -> None:
    sizes = [BucketSize(cap_mb=None, buckets=3, step_ns=9), BucketSize(cap_mb=1, buckets=8, step_ns=7)]
    whole = read(page(report, RunDetails([LANES], sizes=sizes)))
    words = " ".join(" ".join(whole.words).split())
    for told in (report.headline.verdict, report.headline.why, report.advice[0].why):
        assert told in words
    headings = [told for told in ("Step time breakdown", "Timeline of step 7", "Bucket sizes") if told in words]
    assert len(headings) == 3
    cards = [attributes["class"] for tag, attributes in whole.seen if tag == "article"]
    assert cards == [f"card {one.impact}" for one in report.advice]
    for change in (change for one in report.advice for change in one.changes):
        assert change.paste.splitlines()[0] in words


def assert_links_resolve(whole: Whole) -> None:
    anchors = [attributes["id"] for _, attributes in whole.seen if "id" in attributes]
    assert len(anchors) == len(set(anchors))
    links = [attributes["href"] for tag, attributes in whole.seen if tag == "a"]
    assert {"#advice", "#text"} <= set(links)
    assert {str(link) for link in links} <= {f"#{anchor}" for anchor in anchors}


@pytest.mark.parametrize("sample", ["accumulation_without_no_sync", "healthy"])
def test_a_recorded_run_has_every_section_that_it_has_figures_for(sample: str) -> None:
    whole = read(page_of(sample))
    assert_links_resolve(whole)
    sections = [attributes["id"] for tag, attributes in whole.seen if tag == "section"]
    pictures = [
        "ranks",
        "timeline",
        *(["lateness"] if sample != "healthy" else []),
        "communication",
        "links",
        "kernels",
        "functions",
        "efficiency",
        "steps",
    ]
    changes = ["changes"] if sample != "healthy" else []
    tables = ["kernel-table", "collective-table", "rank-table"]
    assert sections == ["summary", "advice", *pictures, *changes, *tables, "quality", "rules", "text"]


@pytest.mark.long
def test_units_of_fully_shard_have_a_table() -> None:
    """Every unit, not the most exposed alone; the card of gathers leads to it."""
    report = reading.reported(SAMPLES / "gpu" / "ranks-nccl-fsdp")
    whole = page(report)
    section = whole.partition('id="shard-units"')[2].partition("</section>")[0]
    rows = report.measured.shard_units.rows
    assert section.count("<tr>") >= len(rows) + 3
    assert {row.unit for row in rows} <= set(re.findall(r">([a-z.0-9]+)</td>", section))
    for words in (
        "forward gather",
        "backward reduce",
        "hideable",
        "mesh 2",
        "Backward passes:",
        "Peak gathered parameters",
    ):
        assert words in section, words
    assert 'href="#shard-units"' in whole.partition('id="advice-DP206"')[2].partition("</section>")[0]


def test_the_page_begins_with_the_first_screen() -> None:
    _, report = reading.sample("accumulation_without_no_sync")
    screen = first_screen(report)
    whole = read(page_of("accumulation_without_no_sync"))
    words = " ".join(" ".join(whole.words).split())
    top = words[: words.index("Recommendations")]
    commands = [command for _, command in screen.commands]
    for shown in (*screen.run, screen.label, *screen.rates, *screen.sentences, *commands, *screen.unseen, screen.next):
        assert shown.replace("`", "").replace(" ", "") in top.replace(" ", ""), shown  # code is an element
    for fix in screen.fixes:
        for shown in (f"{fix.rule} {fix.slug}", fix.where, fix.saves, fix.confidence, fix.results):
            assert shown in top, shown
    for part, share in screen.mean_shares():
        assert f"{part.name} {100 * share:.0f} %" in top
    links = [attributes["href"] for tag, attributes in whole.seen if tag == "a"]
    assert links[: len(screen.fixes)] == [f"#advice-{fix.rule}" for fix in screen.fixes]


def test_a_link_to_the_page_shows_the_rates_and_the_verdict(report: Report) -> None:
    whole = read(page_of("accumulation_without_no_sync"))
    (described,) = [had["content"] for tag, had in whole.seen if tag == "meta" and had.get("name") == "description"]
    assert described == (
        "72.1 ms/step, 14,200 samples/s. 21 % of each step is exposed communication, 10 % is waiting for late ranks."
    )
    evil = report.headline.model_copy(update={"verdict": EVIL})
    (tag,) = re.findall(r'<meta name="description".*', page(report.model_copy(update={"headline": evil})))
    assert len(re.findall("[<>]", tag)) == 2


def test_a_straggler_is_marked_and_drawn_above_a_usual_rank(real_traces: Path) -> None:
    run, report = reading.run_and_report_of(real_traces / "torchrec_straggler_4xv100")
    written = whole_page(run, report)
    assert_links_resolve(read(written))
    marked = re.findall(r'<div class="name late">(.*?)</div>', written)
    mark = "\N{BLACK RIGHT-POINTING TRIANGLE} r2"
    assert marked == [mark, mark, f"{mark}: 1,005&nbsp;ms"]  # on the first screen, in the breakdown, by step
    assert re.findall(r'<tr class="late"><td[^>]*>(.*?)</td>', written) == ["2"]
    timeline = written[written.index('<section id="timeline">') :]
    assert timeline.index("Rank 2 (straggler)") < timeline.index("(usual)")
    card = written[written.index('id="advice-DP701"') :].partition("</article>")[0]
    assert '<a href="#timeline">' in card


def test_late_ranks_of_a_healthy_run_are_not_drawn() -> None:
    """One of its traced steps is late under the profiler, and nothing on the page refers to that."""
    run, report = reading.sample("healthy")
    assert list(lateness(report)), "there is a map, which would be drawn"
    assert 'id="lateness"' not in page(report)
    assert len(timeline_steps(run, report.measured)) == 2
    assert "The median step of rank" in page_of("healthy")
    assert "late in this step" not in page_of("healthy")
    assert 'id="rank-table"' in page(report)
    limited = report.headline.model_copy(update={"label": "Communication-bound"})
    assert 'id="lateness"' in page(report.model_copy(update={"headline": limited}))
    _, other = reading.sample("accumulation_without_no_sync")
    late = other.advice[0].model_copy(update={"rule": "DP702"})
    assert 'id="lateness"' in page(report.model_copy(update={"advice": [late]}))


def test_what_is_quoted_is_code_and_what_a_trace_names_is_no_element(report: Report) -> None:
    evil = "`<script>alert(1)</script>` and `<b>`"
    headline = report.headline.model_copy(update={"verdict": evil, "next": evil, "cause": evil})
    cards = [card.model_copy(update={"title": evil, "why": evil}) for card in report.advice]
    written = page(report.model_copy(update={"headline": headline, "advice": cards}), RunDetails([LANES]))
    assert written.count("<script>") == 1
    assert "<code>&lt;script&gt;alert(1)&lt;/script&gt;</code> and <code>&lt;b&gt;</code>" in written
    assert_links_resolve(read(written))


@pytest.mark.parametrize(
    "name",
    [
        "accumulation_without_no_sync",
        "healthy",
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("tiny_buckets", "starved_loader")),
    ],
)
def test_no_backquote_is_left_outside_of_code_blocks(name: str) -> None:
    written = re.sub(r"<pre>.*?</pre>|<[^>]*>", " ", page_of(name), flags=re.DOTALL)
    assert "`" not in written


def test_nothing_is_fetched_and_one_script_may_run(report: Report) -> None:
    written = page(report, RunDetails([LANES]))
    whole = read(written)
    tags = [tag for tag, _ in whole.seen]
    assert set(tags).isdisjoint({"link", "img", "iframe", "object", "embed", "form", "base"})
    assert tags.count("script") == 1
    for tag, attributes in whole.seen:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "srcset", "action")]
        assert "href" not in attributes or (tag == "a" and str(attributes["href"]).startswith("#"))
    assert "url(" not in written
    assert "@import" not in written


def test_the_policy_allows_the_script_of_the_page_alone(report: Report) -> None:
    written = page(report)
    policy = next(attributes["content"] for _, attributes in read(written).seen if attributes.get("http-equiv"))
    rules = dict(rule.split(" ", 1) for rule in str(policy).split("; "))
    script = written.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert rules["style-src"] == "'unsafe-inline'"
    assert "connect-src" not in rules
    assert "img-src" not in rules


def test_the_page_is_complete_without_its_script() -> None:
    """No part of it is hidden or empty until the script runs, and the tables are in the order of the report."""
    _, report = reading.sample("accumulation_without_no_sync")
    written = page_of("accumulation_without_no_sync")
    plain = re.sub(r"<script>.*</script>", "", written, flags=re.DOTALL)
    whole = read(plain)
    assert not [attributes for _, attributes in whole.seen if "hidden" in attributes]
    words = " ".join(" ".join(whole.words).split())
    positions = [words.index(kernel.name, words.index("Operators (traced")) for kernel in report.measured.kernels.top]
    assert positions == sorted(positions)
    for section in re.findall(r'<section id="[^"]+">(.*?)</section>', plain, flags=re.DOTALL):
        assert len(re.sub(r"<h2>.*?</h2>|<[^>]+>", "", section).strip()) > 20


def test_a_run_of_which_next_to_nothing_is_known_has_no_empty_section(foreign: Report) -> None:
    written = page(foreign)
    assert_links_resolve(read(written))
    for section in re.findall(r"<section [^>]+><h2>.*?</h2>(.*?)</section>", written, flags=re.DOTALL):
        assert re.sub(r"<[^>]+>", "", section).strip()


def test_cards_of_one_rule_have_anchors_of_their_own(report: Report) -> None:
    cards = [report.advice[0], report.advice[0].model_copy(update={"title": "again"}), report.advice[1]]
    evil = report.advice[0].model_copy(update={"rule": '"><b>'})
    whole = read(page(report.model_copy(update={"advice": [*cards, evil]})))
    assert_links_resolve(whole)
    anchors = [attributes["id"] for tag, attributes in whole.seen if tag == "article"]
    assert anchors == ["advice-DP102", "advice-DP102.2", "advice-DP401", "advice----b-"]


def test_code_of_several_lines_is_one_block_with_its_indentation(report: Report) -> None:
    paste = next(one.paste for told in report.advice for one in told.changes if "no_sync" in one.knob)
    assert len(paste.splitlines()) > 2
    assert any(row.startswith("    ") for row in paste.splitlines())
    assert f"<pre>{escape(paste)}</pre>" in page(report, RunDetails([LANES]))


def test_names_of_a_trace_are_words_and_nothing_else(report: Report) -> None:
    evil = report.model_copy(
        update={
            "run": report.run.model_copy(update={"command": EVIL, "sources": [EVIL]}),
            "advice": [one.model_copy(update={"title": EVIL, "why": EVIL}) for one in report.advice],
        }
    )
    written = page(evil, RunDetails([LANES]))
    read(written)
    assert written.count("<script") == 1  # the page's own
    assert "\x1b" not in written
    assert "\u202e" not in written
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in written


@pytest.mark.parametrize(
    "sample",
    [
        "accumulation_without_no_sync",
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("tiny_buckets", "starved_loader")),
    ],
)
def test_a_recorded_step_fits_its_lanes(sample: str) -> None:
    run, report = reading.sample(sample)
    found = step_lanes(run)
    assert found is not None
    assert [lane.label for lane in found.lanes][:2] == ["script", "compute"]
    for lane in found.lanes:
        ends = [piece.start_ns + piece.length_ns for piece in lane.pieces]
        assert all(piece.start_ns >= 0 and end <= found.length_ns for piece, end in zip(lane.pieces, ends, strict=True))
    compute = sum(piece.length_ns for piece in found.lanes[1].pieces)
    account = next(
        step.account
        for device in report.measured.ranks[0].devices
        for step in device.steps
        if step.number == found.number
    )
    closed = 0.25 * found.length_ns  # gaps that are too short to be seen count for what is around them
    assert account.compute_ns <= compute <= account.compute_ns + closed
    assert step_lanes(run, rank=99) is None


def test_a_gpu_has_a_lane_for_each_stream(real_traces: Path) -> None:
    run = load([real_traces / "nanogpt_8xh100"])
    found = step_lanes(run)
    assert found is not None
    streams = [lane.label for lane in found.lanes if lane.label.startswith("stream ")]
    assert len(streams) >= 2
    kinds = {piece.kind for lane in found.lanes for piece in lane.pieces}
    assert {"compute", "communication"} <= kinds


def test_the_command_writes_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.html"
    sample = str(SAMPLES / "accumulation_without_no_sync")
    words = ("report", sample, "--no-cache", "--format", "html")
    read_before = reading.sample("accumulation_without_no_sync")
    monkeypatch.setattr("dptune.commands.shared.reading.run_and_report", lambda paths, **how: read_before)
    monkeypatch.setattr("dptune.whatif.predicting.search", lambda *_: searched("accumulation_without_no_sync"))
    done = in_process.dptune(*words, "-o", str(target))
    assert done.returncode == 0, done.stderr
    written = target.read_text(encoding="utf-8")
    read(written)
    assert len(written) < 300_000
    assert "Bucket sizes" in written
    assert "aten::" in written[written.index('<section id="timeline">') : written.index('<section id="lateness">')]
    hidden = in_process.dptune(*words, "--anonymous").stdout
    host = read_before[1].measured.ranks[0].host
    for name in ("train.py", sample, "sample_traces", "/home/", str(SAMPLES), "/work", f">{host}<", f" {host} "):
        assert name not in hidden, name
    assert "torch.profiler traces" not in hidden  # dptune recorded it
    assert "file1.py:76" in hidden
    refused = in_process.dptune(*words[:-2], "--anonymous", "--no-tui")
    assert refused.returncode == 2
    assert "--anonymous requires --format html" in refused.stderr


WHERE = (
    "on node-a, /data/ada/x.bin, src/train.py:31, file:///srv/ada/kern.cu, s3://ada/key, load_node-a_ "
    "\\\\node-b\\ada\\k, see https://ui.perfetto.dev"
)


def test_no_name_is_left_where_it_is_not_to_be(report: Report) -> None:
    told = report.model_copy(update={"headline": report.headline.model_copy(update={"why": WHERE})})
    hidden = anonymous(told)
    words = hidden.model_dump_json()
    for name in ("node-a", "node-b", "ada/", "train.py:31", "s3:", report.run.sources[0]):
        assert name not in words, name
    assert hidden.headline.why.startswith("on host 1, a path, file")
    assert hidden.headline.why.endswith(", a path, a path, load_host 1_ a path, see https://ui.perfetto.dev")
    assert hidden.measured.step == report.measured.step
    assert re.search(r"NVIDIA H100", words)


def test_no_part_of_the_anonymous_page_names_a_host_a_path_or_a_file(report: Report) -> None:
    """Also not in a table, a tooltip, an attribute, the title or the text at the end."""
    where = WHERE.replace("node-a", "gpu-node-7")
    _, sample = reading.sample("accumulation_without_no_sync")
    ranks = [
        rank.model_copy(
            update={"host": "gpu-node-7.acme.example", "source": "/data/acme/run/rank0.json", "partial": where}
        )
        for rank in sample.measured.ranks
    ]
    kernels = sample.measured.kernels
    top = [kernel.model_copy(update={"name": "/data/acme/train loop.py(12): forward"}) for kernel in kernels.top]
    proof = Verified(
        name="ddp.no_sync=true", advice="DP102", changes={"ddp.no_sync": True}, outcome="inconclusive",
        reason="/data/acme/log.txt is missing on gpu-node-7", objective="time per step", ratio=None, low_ratio=None,
        high_ratio=None, trials=0, learning="alike", command="python acme_train.py",
    )  # fmt: skip
    named = sample.model_copy(
        update={
            "measured": sample.measured.model_copy(
                update={"ranks": ranks, "kernels": kernels.model_copy(update={"top": top})}
            ),
            "run": report.run.model_copy(update={"sources": ["/data/acme/run"], "command": "python acme_train.py"}),
            "advice": [card.model_copy(update={"why": where, "title": f"slow at {where}"}) for card in sample.advice],
            "headline": sample.headline.model_copy(update={"verdict": where, "cause": where, "next": where}),
            "verified": [proof],
        }
    )
    lanes = [unnamed(StepLanes(0, 7, 10, [Lane("stream acme", [Piece(0, 5, "compute", "/data/acme/k.cu", 1)])]))]
    assert "acme" in page(named, RunDetails(lanes))
    written = page(anonymous(named), RunDetails(lanes))
    for name in ("acme", "gpu-node-7", "node-a", "node-b", "ada", "rank0.json", "k.cu", "/data", "train.py", "s3:"):
        assert name not in re.sub(r"\bdata-", "", written), name
    assert "host 1" in written


def test_names_of_files_alone_are_not_left_either(report: Report) -> None:
    """A damaged trace named by its host, a module seen in a stack only, the command of a trial, a variable."""
    why = "trainer7.acme_4711.170.pt.trace.json breaks off; by acme_loader.py(12): forward; links.json; done in 0.5 s"
    proof = Verified(
        name="env.SECRET=hunter2",
        changes={"env.SECRET": "hunter2"},
        outcome="better",
        reason="x",
        objective="time per step",
        ratio=0.5,
        low_ratio=None,
        high_ratio=None,
        trials=6,
        learning="alike",
        command="python other.py --project acme",
    )
    told = report.model_copy(update={"headline": report.headline.model_copy(update={"why": why}), "verified": [proof]})
    hidden = anonymous(told)
    words = hidden.model_dump_json()
    for name in ("acme", "trainer7", "hunter2", "SECRET", "other.py"):
        assert name not in words, name
    shown = r"a file breaks off; by file\d+\.py\(12\): forward; a file; done in 0\.5 s"
    assert re.fullmatch(shown, hidden.headline.why), hidden.headline.why


def test_the_short_name_of_a_host_is_one_too_and_its_user_goes(report: Report) -> None:
    """As a shell's prompt has it, say in a named range; an address has no short name."""
    ranks = [one.model_copy(update={"host": "gpunode-7.corp.example"}) for one in report.measured.ranks]
    why = "zelda@gpunode-7:forward on gpunode-7.corp.example, 10 ms"
    told = report.model_copy(
        update={
            "headline": report.headline.model_copy(update={"why": why}),
            "measured": report.measured.model_copy(update={"ranks": ranks}),
        }
    )
    assert anonymous(told).headline.why == "host 1:forward on host 1, 10 ms"
    numbered = [one.model_copy(update={"host": "10.0.0.7"}) for one in report.measured.ranks]
    told = told.model_copy(update={"measured": report.measured.model_copy(update={"ranks": numbered})})
    assert anonymous(told).headline.why.endswith(", 10 ms")


def test_a_file_with_spaces_in_its_path_is_a_file(report: Report) -> None:
    why = "/data/secret project/of ours/own code.py(12): forward"
    told = report.model_copy(update={"headline": report.headline.model_copy(update={"why": why})})
    assert re.fullmatch(r"file\d+\.py\(12\): forward", anonymous(told).headline.why)


def test_a_file_that_could_not_be_read_is_a_path_whatever_its_name(report: Report) -> None:
    """Damaged files are named in findings, some by the name of their folder alone."""
    source = "/data/ada/dptune-runs/2026-11-20T23-31-08-secret_train"
    ranks = [one.model_copy(update={"source": f"{source}/rank-00000.json"}) for one in report.measured.ranks]
    text = (
        "2026-11-20T23-31-08-secret_train: rank-00000.facts.json is no JSON; /data/secret project/of ours/r 1.json cut"
    )
    finding = Finding(code="file-unreadable", level="partial", text=text)
    told = report.model_copy(
        update={
            "measured": report.measured.model_copy(update={"ranks": ranks}),
            "trust": report.trust.model_copy(update={"findings": [finding]}),
        }
    )
    words = anonymous(told).model_dump_json()
    for name in ("secret", "ours", "/ada", "2026-11-20"):
        assert name not in words, name


@pytest.mark.parametrize("sample", sorted(one.name for one in SAMPLES.iterdir() if (one / "run.json").exists()))
def test_no_sample_names_its_script(sample: str) -> None:
    """Lines stand in evidence, too, as words alone."""
    _, told = reading.sample(sample)
    named = told.model_dump_json()
    hidden = anonymous(told).model_dump_json()
    assert re.search(r"\w+\.py", named)
    assert not re.search(r"(?<!\w)(?!file\d)\w+\.py\b", hidden)


def test_a_folder_named_like_a_word_of_a_report_does_not_garble_it(report: Report) -> None:
    """Fields that hold one of a few words stay what they are, and prose stays prose."""
    for folder in ("run", "trace", "sweep", "recording", "light", "node-a", "n1"):
        ranks = [
            one.model_copy(update={"source": f"{folder}/rank.json", "host": "n1"}) for one in report.measured.ranks
        ]
        told = report.model_copy(
            update={
                "run": report.run.model_copy(update={"sources": [f"{folder}/rank.json"]}),
                "headline": report.headline.model_copy(
                    update={"why": "this run of a trace, by a sweep, on n1 or acme/x.json"}
                ),
                "measured": report.measured.model_copy(update={"ranks": ranks}),
            }
        )
        hidden = anonymous(told)
        assert hidden.headline.why == "this run of a trace, by a sweep, on host 1 or a file"
        assert hidden.measured.ranks[0].source == "trace 1"
        assert hidden.measured.step == report.measured.step


def test_a_model_that_fails_costs_the_page_its_buckets_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("made up")

    monkeypatch.setattr("dptune.whatif.predicting.search", fails)
    read_before = reading.sample("accumulation_without_no_sync")  # whose page has them (above)
    monkeypatch.setattr("dptune.commands.shared.reading.run_and_report", lambda paths, **how: read_before)
    target = tmp_path / "report.html"
    assert main(["report", "run", "--no-cache", "--format", "html", "-o", str(target)]) == 0
    assert "Bucket sizes" not in target.read_text(encoding="utf-8")


def smallest(real_traces: Path) -> list[Path]:
    files = sorted(
        (one for one in real_traces.rglob("*.json*") if one.name != "MANIFEST.json"), key=lambda one: one.stat().st_size
    )
    return files[:30]


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.thorough)])
def test_every_kind_of_trace_makes_a_whole_page(real_traces: Path, every: int) -> None:
    """The smallest public ones and damaged copies: without steps, cut off, of old versions."""
    made = 0
    for path in smallest(real_traces)[::every]:
        try:
            run, report = run_and_report([str(path)], jobs=1, cached=False)
        except DptuneError:
            continue
        assert_links_resolve(read(whole_page(run, report)))
        made += 1
    assert made >= 15 / every


def test_units_and_options_are_not_parted_from_what_they_belong_to() -> None:
    assert prose("take 1.5 ms of 2 GiB, 7 % more ms") == "take 1.5&nbsp;ms of 2&nbsp;GiB, 7&nbsp;% more ms"
    written = prose("use `dptune profile --stack-rate 3`, or `a-b`")
    option = '<span class="option">--stack-rate</span>'
    assert written == f"use <code>dptune profile {option} 3</code>, or <code>a-b</code>"
