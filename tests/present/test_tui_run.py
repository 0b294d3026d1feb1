"""The tabs that look into a run: its timeline, and what if; walked with the keyboard on recordings."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from dptune.advice import Change, Evidence, Report
from dptune.commands.shared.reading import run_and_report
from dptune.knobs import KNOBS, Value
from dptune.measure.lanes import Lane, Piece, RankLanes
from dptune.measure.rank_time import SHOWN, RunTime
from dptune.predicted import Prediction
from dptune.present.step_classes import PARTS
from dptune.present.tui.advice import Cards
from dptune.present.tui.app import ReportApp
from dptune.present.tui.dials import _NAMES, UNCHANGED, Dial, _around, _with, advised, dials, wanted_of
from dptune.present.tui.rows import PARTLY, Row, lane_cells, seen_rows, time_cells
from dptune.present.tui.scene import folded, usual_rank
from dptune.present.tui.timeline import Timeline
from dptune.present.tui.timeline_picture import without_functions
from dptune.present.tui.timeline_view import TimelineView
from dptune.present.tui.whatif import WhatIfPane, bar
from dptune.trace import load
from dptune.trace.run import Run
from dptune.whatif.cpu.changes import PREDICTED as PREDICTED_ON_CPUS
from dptune.whatif.gpu.changes import PREDICTED as PREDICTED_ON_GPUS
from dptune.whatif.run_model import RunModel

from .. import reading  # noqa: TID252 - tests are no installed package
from . import shared_app
from .test_tui import LARGE, SMALL, VERDICT, flat, look_for, screen, see

SAMPLES = Path(__file__).parents[2] / "sample_traces"
RECORDED = Path(__file__).parents[1] / "rules" / "recorded" / "runs"


@pytest.fixture(scope="module")
def recorded() -> tuple[Run, Report]:
    return reading.sample("accumulation_without_no_sync")


@pytest.fixture(scope="module")
async def app(recorded: tuple[Run, Report]) -> AsyncIterator[Pilot[None]]:
    run, report = recorded
    async with shared_app.started(report, run, LARGE) as pilot:
        yield pilot


@pytest.fixture
async def large(app: Pilot[None]) -> Pilot[None]:
    return await shared_app.at_its_start(app, LARGE)


@pytest.fixture
async def small(app: Pilot[None]) -> Pilot[None]:
    return await shared_app.at_its_start(app, SMALL)


def picture(pilot: Pilot[None]) -> str:
    """The timeline with its title, row by row."""
    lanes = pilot.app.query_one("#lanes", Static)
    return f"{lanes.border_title}\n{lanes.content}"


def named_rows(pilot: Pilot[None]) -> list[str]:
    """The first line of each row of the timeline."""
    return [row for row in picture(pilot).splitlines()[2:-1] if row[1:16].strip()]


@pytest.mark.parametrize("size", [pytest.param(SMALL, marks=pytest.mark.thorough), LARGE])
async def test_a_step_lane_by_lane(app: Pilot[None], size: tuple[int, int]) -> None:
    pilot = await shared_app.at_its_start(app, size)
    await see(pilot, "2 ranks, around step", "6")
    seen = await see(pilot, "rank 0, around step", "enter")
    assert re.search("█ compute ▓ exposed comm .*b backward o optimizer", flat(seen))
    rows = {row.split()[0].lstrip(">"): row for row in picture(pilot).splitlines()[2:-1] if row.split()}
    assert rows["script"].count("b") > 10
    assert "█" in rows["compute"]
    assert "▓" in rows["gloo"]
    assert "Optimizer.step" in picture(pilot) or size == SMALL
    width = {len(row) for row in picture(pilot).splitlines()[1:-1]}
    assert len(width) == 1
    assert width.pop() <= size[0]


async def test_zooming_halves_what_is_shown_and_out_ends_somewhere(
    large: Pilot[None], recorded: tuple[Run, Report]
) -> None:
    await see(large, "ms from left to right", "6")

    def shown() -> float:
        return float(re.findall(r": ([\d.]+) ms from", picture(large))[0])

    whole = shown()
    await large.press("plus")
    assert shown() == pytest.approx(whole / 2, rel=0.01)
    await large.press("minus", "minus")
    assert shown() == pytest.approx(2 * whole, rel=0.01)
    await large.press("n")
    assert shown() != pytest.approx(2 * whole, rel=0.01)
    run, _ = recorded
    await large.press(*["minus"] * 12)  # by 2 each
    recorded_ns = [RankLanes(run, rank.rank).recorded_ns for rank in run.ranks]
    timeline = large.app.query_one(Timeline)
    first = run.ranks[0].light.base_ns
    offsets = [rank.light.base_ns - first for rank in run.ranks]
    assert timeline.view.begin == min(low + by for (low, _), by in zip(recorded_ns, offsets, strict=True))
    assert timeline.view.end == max(high + by for (_, high), by in zip(recorded_ns, offsets, strict=True))
    assert "ms from left to right" in picture(large)


async def test_a_prediction_that_arrives_while_the_report_closes(recorded: tuple[Run, Report]) -> None:
    """The parts of a page are removed before the page."""
    run, report = recorded
    async with ReportApp(report, run).run_test(size=LARGE) as pilot:
        pane = pilot.app.query_one(WhatIfPane)
        await pane.remove_children()
        pane._keep(pane.changes, Prediction.only("late", changes={}))
        assert pane._last is not None


async def test_what_is_under_the_cursor_another_rank_and_a_place_to_go_to(
    large: Pilot[None], recorded: tuple[Run, Report]
) -> None:
    """Named is the step in the middle of what is shown."""
    run, _ = recorded
    await see(large, "2 ranks, around step", "6")
    await see(large, "rank 0, around step", "enter")
    seen = flat(await see(large, "compute: compute", "down"))
    assert re.search(r"What (aten|autograd|torch)", seen)
    await see(large, "rank 1, around step", "r")
    await see(large, "rank 0, around step", "r")
    timeline = large.app.query_one(Timeline)
    steps = RankLanes(run, run.ranks[0].rank).steps
    for step in (steps[0], steps[-1]):
        timeline.look(step.start_ns, step.end_ns)
        assert f"around step {step.number}:" in picture(large)
    timeline.go_to(1, 5_000_000, 6_000_000)
    await see(large, "rank 1, around step")
    assert ": 3.00 ms from left to right" in picture(large)
    timeline.go_to(99, 0, 1)  # is no rank of it
    assert "rank 1" in picture(large)


async def test_settings_turned_with_the_arrow_keys(large: Pilot[None], recorded: tuple[Run, Report]) -> None:
    """What the first recommendation changes is set; nothing is after a reset."""
    run, report = recorded
    await see(large, "Advised by DP102 no-sync-missing", "7")
    pane = large.app.query_one(WhatIfPane)
    assert pane.changes == {"ddp.no_sync": True}
    await see(large, "Up and down: select a setting. Left and right: change it.", "0")
    assert pane.changes == {}
    assert "Copy command" not in screen(large)  # nothing is set
    no_sync = next(place for place, one in enumerate(dials(run, report.measured)) if one.knob == "ddp.no_sync")
    await large.press(*["down"] * no_sync, "right")
    assert pane.changes == {"ddp.no_sync": True}
    await see(large, "y Copy command 0 Reset")
    seen = flat(await see(large, "--set ddp.no_sync=true"))
    then = float(re.findall(r"Then ([\d.]+) ms", seen)[0])
    assert then < float(re.findall(r"Now ([\d.]+) ms", seen)[0])
    assert float(re.findall(r"Then .*? ([\d.]+) us/sample", seen)[0]) < float(
        re.findall(r"Now .*? ([\d.]+) us/sample", seen)[0]
    )
    assert re.search(r"Per sample [\d.]+ % less", seen)
    assert "Results" not in seen
    assert "includes no change" not in seen
    await large.press("right", "left", "left")  # past neither end
    assert pane.changes == {}
    await large.press("right", "0")
    assert pane.changes == {}


async def test_a_prediction_that_may_save_nothing_says_so_and_a_bar_is_of_one_sample(large: Pilot[None]) -> None:
    """A bucket of 25 MiB rather than torch's own: the same buckets but for the first.

    A step of twice the samples takes longer, a sample less: its bar is the shorter one.
    """
    await see(large, "Up and down: select a setting. Left and right: change it.", "7", "0")
    seen = flat(await see(large, "the interval includes no change: this may save nothing", "right"))
    low, high = re.findall(r"ms, ([\d.]+ % less) to ([\d.]+ % more) per sample", seen)[0]
    assert low != high
    await see(large, "Up and down: select a setting. Left and right: change it.", "0")
    seen = flat(await see(large, "--set loader.batch_size=256", "down", "right"))
    now, then = (re.findall(rf"{label} ([\d.]+) ms .*? us/sample ([█▒]+)", seen)[0] for label in ("Now", "Then"))
    assert float(then[0]) > float(now[0])
    assert then[1].count("█") < now[1].count("█")


def test_a_bar_shows_the_interval_and_where_now_is() -> None:
    assert bar(1.0, 1.0, 40) == "█" * 20
    assert bar(0.5, 1.0, 40) == "█" * 10 + "▒" * 10
    assert bar(0.5, 0.75, 40) == "█" * 10 + "▒" * 5 + " " * 5 + "│"
    assert bar(0.9, 1.1, 40) == "█" * 18 + "▒" * 2 + "│" + "▒"
    assert bar(1.5, 5.0, 40) == "█" * 20 + "│" + "█" * 9 + "▒" * 9 + "▶"
    assert bar(3.0, 5.0, 40) == "█" * 20 + "│" + "█" * 18 + "▶"
    assert bar(0.0, 0.0, 40) == "█" + " " * 19 + "│"


async def test_why_nothing_can_be_predicted_is_said() -> None:
    run, report = run_and_report([str(RECORDED / "same-data" / "rank-00000.trace.json.gz")], cached=False)
    async with ReportApp(report, run).run_test(size=LARGE) as pilot:
        seen = flat(await see(pilot, "No prediction:", "7"))
        assert "Settings" not in seen, "there is none to change"
        assert "bar: time per sample" not in seen
        assert not pilot.app.query_one(WhatIfPane).check_action("turn", (1,))


async def test_a_report_that_was_read_alone_has_no_run_to_look_into(report: Report) -> None:
    async with ReportApp(report).run_test(size=LARGE) as pilot:
        await see(pilot, VERDICT)
        await pilot.press("6", "7")
        told = [notification.message for notification in pilot.app._notifications]
        assert told == ["Not available: only a report was loaded, not the run."] * 2
        await see(pilot, VERDICT)


async def test_help_has_the_keys_of_every_tab(large: Pilot[None]) -> None:
    await large.press("question_mark")
    seen = ""
    for _ in range(6):
        await large.wait_for_scheduled_animations()
        await large.pause(0.05)
        seen += flat(screen(large))
        await large.press("pagedown")
    for words in ("Zoom: zoom in at the cursor", "Rank: the next rank, at the same step", "Reset: reset all"):
        assert words in seen


def test_a_cell_shows_what_most_of_it_is() -> None:
    """Ten cells of 10 ns; a thin bar where a cell is idle for longer than anything runs in it."""
    pieces = [Piece(0, 30, "compute", "a", 1), Piece(34, 2, "copy", "b", 1), Piece(36, 4, "communication", "c", 1)]
    sparse = [Piece(61, 2, "compute", "d", 1), Piece(80, 20, "compute", "e", 9, busy_ns=4)]
    cells = lane_cells(Lane("x", [*pieces, *sparse]), 100, 10)
    assert "".join(cell.sign for cell in cells) == f"███▓  {PARTLY} {PARTLY}{PARTLY}"
    assert cells[6].style == cells[0].style != cells[3].style
    assert {cell.sign for cell in lane_cells(Lane("x", []), 100, 10)} == {" "}


def test_a_cell_of_a_rank_is_its_largest_share() -> None:
    shares = {name: np.zeros(5) for name in SHOWN}
    shares["compute_ns"][:] = (0.6, 0.3, 0.01, 0.0, 0.0)
    shares["other_idle_ns"][:] = (0.4, 0.7, 0.99, 1.0, 0.0)
    assert "".join(cell.sign for cell in time_cells(shares)) == f"█{PARTLY}·· "


def test_dials_begin_as_it_is(recorded: tuple[Run, Report]) -> None:
    run, report = recorded
    made = {one.knob: one for one in dials(run, report.measured)}
    assert all(UNCHANGED in one.values for one in made.values())
    assert made["world_size"].values == (UNCHANGED, 4, 8, 16)
    sizes = made["ddp.bucket_cap_mb"].values
    at = sizes.index(UNCHANGED)
    (ddp,) = run.facts[0].ddp
    assert all(size < ddp.bucket_cap_bytes / 2**20 for size in sizes[:at])
    assert all(size >= ddp.bucket_cap_bytes / 2**20 for size in sizes[at + 1 :])
    assert made["loader.batch_size"].values == (UNCHANGED, 256, 512, 1024)  # of 128, in four micro-batches a step


def test_a_dial_holds_what_is_now_in_order_of_size() -> None:
    assert _around((1.0, 10.0), 3.0) == (1.0, UNCHANGED, 10.0)
    assert _around((1.0, 10.0), 0.2) == (UNCHANGED, 1.0, 10.0)
    assert _around((1.0, 10.0), 10.1) == (1.0, UNCHANGED)


def test_the_first_recommendation_that_settings_can_express_is_set(recorded: tuple[Run, Report]) -> None:
    run, report = recorded
    made = dials(run, report.measured)
    by_rule = {advice.rule: advice for advice in report.advice}
    no_sync, fused, batch = by_rule["DP102"], by_rule["DP603"], by_rule["DP301"]
    assert advised(made, [no_sync, batch]) == (made, {"ddp.no_sync": True}, "DP102 no-sync-missing")
    assert advised(made, [fused, batch])[1:] == ({"loader.batch_size": 256}, "DP301 small-batch")
    assert advised(made, [fused]) == (made, {}, "")
    sizes = Dial("ddp.bucket_cap_mb", "bucket size, MiB", (1.0, 5.0, UNCHANGED, 50.0))
    assert _with(sizes, 2).values == (1.0, 2, 5.0, UNCHANGED, 50.0)
    assert _with(sizes, 80).values == (1.0, 5.0, UNCHANGED, 50.0, 80)
    assert _with(Dial("wrapper", "wrapper", (UNCHANGED, "ddp")), "fsdp").values == (UNCHANGED, "fsdp", "ddp")


async def test_a_recommendation_opens_what_if_with_its_settings() -> None:
    """Replayed ones by what was replayed, others by what they change; some need a setting that is not listed else.

    What a changed setting is now is not cut, and settings that there is no room for are counted.
    """
    run, report = reading.sample("gpu/ranks-nccl-fsdp")
    wanted = {advice.rule: wanted_of(advice) for advice in report.advice}
    assert wanted["DP206"] == {"fsdp.forward_prefetch": 2}
    assert not wanted["DP206"].keys() <= {dial.knob for dial in dials(run, report.measured)}
    async with ReportApp(report, run).run_test(size=SMALL) as pilot:
        await see(pilot, "Recommendations as ranked", "2")
        cards, pane = pilot.app.query_one(Cards), pilot.app.query_one(WhatIfPane)
        predicted = list(filter(pane.can_predict, cards._ranked))
        opened = [advice for advice in predicted if advice.rule in ("DP206", "DP401")]  # not DP204: the longest replay
        assert len(opened) == 2
        shown = {**wanted, "DP401": ["precision.float3"]}  # which is cut
        for place, advice in enumerate(cards._ranked):
            cards.query_one(DataTable).move_cursor(row=place)
            await pilot.pause()
            assert cards.check_action("predict", ()) == pane.can_predict(advice)
            if advice in opened:  # each is replayed
                await pilot.press("p")
                seen = flat(await see(pilot, f"Advised by {advice.rule} {advice.slug}"))
                assert pane.changes == wanted[advice.rule]
                assert all(knob in seen for knob in shown[advice.rule])
                await see(pilot, "Recommendations as ranked", "2")
        await see(pilot, "> float32 products < high (now highest) precision", "7", "up", "right")
        count = len(pane._dials)
        assert f"of {count}" in flat(screen(pilot))
        await pilot.press("0", *["down"] * (count - 1))
        assert f"> {pane._dials[-1].what}" in flat(screen(pilot))
        await pilot.app.workers.wait_for_complete()


def test_the_finding_of_a_straggler_changes_no_setting_and_what_was_replayed_for_it_is_set(real_traces: Path) -> None:
    report = reading.reported(real_traces / "nanogpt_8xh100")
    late = next(advice for advice in report.advice if advice.rule == "DP701")
    assert (late.changes, wanted_of(late)) == ([], {"straggler.removed": True})


@pytest.mark.thorough  # replays eight ranks: other recommendations are opened above
async def test_a_predicted_straggler_is_removed_first(real_traces: Path) -> None:
    run, report = reading.run_and_report_of(real_traces / "nanogpt_8xh100")
    late = next(advice for advice in report.advice if advice.rule == "DP701")
    async with ReportApp(report, run).run_test(size=SMALL) as pilot:
        seen = flat(await see(pilot, "Interval", "7"))
        assert "Advised by DP701 late-rank" in seen
        assert late.saves is not None
        shares = re.findall(r"Interval .*? ms, ([\d.]+) to ([\d.]+) % less per sample", seen)
        expected = (100 * late.saves.low_share, 100 * late.saves.high_share)
        assert tuple(map(float, shares[0])) == pytest.approx(expected, abs=0.06)


def test_settings_of_units_of_unknown_size_are_none_of_ddp() -> None:
    """Recorded before their sizes were."""
    run, report = reading.run_and_report_of(RECORDED / "sharded-parameters")
    assert all(fsdp.names == [] for facts in run.facts.values() for fsdp in facts.fsdp)
    names = [dial.knob for dial in dials(run, report.measured)]
    assert "fsdp.reshard_after_forward" in names
    assert "fsdp.units" not in names
    assert not any(name.startswith("ddp.") for name in names)


async def test_what_is_asked_while_it_replays_is_next(
    large: Pilot[None], recorded: tuple[Run, Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One replay at a time, however quick the keys come; the last of them is what is shown."""
    run, report = recorded
    go_on, asked = Event(), []

    def predict(_: RunModel, changes: dict[str, Value]) -> Prediction:
        asked.append(changes)
        go_on.wait(600)
        return Prediction.only("it is not replayed", changes=changes)

    monkeypatch.setattr(RunModel, "predict", predict)
    await see(large, "Up and down: select a setting. Left and right: change it.", "7", "0")
    sizes = dials(run, report.measured)[0].values
    at = sizes.index(UNCHANGED)
    assert at > 1
    await large.press(*["left"] * at)
    assert large.app.query_one(WhatIfPane).changes == {"ddp.bucket_cap_mb": sizes[0]}
    assert len(asked) == 1
    go_on.set()
    await see(large, f"--set ddp.bucket_cap_mb={sizes[0]:g}")
    assert asked[1:] == [{"ddp.bucket_cap_mb": sizes[0]}]


