"""The page: whole and well formed, with nothing to fetch, whatever a trace calls its things."""

from __future__ import annotations

import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dptune.advice import Report, Verified
from dptune.cli import main
from dptune.commands.shared.reading import run_and_report
from dptune.errors import DptuneError
from dptune.finding import Finding
from dptune.measure.lanes import Lane, Piece, StepLanes, step_lanes
from dptune.measured import LinkFigures, LinkSize, StepLag
from dptune.predicted import BucketSize
from dptune.present.anonymous import anonymous
from dptune.present.html import page, pictures

from .. import in_process, reading  # noqa: TID252 - tests are no installed package

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
        self.words.append(data)


def read(written: str) -> Whole:
    whole = Whole()
    whole.feed(written)
    whole.close()
    assert whole.open == []
    return whole


def link(basis: str, peak: float | None) -> LinkFigures:
    sizes = [
        LinkSize(message_bytes=4**n * 1024, calls=9, median_ns=50_000 + 4**n * 100, q1_ns=1, q3_ns=9) for n in range(6)
    ]
    known = {"alpha_us": 50.0, "algbw_gb_per_s": 10.0, "busbw_gb_per_s": 15.0, "peak_gb_per_s": peak}
    given = {name: value for name, value in known.items() if value is not None}
    return LinkFigures.only(
        "it is not needed",
        kind="all_reduce",
        ranks=[0, 1],
        scope="intra-node",
        basis=basis,
        sizes=sizes,
        calls=9,
        **given,
    )


def test_the_page_says_what_the_report_says(report: Report) -> None:
    whole = read(
        page(report, LANES, [BucketSize(cap_mb=None, buckets=3, step_ns=9), BucketSize(cap_mb=1, buckets=8, step_ns=7)])
    )
    words = " ".join(" ".join(whole.words).split())
    for told in (report.headline.verdict, report.headline.why, report.advice[0].why):
        assert told in words
    headings = [
        told for told in ("Step time breakdown", "One step: number 7 of rank 0", "Bucket sizes") if told in words
    ]
    assert len(headings) == 3
    cards = [attributes["class"] for tag, attributes in whole.seen if tag == "article"]
    assert cards == [f"card {one.impact}" for one in report.advice]
    for change in (change for one in report.advice for change in one.changes):
        assert change.paste.splitlines()[0] in words


def test_code_of_several_lines_is_one_block_with_its_indentation(report: Report) -> None:
    paste = next(one.paste for told in report.advice for one in told.changes if "no_sync" in one.knob)
    assert len(paste.splitlines()) > 2
    assert any(row.startswith("    ") for row in paste.splitlines())
    assert f"<pre>{escape(paste)}</pre>" in page(report, LANES)


def test_nothing_is_fetched_and_no_script_runs(report: Report) -> None:
    whole = read(page(report, LANES))
    tags = {tag for tag, _ in whole.seen}
    assert tags.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "a", "form", "base"})
    for _, attributes in whole.seen:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "href", "srcset")]
    policy = next(attributes["content"] for tag, attributes in whole.seen if attributes.get("http-equiv"))
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert "url(" not in page(report, LANES)


def test_names_of_a_trace_are_words_and_nothing_else(report: Report) -> None:
    evil = report.model_copy(
        update={
            "run": report.run.model_copy(update={"command": EVIL, "sources": [EVIL]}),
            "advice": [one.model_copy(update={"title": EVIL, "why": EVIL}) for one in report.advice],
        }
    )
    written = page(evil, LANES)
    read(written)
    assert "<script" not in written
    assert "\x1b" not in written
    assert "\u202e" not in written
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in written


def test_pictures_are_whole_and_to_scale() -> None:
    drawn = ElementTree.fromstring(pictures.timeline(LANES))
    boxes = list(drawn.iter("rect"))
    first, second, sliver = ({name: float(one.get(name, "")) for name in ("x", "width")} for one in boxes)
    room = pictures.WIDTH - first["x"]
    assert first["width"] == pytest.approx(0.4 * room, abs=0.01)
    assert second["x"] - first["x"] == pytest.approx(0.5 * room, abs=0.01)
    assert sliver["width"] == 0.5  # what is too short to be seen is seen
    assert "and 11 more: 4.00 ms, from 0 ms" in (boxes[0].find("title").text or "")  # type: ignore[union-attr]
    assert (boxes[2].find("title").text or "").startswith("operator self time: ")  # type: ignore[union-attr]
    bars = ElementTree.fromstring(pictures.bars([("rank 0", [("compute_ns", 0.75), ("input_idle_ns", 0.25)])], "t"))
    widths = [float(one.get("width", "")) for one in bars.iter("rect")]
    assert widths[0] == pytest.approx(3 * widths[1])
    assert sum(widths) == pytest.approx(room, abs=0.02)


