"""The documentation quotes benchmarks as they compute them from their raw results."""

import contextlib
import functools
import io
import json
import re
import runpy
import sys
from pathlib import Path
from unittest import mock

import pytest
from tests.benchmarks import memory

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("benchmark", "page"),
    [
        ("overhead", "tests/benchmarks/OVERHEAD"),
        ("effects", "tests/benchmarks/PROOFS"),
        ("error_rates", "tests/benchmarks/PROOFS"),
        ("tune_errors", "tests/benchmarks/PROOFS"),
        ("tuning", "tests/benchmarks/PROOFS"),
        ("interface", "tests/benchmarks/READING"),
        ("interface_beside", "tests/benchmarks/READING"),
        ("loading", "tests/benchmarks/READING"),
        ("cluster", "tests/benchmarks/READING"),
        ("predictions", "tests/benchmarks/PREDICTIONS"),
        ("predictions_short", "tests/benchmarks/PREDICTIONS"),
        ("real_replays", "tests/benchmarks/PREDICTIONS"),
        ("replay_times", "tests/benchmarks/PREDICTIONS"),
        ("simulated", "tests/benchmarks/PREDICTIONS"),
        ("real_advice", "tests/benchmarks/RULES_TRIED"),
        ("advice", "tests/benchmarks/RULES_TRIED"),
        ("stragglers", "tests/benchmarks/RULES_TRIED"),
        ("planted_fsdp", "tests/benchmarks/RULES_TRIED"),
        ("gate", "tests/benchmarks/PROOFS"),
        ("memory", "tests/benchmarks/MEMORY"),
    ],
)
def test_tables_are_quoted_from_the_results(benchmark: str, page: str) -> None:
    assert table_of(benchmark) in (ROOT / f"{page}.md").read_text(encoding="utf-8")


def test_draws_of_simulated_runs_are_quoted_from_the_results() -> None:
    page = (ROOT / "tests" / "benchmarks" / "PREDICTIONS.md").read_text(encoding="utf-8")
    draws, ranges = table_of("simulated", "--history").strip().split("\n\n")
    kept = sorted((ROOT / "tests" / "benchmarks" / "results").glob("simulated*.json"))
    for rows in (draws, ranges):
        assert rows in page
        assert len(rows.splitlines()) - 2 == len(kept)


def test_a_range_of_a_simulated_step_holds_with_both_ends(tmp_path: Path) -> None:
    """Of three ranges one holds, one is too short, one too long; a bound holds; a step is judged by its error."""
    told = [(None, 200, 500), (None, 200, 390), (None, 410, 600), (None, 390, None), (440, 200, 600)]
    pairs = [
        {
            **{"change": "ddp.no_sync", "before_ns": 1000, "after_ns": 400},
            "predicted": {"step_ns": step, "low_ns": low, "high_ns": high, "measured_ns": 1000, "why": ""},
        }
        for step, low, high in told
    ]
    (tmp_path / "pairs.json").write_text(json.dumps({"pairs": pairs}))
    row = table_of("simulated", str(tmp_path / "pairs.json")).splitlines()[1].split()
    assert row == ["ddp.no_sync", "5", "1", "10.0", "10.0", "1/1", "100.0", "1/1", "2/4", "0"]


def test_steps_of_fully_shard_are_quoted_from_the_results() -> None:
    page = (ROOT / "tests" / "benchmarks" / "PREDICTIONS.md").read_text(encoding="utf-8")
    second = ROOT / "tests" / "benchmarks" / "results" / "predictions_fsdp_second.json"
    assert table_of("predictions_fsdp") in page
    assert table_of("predictions_fsdp", str(second)) in page


def test_the_memory_benchmark_that_is_stopped_and_resumed_keeps_the_rows_it_did_not_reach() -> None:
    rows = json.loads(memory.RESULTS.read_text(encoding="utf-8"))["comparisons"]
    again = {**rows[2], "peak_bytes": 1}
    assert memory.with_row(rows, again) == [*rows[:2], again, *rows[3:]]
    assert memory.with_row([*rows[:2], *rows[3:]], again) == [*rows[:2], again, *rows[3:]]
    assert [(row["base"], row["settings"]) for row in rows] == [
        (base, settings) for base, settings, _ in memory.pairs()
    ]


