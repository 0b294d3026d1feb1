"""The full-screen report, walked with the keyboard; every test looks for words on the screen."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
from textual.binding import Binding
from textual.command import CommandList
from textual.dom import DOMNode
from textual.pilot import Pilot
from textual.widgets import Input
from textual.widgets._footer import FooterKey

from dptune.advice import Report
from dptune.present.tui.advice import Cards
from dptune.present.tui.app import ReportApp, _subject
from dptune.present.tui.finder import Finder
from dptune.present.tui.help import keys as lines_of_keys
from dptune.present.tui.idle import Gaps
from dptune.present.tui.overview import Overview
from dptune.present.tui.page import PageScreen
from dptune.present.tui.rank_map import RankMap
from dptune.present.tui.rank_table import RankTable
from dptune.present.tui.timeline import Timeline
from dptune.present.tui.whatif import WhatIfPane

from . import shared_app
from .conftest import make_report

SMALL, LARGE = (80, 24), (140, 40)
VERDICT = "COMMUNICATION THAT NOTHING HIDES TAKES 21.0 %"  # the first screen, at any width


def screen(pilot: Pilot[None]) -> str:
    """The text of the screen as a user sees it."""
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips)


def flat(seen: str) -> str:
    """Without frames and folding."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", seen).split())


async def see(pilot: Pilot[None], words: str, *keys: str) -> str:
    """Press the keys and wait until the words are on the screen; fail after a minute, for a machine may be busy."""
    await pilot.press(*keys)
    for _ in range(1200):
        await pilot.pause(0.05)
        if words in flat(screen(pilot)):
            return screen(pilot)
    raise AssertionError(f"'{words}' is not on the screen:\n{screen(pilot)}")


async def look_for(pilot: Pilot[None], words: str) -> None:
    """Find words as if they were typed; to type them takes a picture of the screen for each letter."""
    await pilot.press("slash")
    pilot.app.query_one(Finder).query_one(Input).value = words
    await pilot.press("enter")


async def settled(pilot: Pilot[None], words: str, *keys: str) -> str:
    """Like `see`, and wait until nothing computes and two screens in a row are equal: scroll bars follow the layout."""
    seen = await see(pilot, words, *keys)
    for _ in range(600):
        await pilot.pause(0.1)
        before, seen = seen, screen(pilot)
        if seen == before and not any(worker.is_running for worker in pilot.app.workers):
            return seen
    raise AssertionError(f"the screen keeps changing:\n{seen}")


async def chosen(pilot: Pilot[None], title: str, *keys: str) -> None:
    """Press the keys and wait until the palette has found a command of this title, and would run it."""
    await pilot.press(*keys)
    commands = pilot.app.screen.query_one(CommandList)
    for _ in range(1200):
        await pilot.pause(0.05)
        if commands.highlighted is not None:
            prompt = commands.get_option_at_index(commands.highlighted).prompt
            if str(prompt).startswith(title):
                return
    raise AssertionError(f"'{title}' is not found:\n{screen(pilot)}")


async def page_to(pilot: Pilot[None], words: str) -> None:
    """Press Page Down until the words are on the screen; going back a little in between, so that none are cut."""
    for keys in ([], *(["pagedown"], ["up"] * 3) * 12):
        await pilot.press(*keys)
        await pilot.wait_for_scheduled_animations()
        await pilot.pause(0.05)
        if words in flat(screen(pilot)):
            return
    raise AssertionError(f"'{words}' is on no page; the last:\n{screen(pilot)}")


@pytest.fixture(scope="module")
async def app() -> AsyncIterator[Pilot[None]]:
    async with shared_app.started(make_report(), None, LARGE) as pilot:
        yield pilot


@pytest.fixture
async def large(app: Pilot[None]) -> Pilot[None]:
    return await shared_app.at_its_start(app, LARGE)


@pytest.fixture
async def small(app: Pilot[None]) -> Pilot[None]:
    return await shared_app.at_its_start(app, SMALL)