def test_lanes_that_there_is_room_for() -> None:
    assert seen_rows(5, 3, 10) == (0, 5)
    assert seen_rows(20, 0, 6) == (0, 6)
    assert seen_rows(20, 10, 6) == (7, 13)
    assert seen_rows(20, 19, 6) == (14, 20)


async def test_lanes_beyond_the_screen_are_reached(small: Pilot[None]) -> None:
    await see(small, "around step", "6")
    timeline = small.app.query_one(Timeline)
    timeline.view.rows = [Row(f"stream {number}", (0,), list, lane=Lane("", [])) for number in range(24)]
    await small.press(*["down"] * 23)
    assert "stream 23" in picture(small)
    assert "of 24" in picture(small)
    assert "stream 0 " not in picture(small)


def test_a_piece_is_named_and_timed_whole_where_it_began_before(recorded: tuple[Run, Report]) -> None:
    """The longest operation of a step, drawn from its middle on."""
    run, _ = recorded
    lanes = RankLanes(run, 0)
    step = lanes.steps[lanes.median or 0]
    pieces = [one for lane in lanes.between(step.start_ns, step.end_ns) for one in lane.pieces if one.count == 1]
    whole = max((one for one in pieces if one.longest_ns), key=lambda one: one.length_ns)
    begin = step.start_ns + whole.start_ns + whole.length_ns // 2
    cut = [one for lane in lanes.between(begin, begin + whole.length_ns // 4) for one in lane.pieces]
    assert any((one.name, one.longest_ns) == (whole.name, whole.longest_ns) and not one.start_ns for one in cut)


async def test_a_gap_and_a_rank_are_shown_in_the_timeline(large: Pilot[None], recorded: tuple[Run, Report]) -> None:
    _, report = recorded
    await see(large, "all_reduce", "4")
    assert (await see(large, "Longest gaps", "5")).count("Longest gaps") == 1
    gap = report.measured.gaps[1]
    await large.press("down")
    await see(large, f"rank {gap.rank}, around step {gap.step}: {3 * gap.length_ns / 1e6:.2f} ms", "enter")
    await see(large, "late ms by step", "3")
    await large.press("down")
    await see(large, "rank 1, around step", "enter")


async def test_evidence_is_shown_where_it_was_seen(
    large: Pilot[None], recorded: tuple[Run, Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [
        Evidence(label="here", value=1, rank=1, start_ns=5_000_000, end_ns=6_000_000),
        Evidence(label="all over", value=2),
        Evidence(label="there", value=3, rank=0, start_ns=7_000_000, end_ns=9_000_000),
    ]
    advice = recorded[1].advice[0].model_copy(update={"evidence": places})
    cards = large.app.query_one(Cards)
    monkeypatch.setattr(cards, "_ranked", [advice])
    cards.find("")  # lists them anew
    for words in ("rank 1, around step", "rank 0, around step", "rank 1, around step"):
        await see(large, "Recommendations as ranked", "2")
        await see(large, words, "e")
    assert ": 3.00 ms from left to right" in picture(large)


async def test_what_is_found_is_named_on_its_lane(large: Pilot[None]) -> None:
    """Also where a picture has no room for it: an operator inside another one, a range of the script. Then the next."""
    await see(large, "2 ranks, around step", "6")
    await see(large, "rank 0, around step", "enter")
    for words, lane, named in (
        ("aten::t", "operator: aten::t", "Found aten::t"),
        ("Optimizer.step", "range: Optimizer.step#AdamW.step", "Found Optimizer.step#AdamW.step"),
    ):
        await look_for(large, words)
        seen = flat(await see(large, named))
        assert lane in seen
        assert "Idle." not in seen
        await large.press("escape")
    await see(large, "Under the cursor", "up")
    assert "Found" not in screen(large)
    await look_for(large, "GLOO:all_reduce")
    seen = await see(large, ": communication Found gloo:all_reduce")
    assert "gloo " in flat(seen)
    assert "Idle." not in flat(seen)
    assert "What gloo:all_reduce" in flat(seen)
    (first, many) = re.findall(r"(\d+) of ([\d,]+)", seen)[-1]
    await see(large, f"{int(first) + 1} of {many}", "enter")
    await see(large, "none on this rank", *"zzz", "enter")


def test_what_is_found_on_a_gpu_is_on_its_stream(real_traces: Path) -> None:
    """A kernel on the lane of its stream, the call that starts it on the script's."""
    run = load([str(next((real_traces / "nanogpt_8xh100").glob("*rank0*")))], cached=False)
    lanes = RankLanes(run, run.ranks[0].rank)
    columns, (step, *_) = run.ranks[0].light.columns, lanes.steps
    labels = [lane.label for lane in lanes.between(step.start_ns, step.end_ns)]
    for name in ("ncclDevKernel_AllGather", "void at::native::", "cudaLaunchKernel"):
        found = lanes.next_named(name, step.start_ns)
        assert found is not None
        (row,) = [row for row in np.flatnonzero(columns.ts_ns == found.start_ns) if columns.name(row) == found.name]
        stream = int(columns.stream[row])
        assert labels[found.lane] == ("script" if name == "cudaLaunchKernel" else f"stream {stream}")


async def test_no_operation_is_left_out(small: Pilot[None]) -> None:
    """Of operators, thousands of which begin within one cell, one after the other is found."""
    await see(small, "2 ranks, around step", "6")
    await see(small, "rank 0, around step", "enter")
    timeline = small.app.query_one(Timeline)
    found = []
    for _ in range(8):
        found.append(int(timeline.find("aten::").split()[0].replace(",", "")))
        hit = timeline.view.found
        assert hit is not None
        assert hit.end_ns - hit.start_ns >= (timeline.view.end - timeline.view.begin) / timeline.view.columns
    assert found == [*range(found[0], found[0] + 8)]


def test_the_next_operation_of_a_name_by_a_plain_search(recorded: tuple[Run, Report]) -> None:
    run, _ = recorded
    lanes = RankLanes(run, 0)
    columns = run.ranks[0].light.columns
    events = sorted(
        (int(columns.ts_ns[row]), int(columns.end_ns[row]))
        for row in range(len(columns))
        if "linear" in columns.name(row).lower()
    )
    for at in (0, 5, len(events) - 1):
        found = lanes.next_named("Linear", events[at][0] - 1)
        assert found is not None
        assert (found.at, found.many, found.start_ns) == (at + 1, len(events), events[at][0])
        assert found.end_ns in {until for begin, until in events if begin == found.start_ns}
        assert "linear" in found.name.lower()
    first = lanes.next_named("linear", events[-1][0])
    assert first is not None
    assert first.start_ns == events[0][0]
    assert lanes.next_named("no such name", 0) is None


async def test_dials_of_gpus_are_those_that_their_model_knows(real_traces: Path) -> None:
    """Two ranks whose replay is good enough to tell more than a bound."""
    run, report = reading.run_and_report_of(real_traces / "torchrec_resnet18_2xv100")
    async with ReportApp(report, run).run_test(size=LARGE) as pilot:
        await see(pilot, "Up and down: select a setting. Left and right: change it.", "7", "0")
        names = [one.knob for one in dials(run, report.measured)]
        assert names[:3] == ["host.times", "compute.times", "syncs.removed"]
        assert "ddp.bucket_cap_mb" not in names
        assert names[-1] == "straggler.removed"
        seen = flat(await see(pilot, "--set host.times=0.5", "left"))
        then, low, high = map(float, re.findall(r"Then ([\d.]+) ms .* Interval ([\d.]+) to ([\d.]+) ms", seen)[0])
        assert low <= then <= high
        assert then <= float(re.findall(r"Now ([\d.]+) ms", seen)[0])


def test_dials_of_sharded_gpus_are_those_of_their_units() -> None:
    run, report = reading.sample("gpu/ranks-nccl-fsdp")
    names = [dial.knob for dial in dials(run, report.measured)]
    assert names[3:5] == ["fsdp.reshard_after_forward", "fsdp.prefetch"]
    assert {"precision.autocast", "optimizer.fused", "straggler.removed"} < set(names)
    assert not any(name.startswith("ddp.") for name in names)


def test_dials_of_replicated_gpus_are_those_of_their_buckets() -> None:
    run, report = reading.sample("gpu/ranks-nccl-ddp")
    names = [dial.knob for dial in dials(run, report.measured)]
    assert {"ddp.bucket_cap_mb", "ddp.no_sync", "ddp.comm_hook"} < set(names)
    assert not any(name.startswith("fsdp.") for name in names)


def test_settings_that_a_recommendation_adds_have_names_of_their_own() -> None:
    """Not their knobs', which are beside them: all that a model predicts or bounds."""
    run, report = reading.sample("gpu/ranks-nccl-fsdp")
    known = (PREDICTED_ON_CPUS | PREDICTED_ON_GPUS) & KNOBS.keys()
    assert len(known) > 20
    assert known - _NAMES.keys() == set()
    change = Change.model_construct(knob="ddp.bucket_cap_mb", now=None, then=1.0, at=None)
    card = report.advice[0].model_copy(update={"changes": [change], "saves": None})
    added = {dial.knob: dial.what for dial in advised(dials(run, report.measured), [card], known)[0]}
    assert added["ddp.bucket_cap_mb"] == "bucket size, MiB"


async def test_the_legend_names_what_is_drawn_and_the_cursor_hides_no_digit(small: Pilot[None]) -> None:
    await see(small, "2 ranks, around step", "6")
    *rows, legend = [row for row in picture(small).splitlines()[2:] if row.strip()]
    drawn = {sign for row in rows for sign in row[16:]}
    signs = {part.block: part.name for part in PARTS}
    assert {name for sign, name in signs.items() if sign in drawn} == {
        name for name in signs.values() if f" {name}" in legend
    }
    assert "  ▓ exposed comm  " in legend  # two blanks between: the sign of idle time reads as a separator
    seen = set()
    for _ in range(14):  # more than from one time to the next
        axis = picture(small).splitlines()[1].removeprefix(" ms").strip()
        seen |= {re.sub(r"[╷▼]", "", word) for word in re.split(r"\s+|(?=[╷])", axis)} - {""}
        await small.press("right")
    assert seen == {"0", "50", "100"}


@pytest.mark.thorough  # of one more run than the legend above
async def test_the_legend_fits_a_narrow_screen(real_traces: Path) -> None:
    """Streams, phases of the script and classes of a rank's time: all are named."""
    run, report = reading.run_and_report_of(real_traces / "nanogpt_8xh100")
    async with ReportApp(report, run).run_test(size=SMALL) as pilot:
        await see(pilot, "rank 1, around step 11", "2", "e")
        await see(
            pilot, "█ compute ▓ exposed comm ▒ waiting · idle ≡ copies b backward o optimizer"
        )  # once all are read


async def test_a_range_is_opened_until_the_cursor_is_at_its_innermost(large: Pilot[None]) -> None:
    await see(large, "2 ranks, around step", "6")
    await see(large, "rank 0, around step", "enter")
    timeline = large.app.query_one(Timeline)
    timeline.find("Optimizer.step")
    before = timeline.view.end - timeline.view.begin
    await large.press("enter")
    assert timeline.view.end - timeline.view.begin < before
    await see(large, "range: Optimizer.step#AdamW.step")
    opened = timeline.view.begin, timeline.view.end
    await see(large, "2 ranks, around step", "escape")
    assert (timeline.view.begin, timeline.view.end) == opened  # the same moment on all ranks
    await large.press("0")
    assert timeline.view.end - timeline.view.begin >= before


async def test_two_ranks_are_drawn_over_the_same_moments(large: Pilot[None]) -> None:
    await see(large, "2 ranks, around step", "6")
    rows = named_rows(large)
    await see(large, "rank 0 vs rank 1, around step", "b")
    beside = [row for row in picture(large).splitlines() if row[1:3] in ("r0", "r1")]
    assert [row[16:] for row in beside] == [row[16:] for row in rows]


def test_ranks_are_folded_by_host_where_there_are_more_than_lines(recorded: tuple[Run, Report]) -> None:
    run_time = RunTime(recorded[0])
    hosts = {number: f"gpu-node-{number // 8:03}" for number in range(64)}
    run_time.ranks = {
        number: replace(run_time.ranks[number % 2], rank=number, host=host) for number, host in hosts.items()
    }
    rows = folded(run_time, range(64), [11], 20)
    assert rows[0] == ("r11", (11,))
    assert [len(ranks) for _, ranks in rows[1:]] == [8, 7, *[8] * 6]
    assert len({name for name, _ in rows}) == len(rows)
    assert sorted(rank for _, ranks in rows for rank in ranks) == [*range(64)]
    assert len(folded(run_time, rows[2][1], [11], 20)) == 7  # opened, a row for each rank
    late = [40, 3, *range(50, 64)]  # the latest first, in half of the room; the others with their hosts
    rows = folded(run_time, range(64), late, 20)
    assert [ranks for _, ranks in rows[:10]] == [(rank,) for rank in late[:10]]
    assert rows[10:12] == [("gpu..-000 x7", (0, 1, 2, 4, 5, 6, 7)), ("gpu..-001 x8", (*range(8, 16),))]
    run_time.ranks = {number: replace(rank, host="") for number, rank in run_time.ranks.items()}
    rows = folded(run_time, range(64), [], 20)
    assert [name for name, _ in rows][:2] == ["r0-7", "r8-15"]


def test_whom_a_rank_is_compared_with() -> None:
    lags = {0: 3, 1: 1, 2: 900, 3: 2}
    assert usual_rank(2, range(4), lags, late=2) == 3  # the median of the others
    assert usual_rank(0, range(4), lags, late=2) == 2
    assert usual_rank(0, [0], {}, late=None) is None
    assert usual_rank(0, [0, 1], {}, late=None) == 1


async def test_a_host_is_opened_to_its_ranks(recorded: tuple[Run, Report]) -> None:
    run, report = recorded
    async with ReportApp(report, run).run_test(size=SMALL) as pilot:
        await see(pilot, "2 ranks, around step", "6")
        timeline = pilot.app.query_one(Timeline)
        (first, second), run_time = run.ranks, timeline.view.run_time
        assert run_time is not None
        run_time.ranks = {
            number: replace(run_time.ranks[(first, second)[number % 2].rank], rank=number, host=f"node-{number // 8}")
            for number in range(32)
        }
        timeline.view.numbers = [*range(32)]
        timeline.view.run = replace(
            run, ranks=[replace((first, second)[number % 2], rank=number) for number in range(32)]
        )
        timeline.look(timeline.view.begin, timeline.view.end)
        names = [row[1:16].strip() for row in named_rows(pilot)]
        assert names == ["node-0 x8", "node-1 x8", "node-2 x8", "node-3 x8"]
        assert "█" in picture(pilot).splitlines()[2]
        assert "Ranks 8-15 on node-1" in flat(await see(pilot, "Ranks 8-15", "down"))
        await see(pilot, "8 ranks, around step", "enter")
        assert picture(pilot).splitlines()[2][1:16].strip() == "r8"
        await see(pilot, "32 ranks, around step", "escape")


async def test_keys_wait_until_the_ranks_are_read(
    recorded: tuple[Run, Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pressed while the ranks are read: named on the screen, done in their order, or cancelled.

    Each drawing of the keys below takes as long as several ranks: none while 1,000 ranks are compared.
    """
    run, report = recorded
    go_on, drawn = Event(), 0

    class Slow(RunTime):
        def __init__(self, run: Run, progress: Callable[[int, int], None]) -> None:
            go_on.wait(600)
            before = drawn
            for done in range(1_000):
                progress(done, 1_000)
            assert drawn == before
            super().__init__(run, progress)

    refreshed = Timeline.refresh_bindings

    def counted(timeline: Timeline) -> None:
        nonlocal drawn
        drawn += 1
        refreshed(timeline)

    monkeypatch.setattr("dptune.present.tui.timeline.RunTime", Slow)
    monkeypatch.setattr(Timeline, "refresh_bindings", counted)
    async with ReportApp(report, run).run_test(size=SMALL) as pilot:
        await see(pilot, "reading ...", "6")
        assert "then" not in screen(pilot)
        await see(pilot, "reading ... then: Beside, Step, Step before, Whole step (esc: cancel)", "b", "n", "p", "0")
        await pilot.press("escape")
        assert "then" not in screen(pilot)
        await see(pilot, "then: Lane, Open, Lane, Lane, Lane, Lane and 2 more", "down", "enter", *["down"] * 6)
        go_on.set()
        await see(pilot, "rank 1, around step")
        assert pilot.app.query_one(Timeline).view.lane == 6
        assert "cannot be compared" not in screen(pilot)
    assert drawn


async def test_a_rank_that_was_opened_can_be_read_while_the_others_are(
    recorded: tuple[Run, Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys need no other rank; going back to all ranks does, and waits."""
    run, report = recorded
    go_on = Event()

    class Slow(RunTime):
        def __init__(self, *given: object) -> None:
            go_on.wait(600)
            super().__init__(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("dptune.present.tui.timeline.RunTime", Slow)
    async with ReportApp(report, run).run_test(size=LARGE) as pilot:
        await see(pilot, "late ms by step", "3")
        await see(pilot, "rank 0, around step", "enter")
        await pilot.press("down")
        assert pilot.app.query_one(Timeline).view.lane == 1
        await see(pilot, "then: Back (esc: cancel)", "escape")
        go_on.set()
        await see(pilot, "2 ranks, around step")


async def test_a_model_that_fails_does_not_end_the_interface_and_a_range_names_no_step_in_it(
    large: Pilot[None], recorded: tuple[Run, Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, report = recorded
    low_ns, high_ns = round(0.4 * report.measured.step.time_ns), round(0.9 * report.measured.step.time_ns)
    changes = {"loader.batch_size": 64}
    ranged = Prediction.only("why no step is named", changes=changes, low_ns=low_ns, high_ns=high_ns)
    monkeypatch.setattr("dptune.present.tui.whatif.RunModel.predict", lambda *_: 1 / 0)
    await see(large, "Up and down: select a setting", "7", "0")
    await see(large, "the step model failed: ZeroDivisionError: division by zero", "right")
    monkeypatch.setattr("dptune.present.tui.whatif.RunModel.predict", lambda *_: ranged)
    await see(large, "Up and down: select a setting", "0")
    seen = flat(await see(large, "why no step is named", "right"))
    assert f"Then {low_ns / 1e6:.1f} to {high_ns / 1e6:.1f} ms █" in seen
    assert "Per step 10.0 to 60.0 % less" in seen  # the samples of this step are not known
    assert "us/sample" not in seen.partition("Then")[2]
    assert "Step time Samples per step are unknown, but change with these settings" in seen
    assert "Results may change (loader.batch_size)" in seen
    assert f"{(low_ns + high_ns) / 2e6:.1f} ms" not in seen
    assert "Interval" not in seen


async def test_where_python_functions_are(small: Pilot[None], recorded: tuple[Run, Report], real_traces: Path) -> None:
    """In the detailed trace of a recording; nothing is said where they are drawn; nowhere without stacks."""
    detailed = recorded[0].ranks[0].detailed_source
    assert detailed is not None
    assert "Python functions" not in await see(small, "2 ranks, around step", "6")
    await see(small, "Python functions: in the detailed trace; y copies its command", "enter")
    await small.press("y")
    assert small.app.clipboard == f"dptune report {shlex.quote(detailed)}"
    with_functions = RECORDED / "uncovered-cost" / "rank-00000.detail.trace.json.gz"  # fewer than there
    found, shown = run_and_report([str(with_functions)], cached=False)
    view = opened(found, shown)
    assert any(event.kind == "function" for row in view.rows for event in row.level)
    assert without_functions(view) == ("", "")
    found, shown = reading.run_and_report_of(real_traces / "torchrec_resnet18_2xv100")
    none = "Python functions: none; `dptune profile` or with_stack=True records them"
    assert without_functions(opened(found, shown)) == (none, "")


def opened(run: Run, report: Report) -> TimelineView:
    """What is shown of the first rank, in rows of 60 cells."""
    view = TimelineView(run, report, lambda: (60, 20))
    view.go_to(view.numbers[0])
    return view