@pytest.mark.long
def test_settings_of_fully_shard_are_listed_as_the_code_has_them() -> None:
    """And each is named in the test that the table gives for it."""
    pytest.importorskip("torch", reason="what sets them imports torch")
    table = table_of("settings_fsdp")
    assert table in (ROOT / "tests" / "benchmarks" / "FSDP.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\S+)` \|.*\| `(\w+/test_\w+\.py)`: ([^|]+) \|[^|]+\|[^|]+\|[^|]+\|$", table, re.M)
    assert len(rows) == len(table.splitlines()) - 2
    for setting, file, test in rows:
        source = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert f"def test_{test.replace(' ', '_')}(" in source
        assert setting in source


def test_tables_of_traces_are_quoted_from_the_results() -> None:
    page = (ROOT / "tests" / "benchmarks" / "TRACES.md").read_text(encoding="utf-8")
    tables = table_of("traces").split("\n\n")
    assert len(tables) == 5
    for table in tables:
        assert f"```text\n{table.rstrip()}\n```" in page


def test_the_accuracy_of_predictions_is_summed_up_from_the_results() -> None:
    page = (ROOT / "docs" / "predicting.md").read_text(encoding="utf-8")
    two_ranks = table_of("predictions").split("\n\nof 2 ranks, ")[1]
    error = r"error mean .* %, median (.* %), worst (.* %)"
    inside = error + r"; inside the interval (.* %), median width (.* %) of the step"
    nothing, step, saving = (
        re.search(rf"^{start}: {rest}$", two_ranks, re.M).groups()  # type: ignore[union-attr]
        for start, rest in (("no change at all", error), ("off", inside), ("effect", inside))
    )
    names = ("median error", "worst error", "inside the interval", "median width of the interval")
    rows = zip(names, step, saving, (*nothing, "", ""), strict=True)
    assert all(f"| {name} | {a} | {b} | {c}".rstrip() + " |" in page for name, a, b, c in rows)
    assert f"\n{re.match(r'[0-9]+', two_ranks)[0]} changes on two ranks" in page  # type: ignore[index]
    signs = re.search(r"more than 5 %: (.*) right", two_ranks)
    assert signs
    assert f"right for {signs[1]} effects above 5 %" in page


def test_the_reliability_of_verdicts_is_summed_up_from_the_results() -> None:
    page = (ROOT / "docs" / "proving.md").read_text(encoding="utf-8")
    rows = re.findall(r"^(same|\d+ % longer) +\d+ +(\d+) +(\d+) +(\d+) +(\d+) ", table_of("error_rates"), re.M)
    assert len(rows) == 6
    for kind, name in (("same", "no difference"), ("10 % longer", "B 10 % longer"), ("5 % longer", "B 5 % longer")):
        counts = zip(*(map(int, row[1:]) for row in rows if row[0] == kind), strict=True)
        assert f"| {name} | {' | '.join(str(sum(each)) for each in counts)} |" in page


def test_the_cost_of_a_recording_is_summed_up_from_the_results() -> None:
    page = (ROOT / "docs" / "recording.md").read_text(encoding="utf-8")
    steps, traces = table_of("overhead").split("\n\n")[1:]
    ratios = re.findall(r"^ +(\d)  (?:attached|traced): (\w+) +[0-9.]+  ([0-9.]+ \([^)]*\))", steps, re.M)
    sizes = re.findall(r"^ +(\d)  (\w+) +([0-9.]+ MB) +([0-9.]+ MB) +([0-9.]+ s) +\+(\d+) MB", traces, re.M)
    costs = {(ranks, window): f"{text} | {packed} | {saving} |" for ranks, window, text, packed, saving, _ in sizes}
    assert (len(ratios), len(costs)) == (6, 4)
    for ranks, window, ratio in ratios:
        assert f"\n| {ranks} | `{window}` | {ratio} | {costs.get((ranks, window), '| | |')}\n" in page
    peaks = dict.fromkeys(peak for *_, peak in sizes)
    assert f"Peak memory grew by {' and '.join(peaks)} MB" in " ".join(page.split())


def test_the_speed_of_reading_is_summed_up_from_the_results() -> None:
    page = (ROOT / "docs" / "reading-traces.md").read_text(encoding="utf-8")
    speed, memory, _, last = table_of("loading").split("\n\n")[1:]
    peaks = dict(re.findall(r"^ *(\d+)  offset +([0-9.]+ +[0-9.]+)", memory, re.M))
    rows = re.findall(r"^ *(\d+)  offset +([0-9.]+) +([0-9.]+) +([0-9.]+) ", speed, re.M)
    assert len(rows) == len(peaks) == 4
    for size, seconds, hta, by_json in rows:
        memories = " | ".join(peaks[size].split())
        assert f"\n| {size} MB | {seconds} s | {hta}x | {by_json}x | {memories} |\n" in page
    faster, all_ranks = (re.findall(r"[0-9][0-9.,]*", line) for line in last.splitlines())
    read = f"Two ranks of {faster[0]} MB are read {faster[1]} times as fast by two processes as by one; "
    text = f"{all_ranks[0]} ranks with {all_ranks[1]} GB of text take {all_ranks[2]} s and {all_ranks[3]} GB."
    assert read + text in " ".join(page.split())