@pytest.mark.parametrize("size", [SMALL, pytest.param(LARGE, marks=pytest.mark.thorough)])
async def test_the_first_screen_has_verdict_account_and_trust(app: Pilot[None], size: tuple[int, int]) -> None:
    pilot = await shared_app.at_its_start(app, size)
    seen = await see(pilot, "Communication that nothing hides takes 21.0 % of every step.")
    assert "dptune report: train.py" in seen
    assert VERDICT in seen
    assert ("140.2 ms/step   3,652 samples/s" in seen) == (size == LARGE)
    assert "140.2 ms/step" in seen.splitlines()[0]  # where it does not fit beside the verdict it is in the title only
    assert "3,652 samples/s" in seen
    assert "████▚▚▚▚" in seen
    for row in (
        "DP102 no-sync train.py:31 up to 15 % high unchanged",
        "DP401 fp32-matmul 2.9-15 % medium may change",
    ):
        assert row in flat(seen)
    assert "Limits 5 of 7 rules ran; 2 could not: no link table" in flat(seen)
    assert "rank 1's file broke off" in flat(seen)  # apart: the scroll bar may be between the two
    assert "Copy code" not in await see(pilot, "/ Find ? Help q Quit")
    await page_to(pilot, "█ compute 84.1 ms 60.0 % device busy computing")
    assert "  ██████" in screen(pilot)
    await page_to(pilot, "Reliable partly; see the limitations below")
    await see(pilot, "⏎ Card e Evidence w Why y Copy code / Find ? Help q Quit", "2")


@pytest.mark.thorough  # through what other tests show of each tab
@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_a_walk_with_the_keyboard_alone(report: Report, size: tuple[int, int]) -> None:
    app = ReportApp(report)
    async with app.run_test(size=size) as pilot:
        await see(pilot, VERDICT)
        await page_to(pilot, "rank 1's file broke off")
        await see(pilot, "What was read", "end")

        await see(pilot, "set ddp.no_sync to True (now False) at train.py:31", "2")
        await see(pilot, "medium impact, high confidence: DP102")
        await see(pilot, 'torch.set_float32_matmul_precision("high")', "down")
        await pilot.press("tab")
        await page_to(pilot, "Results may change. Compare the loss of the first 1,000 steps.")
        await page_to(pilot, "dptune rules explain DP401")

        await see(pilot, "rank-00000.trace.json.gz", "3")
        await see(pilot, "rank-00001.trace.json.gz", "down")
        await see(pilot, "the rank ended before its timed steps")
        await pilot.press("tab")
        await page_to(pilot, "? not measured")

        await see(pilot, VERDICT, "1", "home")
        await pilot.press("q")
    assert app.return_code == 0


async def test_the_last_entry_says_what_could_not_run(large: Pilot[None]) -> None:
    await see(large, "DP201, DP202: no link table", "2", "end")
    await see(large, "2 rules could not run, 2 rules found nothing")
    await see(large, "⏎ Card / Find ? Help q Quit")  # it has no evidence, rule or code


async def test_names_of_rules_are_cut_so_that_no_column_is(report: Report) -> None:
    long = report.advice[0].model_copy(update={"slug": "a-rule-whose-name-takes-more-than-half-of-a-line"})
    async with ReportApp(report.model_copy(update={"advice": [long]})).run_test(size=SMALL) as pilot:
        seen = await see(pilot, "… train.py:31", "2")
        assert re.search(r"unchanged +│\n", seen)
        await pilot.resize_terminal(*LARGE)
        await see(pilot, "DP102 a-rule-whose-name-takes-more-than-hal… train.py:31")


async def test_a_change_is_offered_where_it_can_be_applied(large: Pilot[None], report: Report) -> None:
    assert "Apply" in await see(large, "DP102 no-sync")
    await see(large, "medium impact, high confidence: DP102", "enter")  # leads to the recommendations
    async with ReportApp(report, patches=False).run_test(size=LARGE) as pilot:
        assert "Apply" not in await see(pilot, "DP102 no-sync")
        await see(pilot, "medium impact, high confidence: DP102", "enter")


async def test_help_begins_with_the_keys_of_the_open_tab(large: Pilot[None]) -> None:
    seen = flat(await see(large, "Keys (Escape closes)", "3", "question_mark"))
    assert seen.index("sort by the next column") < seen.index("Everywhere") < seen.index("open the recommendations")


async def test_code_can_be_copied(large: Pilot[None]) -> None:
    await see(large, "Nothing to copy here", "y")
    assert large.app.clipboard == ""
    await see(large, "torch.set_float32_matmul_precision", "2", "down")
    await see(large, "Copied, if this terminal allows clipboard access.", "y")
    assert large.app.clipboard == 'torch.set_float32_matmul_precision("high")'