def test_the_bandwidth_of_links_is_drawn_with_the_peak_and_what_was_fitted() -> None:
    drawn = ElementTree.fromstring(pictures.bandwidth([link("trace", 25.0), link("sweep", None)]))
    assert len(list(drawn.iter("circle"))) == 12
    assert len(list(drawn.iter("polyline"))) == 2
    assert "peak 25.0 GB/s" in [one.text for one in drawn.iter("text")]
    places = [float(one.get("cy", "")) for one in drawn.iter("circle")][:6]
    assert places == sorted(places, reverse=True)  # larger messages carry more, which is higher up
    assert pictures.bandwidth([]) == ""


def test_a_row_of_the_heat_map_is_darker_where_the_rank_is_later() -> None:
    drawn = ElementTree.fromstring(pictures.heat([("rank 0", [0, 0]), ("rank 1", [5, 10])], "t"))
    dark = [float(one.get("fill-opacity", "")) for one in drawn.iter("rect")]
    assert dark == [0.06, 0.06, 0.53, 1.0]
    assert pictures.heat([("rank 0", [0, 0])], "t") == ""


@pytest.mark.parametrize("sample", ["accumulation_without_no_sync", "tiny_buckets", "starved_loader"])
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
    run, _ = run_and_report([str(real_traces / "nanogpt_8xh100")], cached=False)
    found = step_lanes(run)
    assert found is not None
    streams = [lane.label for lane in found.lanes if lane.label.startswith("stream ")]
    assert len(streams) >= 2
    kinds = {piece.kind for lane in found.lanes for piece in lane.pieces}
    assert {"compute", "communication"} <= kinds


def test_the_command_writes_one_file(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    sample = str(SAMPLES / "accumulation_without_no_sync")
    words = ("report", sample, "--no-cache", "--format", "html")
    done = in_process.dptune(*words, "-o", str(target))
    assert done.returncode == 0, done.stderr
    written = target.read_text(encoding="utf-8")
    read(written)
    assert len(written) < 300_000
    assert "Bucket sizes" in written
    hidden = in_process.dptune(*words, "--anonymous").stdout
    for name in ("train.py", sample, "sample_traces", "/home/"):
        assert name not in hidden
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


def any_lanes(**more: Any) -> StepLanes:
    return StepLanes(**{"rank": 0, "number": 1, "length_ns": 10, "lanes": [], **more})


def test_a_step_without_lanes_is_left_out(report: Report) -> None:
    assert "One step" not in page(report, any_lanes())
    assert "One step" not in page(report)


def test_many_ranks_are_counted(report: Report) -> None:
    many = [report.measured.ranks[0].model_copy(update={"rank": number}) for number in range(100)]
    told = report.model_copy(update={"measured": report.measured.model_copy(update={"ranks": many})})
    words = " ".join(" ".join(read(page(told)).words).split())
    assert "The first 64 of 101 rows" in words
    assert "dptune report --format json has them all" in words


def test_the_latest_of_many_ranks_are_drawn(report: Report) -> None:
    """Rank 90 alone comes late."""
    _, other = reading.sample("accumulation_without_no_sync")
    first = other.measured.ranks[0]
    arrival = first.arrival.model_copy(update={"steps": [StepLag(number=1, lag_ns=0)]})
    late = arrival.model_copy(update={"steps": [StepLag(number=1, lag_ns=5_000_000)]})
    many = [
        first.model_copy(update={"rank": number, "arrival": late if number == 90 else arrival}) for number in range(100)
    ]
    told = report.model_copy(update={"measured": report.measured.model_copy(update={"ranks": many})})
    words = " ".join(" ".join(read(page(told)).words).split())
    assert "rank 90, step 1 of 1: 5.00 ms late" in words
    assert "The latest 64 of 100 rows" in words


def test_a_model_that_fails_costs_the_page_its_buckets_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("made up")

    monkeypatch.setattr("dptune.whatif.predicting.search", fails)
    target = tmp_path / "report.html"
    sample = str(SAMPLES / "accumulation_without_no_sync")
    assert main(["report", sample, "--no-cache", "--format", "html", "-o", str(target)]) == 0
    assert "Bucket sizes" not in target.read_text(encoding="utf-8")


def smallest(real_traces: Path) -> list[Path]:
    files = sorted(
        (one for one in real_traces.rglob("*.json*") if one.name != "MANIFEST.json"), key=lambda one: one.stat().st_size
    )
    return files[:30]


def test_every_kind_of_trace_makes_a_whole_page(real_traces: Path) -> None:
    """The smallest public ones and damaged copies: without steps, cut off, of old versions."""
    made = 0
    for path in smallest(real_traces):
        try:
            run, report = run_and_report([str(path)], cached=False)
        except DptuneError:
            continue
        read(page(report, step_lanes(run)))
        made += 1
    assert made >= 15