def test_the_speed_of_the_full_screen_report_is_summed_up_from_the_results() -> None:
    page = (ROOT / "docs" / "reading-traces.md").read_text(encoding="utf-8")
    found = re.findall(r"^(\S+ [a-zA-Z]+)(?:, again)? +[0-9.]+ +([0-9.]+) +([0-9. ]+)$", table_of("interface"), re.M)
    assert len(found) == 4
    for (name, report, keys), (same, again, keys_again) in zip(found[::2], found[1::2], strict=True):
        assert name == same
        slowest = max(f"{keys} {keys_again}".split(), key=float)
        assert f"\n| {name} | {report} s | {again} s | {slowest} s |\n" in page


def test_runs_of_advice_before_are_quoted_beside_it() -> None:
    page = (ROOT / "tests" / "benchmarks" / "RULES_TRIED.md").read_text(encoding="utf-8")
    before, between = (
        str(ROOT / "tests" / "benchmarks" / "results" / f"advice_{of}.json") for of in ("before", "between")
    )
    assert table_of("advice", before) in page
    assert table_of("advice", between).split("\n\n")[2] in page  # the summary


@pytest.mark.long
def test_unseen_scripts_are_quoted_by_halves() -> None:
    page = (ROOT / "tests" / "benchmarks" / "unseen" / "RESULTS.md").read_text(encoding="utf-8")
    assert table_of("unseen", "--half", "sealed") in page
    assert table_of("unseen", "--half", "second") in page
    assert table_of("unseen", "--half", "third") in page
    assert table_of("unseen", "--half", "fourth") in page
    assert table_of("unseen", "--half", "fifth") in page
    assert table_of("unseen", "--half", "sixth") in page
    assert table_of("unseen", "--half", "seventh") in page
    assert table_of("unseen", "--half", "eighth") in page
    assert table_of("unseen", "--half", "ninth") in page
    assert table_of("unseen", "--earlier", "first", "--summary") in page
    assert table_of("unseen", "--earlier", "pairs", "--half", "all") in page


DRAWS = {
    "first draw, open": ("--earlier", "first"),
    "first draw, sealed": ("--half", "sealed"),
    "second draw": ("--half", "second"),
    "third draw": ("--half", "third"),
    "fourth draw": ("--half", "fourth"),
    "fifth draw": ("--half", "fifth"),
    "sixth draw": ("--half", "sixth"),
    "seventh draw": ("--half", "seventh"),
    "eighth draw": ("--half", "eighth"),
    "ninth draw": ("--half", "ninth"),
    "tenth draw": ("--half", "tenth"),
    "eleventh draw": ("--half", "eleventh"),
    "twelfth draw": ("--half", "twelfth"),
    "thirteenth draw": ("--half", "thirteenth"),
    "fourteenth draw": ("--half", "fourteenth"),
}


@pytest.mark.long
def test_unseen_scripts_are_summed_up_by_draw() -> None:
    page = " ".join((ROOT / "docs" / "rules-tried.md").read_text(encoding="utf-8").split())
    sealed, first, some, risks, first_risks = [0] * 5
    for draw, words in DRAWS.items():
        loads = counted(table_of("unseen", *words, "--summary"))
        quiet = loads[0]
        times, risk, healthy = quiet["time"], quiet["risk"], quiet["healthy"]
        both = {key: ", ".join(str(load[key]) for load in loads) for key in quiet}
        cells = (
            *(draw, times, both["time first"], both["time some"], both["time line"], risk, both["risk first"]),
            *(healthy, both["unalarmed"], both["false"], both["harmful"]),
        )
        assert f"| {' | '.join(map(str, cells))} |" in page
        if draw != "first draw, open":
            sealed, first, some = sealed + times, first + quiet["time first"], some + quiet["time some"]
            risks, first_risks = risks + risk, first_risks + quiet["risk first"]
    assert f"the first was right in {first} of {sealed}, one of the first three in {some} of {sealed}." in page
    assert f"{first_risks} of {risks} ranked first" in page
    pairs = table_of("unseen", "--earlier", "pairs", "--half", "all", "--summary")
    known, held = re.search(r"^quiet: of (\d+) right advice .* (\d+)$", pairs, re.M).groups()  # type: ignore[union-attr]
    assert f"{held} of {known} intervals hold" in page