async def test_help_is_made_from_the_bindings(small: Pilot[None]) -> None:
    seen = await see(small, "Keys (Escape closes)", "question_mark")
    assert "q, ctrl+c Quit: leave" in flat(seen)
    rows = [row.split("│")[1] for row in seen.splitlines() if row.count("│") == 2]
    for binding in ReportApp.BINDINGS:
        assert f"{binding.description}: {binding.tooltip[0].lower()}{binding.tooltip[1:]}" in flat("\n".join(rows))
    await see(small, VERDICT, "escape")
    assert "Keys (Escape closes)" not in screen(small)


@pytest.mark.parametrize(
    "owner", [ReportApp, Overview, PageScreen, Cards, RankMap, RankTable, Gaps, Timeline, WhatIfPane, Finder]
)
def test_every_binding_has_an_id_and_a_tooltip(owner: type[DOMNode]) -> None:
    assert owner.BINDINGS
    for binding in owner.BINDINGS:
        assert isinstance(binding, Binding)
        assert binding.id
        assert binding.tooltip


async def test_names_from_a_trace_are_neither_markup_nor_escapes(report: Report) -> None:
    evil, shown = "[bold red]\x1b[31m[/] <b> \u202ex", r"[bold red]\x1b[31m[/] <b> \u202ex"
    ranks = [rank.model_copy(update={"source": evil, "host": evil}) for rank in report.measured.ranks]
    trap = report.model_copy(
        update={
            "measured": report.measured.model_copy(update={"ranks": ranks}),
            "advice": [one.model_copy(update={"title": evil, "rule": evil}) for one in report.advice],
            "run": report.run.model_copy(update={"command": evil}),
        }
    )
    async with ReportApp(trap).run_test(size=(200, 40)) as pilot:
        for key, words in (("1", VERDICT), ("2", "Recommendations as ranked"), ("3", f"File {shown}")):
            seen = await see(pilot, words, key)
            assert seen.count(shown) >= {"1": 1, "2": 5, "3": 3}[key]
            assert "\x1b" not in seen
            assert "\u202e" not in seen


@pytest.mark.parametrize(
    "size", [SMALL, *(pytest.param(size, marks=pytest.mark.thorough) for size in (LARGE, (50, 20)))]
)
async def test_a_run_of_which_nothing_is_known_is_shown_too(foreign: Report, size: tuple[int, int]) -> None:
    async with ReportApp(foreign).run_test(size=size) as pilot:
        await see(pilot, VERDICT)
        await page_to(pilot, "Reliable no; 'no findings' does not mean that the run is healthy")
        await see(pilot, "Not enough reliable data for a verdict", "2")
        assert "2 rules could not run" in screen(pilot)
        await see(pilot, "cuda:0", "3")
        await page_to(pilot, "File t.json")
        assert "? not measured" not in screen(pilot)  # no column shows one


@pytest.mark.parametrize(
    ("sources", "title"),
    [(["a/very/long/path/t.json"], "t.json"), (["runs/x/0.json", "runs/x/1.json"], "x (2 files)")],
)
def test_the_title_names_what_was_read(foreign: Report, sources: list[str], title: str) -> None:
    run = foreign.run.model_copy(update={"sources": sources})
    assert _subject(foreign.model_copy(update={"run": run})) == title


