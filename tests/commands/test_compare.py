"""`dptune compare`, on made traces, a recorded run and public traces."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from dptune.cli import main
from dptune.compare.result import Comparison
from dptune.present.sections.comparison import page

from .. import reading  # noqa: TID252 - tests are no installed package

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests" / "rules" / "recorded" / "runs" / "same-order"  # a small one
pytestmark = pytest.mark.usefixtures("read_once")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def sample_run(folder: Path, slower: float = 1.0, **changed: Any) -> None:
    """Make the folder: a recorded run with other step times and facts."""
    shutil.copytree(SAMPLE, folder, ignore=shutil.ignore_patterns(".dptune-cache"))
    for path in folder.glob("*.facts.json"):
        facts = json.loads(path.read_text(encoding="utf-8"))
        for window in facts["windows"]:
            window["durations_ns"] = [int(slower * duration) for duration in window["durations_ns"]]
        path.write_text(json.dumps({**facts, **changed}), encoding="utf-8")
    for path in folder.glob("*.trace.json.gz") if "world_size" in changed else ():
        text = (
            gzip.decompress(path.read_bytes())
            .decode()
            .replace('"world_size": 2', f'"world_size": {changed["world_size"]}')
        )
        path.write_bytes(gzip.compress(text.encode()))


@pytest.fixture
def recorded(tmp_path: Path) -> Any:
    """recorded(name, slower=1.0, **changed): such a run here, of which the name is returned."""

    def make(name: str, *how: Any, **changed: Any) -> str:
        sample_run(tmp_path / name, *how, **changed)
        return name

    return make


@pytest.fixture(scope="module")
def of_a(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of the JSON report of such a run named "a", made once."""
    folder = tmp_path_factory.mktemp("reported")
    sample_run(folder / "a")
    with contextlib.chdir(folder):
        assert main(["report", "a", "--format", "json", "-o", "a.json"]) == 0
    return (folder / "a.json").read_text(encoding="utf-8")


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def compare(capsys: pytest.CaptureFixture[str], *words: str) -> Comparison:
    assert main(["compare", *words, "--format", "json"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    return Comparison.model_validate_json(told.out)


def test_a_run_against_itself_is_refused(recorded: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = recorded("run")
    assert main(["report", run, "--format", "json", "-o", "report.json"]) == 0
    capsys.readouterr()
    for other in (f"./{run}/", "report.json"):
        assert main(["compare", run, other]) == 2
        told = capsys.readouterr()
        same = f"dptune: error: {run} (A) and {other} (B) are the same recording\n"
        assert (told.out, told.err) == ("", f"{same}hint: name each run on one side only\n")


@pytest.mark.parametrize("odd", ["calls", "trust", "account", "huge"])
def test_a_report_of_odd_figures_is_compared_all_the_same(
    odd: str, recorded: Any, of_a: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What another hand may have written, and the format allows."""
    b = recorded("b", 1.1)
    told = json.loads(of_a)
    if odd == "calls":
        told["measured"]["collectives"][0]["calls_per_step"] = 0
    elif odd == "trust":
        told["trust"] = {"level": "partial", "findings": []}
    elif odd == "account":
        own = told["measured"]["account"]
        told["measured"]["account"] = {name: 0 if isinstance(one, int) else one for name, one in own.items()}
    else:
        told["measured"]["step"]["time_ns"] = 10**400
    Path("a.json").write_text(json.dumps(told), encoding="utf-8")
    capsys.readouterr()
    assert main(["check", b, "--baseline", "a.json", "--fail-on", "never"]) in (0, 1, 2)
    said_of_it = capsys.readouterr()
    assert "internal error" not in said_of_it.err
    assert said_of_it.out or "dptune: error: " in said_of_it.err


def test_runs_of_the_same_settings_are_said_to_have_them(recorded: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", recorded("a"), recorded("b", 1.1)]) == 0
    page = said(capsys)
    assert page.startswith("Verdict No verdict yet: B is ")
    assert "; no recorded fact differs." in page
    assert "None of the recorded settings." in page


def test_of_runs_of_which_one_has_no_loader_no_wait_is_made_up(
    recorded: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The traces and facts of B lose all that tells of a loader."""
    a, b = recorded("a"), recorded("b", 0.9)
    for path in Path(b).glob("*.trace.json.gz"):
        text = gzip.decompress(path.read_bytes())
        assert b"enumerate(DataLoader)" in text
        path.write_bytes(gzip.compress(text.replace(b"enumerate(DataLoader)", b"own batches"), 1))
    for path in Path(b).glob("*.facts.json"):
        facts = json.loads(path.read_text(encoding="utf-8"))
        for window in facts["windows"]:
            window["loader_batches"] = [0] * len(window["loader_batches"])
        path.write_text(json.dumps(facts), encoding="utf-8")
    found = compare(capsys, a, b).compared
    assert sum(one.difference_ns for one in found.categories) == found.step_ns.difference
    assert {"input_idle_ns", "host_idle_ns"}.isdisjoint(one.category for one in found.categories)
    assert found.remarks == ["waiting for input and the host are shown together: no DataLoader was seen in b (B)"]
    assert main(["compare", a, b]) == 0
    assert "waiting for input -" not in said(capsys).partition(" Next ")[0]


@pytest.mark.thorough
def test_four_runs_a_side_get_a_verdict_and_three_do_not(recorded: Any, capsys: pytest.CaptureFixture[str]) -> None:
    a = [recorded(f"a{n}", 1 + n / 100) for n in range(4)]
    b = [recorded(f"b{n}", 1.2 + n / 100) for n in range(4)]
    found = compare(capsys, *a, "--", *b).compared
    assert found.verdict.outcome == "worse"
    assert found.ratio == pytest.approx(1.215 / 1.015, rel=1e-6)
    assert (found.verdict.low_ratio, found.verdict.high_ratio) == pytest.approx((1.2 / 1.03, 1.23 / 1.0), rel=1e-6)
    assert [run.name for run in found.runs if run.side == "B"] == b
    assert main(["compare", *b, "--", *a]) == 0
    page = said(capsys)
    assert page.startswith("Verdict B is better: A and B differ significantly (p = ")
    assert "exact rank-sum test" in page
    three = compare(capsys, *a[:3], "--", *b[:3]).compared.verdict
    assert (three.outcome, three.runs_needed) == ("inconclusive", 4)


def test_options_are_known_behind_the_second_side(recorded: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = compare(capsys, recorded("a"), "--", recorded("b", 1.1))  # --format json stands last
    assert found.compared.ratio == pytest.approx(1.1)


def test_a_json_report_compares_as_its_run_does(recorded: Any, of_a: str, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = recorded("a"), recorded("b", 1.1)
    Path("a.json").write_text(of_a, encoding="utf-8")
    folders, report = compare(capsys, a, b).compared, compare(capsys, "a.json", b).compared
    assert report.categories == folders.categories
    assert report.time_ns == folders.time_ns
    assert [one.unknown for one in report.conditions] == [[]] * 5
    assert folders.facts == []
    assert report.missing["facts"].startswith("no facts of A:")


def test_a_report_of_other_fields_is_refused_in_one_sentence(recorded: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.json").write_text('{"schema_version": "0.9", "dptune": "9", "run": 3}', encoding="utf-8")
    assert main(["compare", "a.json", recorded("b")]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("dptune: error: a.json is not a report this version can read: run: ")
    assert told.out == ""


@pytest.mark.parametrize("wrong", ["NaN", "-Infinity", "1e308", str(10**30), "9" * 5000])
def test_a_report_of_numbers_that_no_run_has_is_refused(
    recorded: Any, of_a: str, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    changed, times = re.subn(r'("calls_per_step": )[\d.]+', rf"\g<1>{wrong}", of_a, count=1)
    assert times == 1
    Path("a.json").write_text(changed, encoding="utf-8")
    assert main(["compare", "a.json", recorded("b")]) == 2
    (error, hint) = capsys.readouterr().err.splitlines()
    assert error.startswith("dptune: error: a.json")
    assert "calls_per_step" in error or "number out of range" in error
    assert "write it again" in hint


def test_collectives_of_no_calls_are_compared_without_their_length(
    recorded: Any, of_a: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a.json").write_text(re.sub(r'("calls": )\d+', r"\g<1>0", of_a), encoding="utf-8")
    compare(capsys, "a.json", recorded("b", 1.1))


def test_a_report_of_a_newer_dptune_is_refused(recorded: Any, of_a: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, _, rest = of_a.partition('"0.3"')
    Path("a.json").write_text(f'{first}"12.0"{rest}', encoding="utf-8")
    assert main(["compare", "a.json", recorded("b")]) == 2
    assert "a.json has schema version '12.0', but this version reads 0.x: update dptune" in capsys.readouterr().err


@pytest.mark.parametrize("figure", ["untraced_median_ns", "time_ns"])
@pytest.mark.parametrize("wrong", [0, -5])
def test_a_report_with_steps_of_no_time_is_refused(
    recorded: Any, of_a: str, capsys: pytest.CaptureFixture[str], figure: str, wrong: int
) -> None:
    told = json.loads(of_a)
    told["measured"]["step"][figure] = wrong
    Path("a.json").write_text(json.dumps(told), encoding="utf-8")
    assert main(["compare", "a.json", recorded("b")]) == 2
    assert f"measured.step.{figure}: Input should be greater than 0" in capsys.readouterr().err


def test_what_is_not_comparable_is_refused_unless_asked(recorded: Any, capsys: pytest.CaptureFixture[str]) -> None:
    a = recorded("a")
    b = recorded("b", 1.5, torch="2.12.0", world_size=4)
    assert main(["compare", a, b]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        "dptune: error: the runs are not comparable: world size 2 in A, 4 in B; torch 2.13.0+cpu in A, 2.12.0 in B; "
        "samples per step 1536 in A, 3072 in B\n"
        "hint: --anyway shows the difference without a verdict\n"
    )
    assert main(["compare", a, b, "--anyway"]) == 0
    page = said(capsys)
    assert page.startswith("Verdict Not comparable: the runs differ in world size, torch, samples per step.")
    assert "torch 2.13.0+cpu in A, 2.12.0 in B" in page
    assert compare(capsys, a, b, "--anyway").compared.ratio == pytest.approx(0.75)  # per sample


def test_settings_that_differ_are_told_with_their_line(recorded: Any, capsys: pytest.CaptureFixture[str]) -> None:
    loaders = json.loads((SAMPLE / "rank-00000.facts.json").read_text(encoding="utf-8"))["loaders"]
    b = recorded("b", 1.1, loaders=[{**loaders[0], "num_workers": 4}])
    assert main(["compare", recorded("a"), b]) == 0
    page = said(capsys)
    assert "; loader.num_workers changed from 0 to 4." in page
    assert "Settings that differ loader.num_workers (train.py:106): 0 in A, 4 in B" in page


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["a"], "give two runs, or two sides separated by --; got 1", "dptune compare A B, or"),
        (["a", "b", "c"], "two sides separated by --; got 3", "dptune compare A B, or"),
        (["a", "--", "b", "--", "c"], "more than two sides: -- is given more than once", "two sides at a time"),
        (["--", "a"], "no run before the --", "name runs before and after it"),
        (["a", "--"], "no run after the --", "name runs before and after it"),
        (["a", "b", "a", "--", "c"], "a is named twice on one side", "name each run once per side"),
        (["a", "a"], "a is named on both sides", "name each run once"),
        (["a", "b", "--", "c", "b"], "b is named on both sides", "name each run once"),
        (["a", "b"], "a does not exist", "check the path"),
    ],
)
def test_a_mistake_is_one_sentence_and_a_hint(
    words: list[str], message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *words]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    first, second = told.err.splitlines()
    assert message in first
    assert hint in second


def test_traces_of_several_ranks_are_one_run(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = sorted(map(str, traces.iterdir()))
    assert main(["compare", *ranks, "--", str(traces)]) == 2
    assert "ranks of one run are not separate runs" in capsys.readouterr().err
    slower = traces.with_name("slower")
    slower.mkdir()
    for path in traces.iterdir():
        (slower / path.name).write_text(path.read_text().replace('"dur": 500', '"dur": 400'))
    found = compare(capsys, str(traces), f"{slower}/rank*").compared
    assert [rank.rank for rank in found.ranks] == [0, 1]
    (compute,) = [one for one in found.categories if one.category == "compute_ns"]
    assert (compute.a_ns, compute.b_ns) == (
        500_000,
        400_000,
    )  # of each 1000 us; the last step lacks 200 and is left out


def test_the_page_fits_a_narrow_terminal(
    recorded: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dptune.present import terminal

    a, b = recorded("a"), recorded("b", 1.3)
    for width in (40, 60, 80):
        monkeypatch.setattr(terminal, "width", lambda *_, width=width: width)
        assert main(["compare", a, b]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= width


def test_four_loader_workers_instead_of_none(real_traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kineto's own example: the same script with 0 and with 4 workers."""
    folder = real_traces / "kineto_resnet50_loader"
    a, b = (
        str(folder / name)
        for name in ("2d19c63_worker0.pt.trace.json.gz", "234cf25_worker0.1623212756351.pt.trace.json.gz")
    )
    comparison = compare(capsys, a, b, "--no-cache")
    assert comparison.headline.why == (
        "B is 79.9 ms per step faster (37 %, traced): waiting for input -51.6 ms, launching -26.5 ms."
    )
    assert comparison.compared.verdict.outcome == "inconclusive"
    shown = " ".join(span.text for line in page(comparison, 100) for span in line)
    assert "~4,175" in shown
    assert "~6,670" in shown
    assert "Verdict on the time per sample (inferred batch size)" in shown
    for end, path in (("a_ns", a), ("b_ns", b)):  # by another way: the report's shares of its own step time
        measured = reading.measured(Path(path))
        for one in comparison.compared.categories:
            scaled_ns = measured.share(one.category) * measured.step.time_ns
            assert getattr(one, end) == pytest.approx(scaled_ns, abs=1.01)
    assert comparison.compared.loader_wait_ns.a / 1e6 == pytest.approx(52.06, abs=0.01)  # 24.39 % of 213.4 ms
    assert comparison.compared.loader_wait_ns.b / 1e6 == pytest.approx(0.6985, abs=0.002)  # 4.19 in six steps


def test_an_optimizer_hook_before_and_after(real_traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two versions of one training script on rank 0 of 8, whose records say only that they are near each other.

    Steps alternate; the fifth of one side completes no period. The others are 59.998 and 60.441 ms long on average.
    """
    folder = real_traces / "nanogpt_adam_hook_h100"
    a, b = sorted(map(str, folder.glob("*.json.gz")))
    comparison = compare(capsys, a, b, "--no-cache")
    assert comparison.headline.why == (
        "B is 0.44 ms per step faster (0.7 %, traced): exposed communication and waiting -0.62 ms, compute +0.13 ms."
    )
    found = comparison.compared
    assert sum(one.difference_ns for one in found.categories) == found.step_ns.difference
    assert {one.kind for one in found.collectives} == {"reduce_scatter", "all_gather"}
    assert [remark.partition(" is partial: ")[2] for remark in found.remarks] == [
        "ranks 1-7 are missing: 1 of 8 ranks were given"
    ] * 2