def counted(summary: str) -> list[dict[str, int]]:
    """What is counted on the quiet machine, and on the busy one if it ran: the numbers of each line, in their order."""
    found = []
    for load in ("quiet", "busy"):
        lines = [line for line in summary.splitlines() if line.startswith(f"{load}: ")]
        if not lines:
            continue
        time, _, risk, healthy = ([int(number) for number in re.findall(r"\d+", line)] for line in lines)
        assert time[0] == time[1]  # all were judged
        assert risk[0] == risk[1]
        found.append(
            {
                **dict(zip(("time", "time first", "time some", "time line"), (time[0], *time[2:5]), strict=True)),
                **dict(zip(("risk", "risk first"), (risk[0], risk[2]), strict=True)),
                "healthy": healthy[0],
                "unalarmed": healthy[0] - healthy[1],
                "false": healthy[3],
                "harmful": healthy[4],
            }
        )
    return found


def test_how_often_the_gate_is_right_is_summed_up() -> None:
    page = " ".join((ROOT / "docs" / "ci.md").read_text(encoding="utf-8").split())
    counts: dict[str, list[int]] = {}
    for kind, judged, failed in re.findall(r"^(same|10 % longer) +\d+ +(\d+) +(\d+) ", table_of("gate"), re.M):
        known = counts.setdefault(kind, [0, 0])
        counts[kind] = [known[0] + int(judged), known[1] + int(failed)]
    (same, failed), (slower, found) = counts["same"], counts["10 % longer"]
    assert (
        f"`dptune check --script` failed {failed} of {same} comparisons of equal commits and {found} of {slower} in "
        "which the second commit is 10 % slower"
    ) in page


def test_other_benchmarks_of_rules_are_summed_up() -> None:
    page = (ROOT / "docs" / "rules-tried.md").read_text(encoding="utf-8")
    advice = table_of("advice")
    first, scripts, some = re.search(r"^a planted fault first: (\d+) of (\d+); .*: (\d+)$", advice, re.M).groups()  # type: ignore[union-attr]
    assert f"| planted faults, {scripts} scripts | a planted fault first | {first} of {scripts} |" in page
    assert f"| | all planted faults in the first three | {some} of {scripts} |" in page
    for basis, counts in (("replayed", "predictions inside their interval"), ("bound", "upper bounds that hold")):
        held, of = re.search(rf"^{basis}: (\d+) of (\d+) ", advice, re.M).groups()  # type: ignore[union-attr]
        assert f"| | {counts} | {held} of {of} |" in page
    healthy = advice.split("\n\n")[-1].splitlines()[1:]
    assert [line.split()[-2:] for line in healthy] == [["5", "nothing"]] * 12
    assert "| healthy scripts, 12 with 5 runs each | findings above low impact | none |" in page
    stalls = table_of("stragglers")
    planted, right = re.search(r"^of (\d+) planted stalls: .* cause and line right (\d+),", stalls, re.M).groups()  # type: ignore[union-attr]
    runs, named = re.search(r"^of (\d+) healthy runs: a rank named (\d+),", stalls, re.M).groups()  # type: ignore[union-attr]
    assert f"| planted stalls | rank, cause and line right | {right} of {planted} |" in page
    assert f"| healthy runs | a straggler named | {named} of {runs} |" in page
    first, sharded = re.search(r"^fault: (\d+) of (\d+) right$", table_of("planted_fsdp"), re.M).groups()  # type: ignore[union-attr]
    assert f"| `fully_shard`, {sharded} scripts | the planted fault first | {first} of {sharded} |" in page
    judged = table_of("real_advice").split("\n\n")[0].splitlines()[1:]
    assert f"Of the public traces {len(judged)} could be judged" in " ".join(page.split())


_read = functools.cache(Path.read_text)


def _read_text(path: Path, *how: str, **more: str) -> str:
    """Each script and each result is read once: tables of many draws look at the same ones."""
    return _read(path, *how, **more)


@functools.cache
def table_of(benchmark: str, *options: str) -> str:
    """What the script of a benchmark prints with --table, from results that are kept."""
    script = ROOT / "tests" / "benchmarks" / f"{benchmark}.py"
    printed = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [str(script), "--table", *options]),
        mock.patch.object(sys, "path", [str(script.parent), *sys.path]),
        mock.patch.object(Path, "read_text", _read_text),
        contextlib.redirect_stdout(printed),
    ):
        runpy.run_path(str(script), run_name="__main__")
    return printed.getvalue().rstrip()