async def test_it_works_without_colour(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars are seen, too: of red, textual would make a grey that is nearly that of the background."""
    monkeypatch.setenv("NO_COLOR", "1")
    async with ReportApp(report).run_test(size=LARGE) as pilot:
        behind = []
        for theme in ("textual-dark", "textual-light"):
            pilot.app.theme = theme
            await see(pilot, VERDICT)
            strips = pilot.app.screen._compositor.render_strips()
            found = [segment for strip in strips for segment in strip if set(segment.text) & {"█", "▓", "▒"}]
            assert len(found) > 3
            for segment in found:
                assert segment.style is not None
                assert segment.style.color is not None
                assert segment.style.bgcolor is not None
                drawn, back = (color.get_truecolor() for color in (segment.style.color, segment.style.bgcolor))
                assert drawn.red == drawn.green == drawn.blue
                assert abs(drawn.red - back.red) > 90
                behind.append(back.red)
        assert min(behind) < 60 < 200 < max(behind), "both themes"
        await pilot.resize_terminal(*SMALL)
        await see(pilot, "█ compute 60 %")
        await see(pilot, "DP102 no-sync", "2")
        await see(pilot, "cuda:1", "3")
        await see(pilot, "all keys", "question_mark")


async def test_resizing_folds_the_text_again(large: Pilot[None]) -> None:
    words = "Communication that nothing hides takes 21.0 % of every step."
    assert words in await see(large, words)
    await large.resize_terminal(60, 24)
    seen = await see(large, words)
    assert words not in seen
    assert all(len(row) <= 60 for row in seen.splitlines())


async def test_code_that_is_folded_keeps_its_indentation(app: Pilot[None]) -> None:
    pilot = await shared_app.at_its_start(app, (80, 48))
    await see(pilot, "medium impact, high confidence: DP102", "2")
    await pilot.press("tab")
    await page_to(pilot, "contextlib.nullcontext():")
    rows = [row.strip("│ ") and row for row in screen(pilot).splitlines()]
    first = next(row for row in rows if "with model.no_sync()" in row)
    rest = next(row for row in rows if "contextlib.nullcontext():" in row)
    assert rest.index("contextlib") > first.index("with model") or rest == first


async def test_a_remark_does_not_stay_over_the_page(large: Pilot[None], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is gone after two seconds, in which a busy machine may not draw it."""
    remarks: list[tuple[str, object]] = []

    def keep(app: ReportApp, message: str, **how: object) -> None:
        remarks.append((message, how["timeout"]))

    monkeypatch.setattr(ReportApp, "notify", keep)
    await large.press("y")
    await large.pause()
    ((remark, timeout),) = remarks
    assert remark.startswith("Nothing to copy here")
    assert timeout == 2


async def test_words_are_found_in_a_text_one_place_after_the_other(small: Pilot[None]) -> None:
    await see(small, "Type text, then Enter", "slash")
    seen = await see(small, "line 1 of", *"exposed", "enter")
    many = int(re.findall(r"line 1 of (\d+)", seen)[0])
    assert many > 1
    for place in range(2, many + 1):
        seen = await see(small, f"line {place} of {many}", "enter")
        assert "exposed" in seen.lower().replace("exposed ", "", 1)
    await see(small, f"line 1 of {many}", "enter")
    await see(small, "not on this page", *"zzz", "enter")
    await small.press("escape")
    assert "not on this page" not in screen(small)
    await see(small, "medium impact, high confidence", "2")  # the keys are the report's again


async def test_advice_is_filtered_and_sorted(large: Pilot[None]) -> None:
    await see(large, "Recommendations as ranked", "2")
    await look_for(large, "set_float32_matmul")
    seen = await see(large, "1 of 3")
    assert "DP401" in seen
    assert "DP102" not in seen
    assert "2 recommendations without this text" in flat(seen)
    await see(large, "DP102", "escape")
    await see(large, "Recommendations by saving", "s")
    seen = await see(large, "Recommendations by code", "s")
    places = [seen.index(code) for code in ("DP102", "DP401", "DP506")]
    assert places == sorted(places)
    await look_for(large, "set_float32_matmul")
    await see(large, "1 of 3")
    large.app.action_show("ranks")
    await large.pause()
    await large.press("slash", "escape")  # closed on another tab than the one that was filtered: it is so no longer
    seen = await see(large, "DP102", "2")
    assert "without this text" not in flat(seen)


async def test_ranks_are_filtered_and_sorted(large: Pilot[None]) -> None:
    await see(large, "cuda:0", "3")
    await see(large, "the rank ended before its timed steps", "down")
    assert "? not measured" in screen(large)
    await look_for(large, "cuda:1")
    seen = await see(large, "1 of 2")
    assert "rank-00001.trace.json.gz" in seen
    assert "cuda:0" not in seen
    await large.press("escape")
    await see(large, "cuda:0")
    await see(large, "Sorted by rank", "s")
    seen = screen(large)
    assert seen.index("cuda:1") < seen.index("cuda:0")  # the largest first


async def test_long_names_of_hosts_keep_both_ends_and_one_host_takes_no_column(report: Report) -> None:
    """Figures stay on the screen; the words below have the whole name."""
    names = [f"training-cluster-of-the-vision-team-node-{number}" for number in range(2)]
    for hosts in (names, names[:1] * 2):
        ranks = [
            rank.model_copy(update={"host": host}) for rank, host in zip(report.measured.ranks, hosts, strict=True)
        ]
        told = report.model_copy(update={"measured": report.measured.model_copy(update={"ranks": ranks})})
        async with ReportApp(told).run_test(size=SMALL) as pilot:
            seen = await see(pilot, "cuda:0", "3")
            assert [f"trainin..-node-{number}" in seen for number in range(2)] == [len({*hosts}) == 2] * 2
            assert len({*hosts}) == 2 or " idle " in seen
            await page_to(pilot, f"Host {hosts[0]}")


async def test_the_page_of_a_rule_says_why_its_thresholds_are_what_they_are(large: Pilot[None]) -> None:
    await see(large, "medium impact, high confidence: DP102", "2")
    await see(large, "What it measures", "w")
    await large.press("end")
    await see(large, "Thresholds")
    await see(large, "Recommendations as ranked", "escape")


async def test_what_a_recommendation_lacks_is_said(report: Report) -> None:
    """Evidence that has a place, and a rule that is installed here."""
    bare = report.model_copy(update={"advice": [report.advice[0].model_copy(update={"rule": "XX123", "evidence": []})]})
    async with ReportApp(bare).run_test(size=LARGE) as pilot:
        await see(pilot, "medium impact, high confidence: XX123", "2")
        await see(pilot, "⏎ Card w Why y Copy code / Find")  # the key of evidence is not offered
        await pilot.press("w")
        await see(pilot, VERDICT, "1")
        await pilot.press("e")
        told = [notification.message for notification in pilot.app._notifications]
        assert told == [
            "unknown rule 'XX123'.",
            "Based on figures over all steps, not on one place. Key 6 shows a step.",
        ]


async def test_the_palette_runs_commands_by_name(large: Pilot[None]) -> None:
    await see(large, "Search for commands", "ctrl+p")
    await chosen(large, "Ranks", *"ranks")
    await see(large, "Selected rank", "enter")
    await see(large, "Search for commands", "ctrl+p")
    await see(large, "Theme", *"theme")


async def test_the_palette_has_what_the_keys_of_the_tab_do(large: Pilot[None]) -> None:
    await see(large, "medium impact, high confidence: DP102", "2")
    offered = [one.title for one in large.app.get_system_commands(large.app.screen)]
    assert {"Sort", "Why", "Find", "Theme"} <= {*offered}
    assert offered.count("Copy code") == 1  # a key of the tab that does what one does everywhere
    assert "Next step" not in offered  # which is of the timeline
    await see(large, "Search for commands", "ctrl+p")
    await chosen(large, "Why", *"why")
    await see(large, "What it measures", "enter")


@pytest.mark.parametrize("tabs", ["12", pytest.param("345", marks=pytest.mark.thorough)])
async def test_words_that_look_like_markup_are_only_words(large: Pilot[None], tabs: str) -> None:
    for tab in tabs:
        await see(large, "[/bold", tab, "slash", *"[/bold", "enter")
        await large.press("escape")


async def test_a_run_of_few_ranks_has_no_map(small: Pilot[None]) -> None:
    assert "m Map" not in flat(await see(small, "s Sort", "3"))
    await small.press("m", "g", "n")
    assert "Ranks by" not in screen(small)


def test_help_names_each_key_once() -> None:
    """`+ -` and `n p` are two keys in the footer, of which each second has a binding of its own."""
    lines = ["".join(span.text for span in line) for line in lines_of_keys({"Timeline": Timeline.BINDINGS}, 80)]
    named = [line.split("  ")[0] for line in lines[1 : lines.index("")]]
    assert {"+", "-", "n", "p"} <= set(named)
    assert len(named) == len(set(named))


async def test_keys_are_made_anew_only_where_they_change(large: Pilot[None]) -> None:
    await see(large, "⏎ Card e Evidence w Why y Copy code / Find ? Help q Quit", "2")
    of_advice = list(large.app.query(FooterKey))
    assert len(of_advice) == 7
    large.app.screen.refresh_bindings()
    await large.pause()
    assert list(large.app.query(FooterKey)) == of_advice
    await see(large, "/ Find ? Help q Quit", "1")
    assert not [key for key in of_advice if key.is_attached]
    assert not any(key.has_class("-compact") for key in large.app.query(FooterKey))


async def test_the_width_of_a_key_is_known_before_its_style(
    large: Pilot[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[bool] = []
    monkeypatch.setattr(FooterKey, "_watch_compact", lambda _, compact: set_to.append(compact))
    await see(large, "⏎ Card e Evidence w Why y Copy code / Find ? Help q Quit", "2")
    assert set_to
    assert not any(set_to)
