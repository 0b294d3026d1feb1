"""What the command says with a rule pack of somebody else, installed beside dptune."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dptune.advice import Report
from dptune.advise import rule_calls

from .. import forks, in_process  # noqa: TID252 - tests are no installed package

SAMPLE = str(Path(__file__).parents[1] / "rules" / "recorded" / "runs" / "unused-gradients-mended")
RULE = '''"""A rule.

## What it measures

Text with [bold]marks[/bold], [/] and \\x1b[31mescape codes\\x07.
"""
from dptune.rule import Rule, Threshold

RULE = Rule(
    code="{code}",
    name="{name}",
    family="made [red]up[/red]",
    kind="risk",
    summary="Says [bold]nothing\\x1b[2J",
    since="1.0",
    thresholds=(Threshold("share", 0.1, "so that [i]it[/i] is \\x1b[1mthere"),),
)


def check(run):
    print("asked {name}")
    {body}
    yield from ()
'''
SPEAKS = RULE.format(code="ACME001", name="speaks", body="")
FAILS = RULE.format(code="ACME002", name="fails", body="raise ValueError('no such luck')")
LOOPS = RULE.format(code="ACME003", name="loops", body="while True: print('still here')")
SLEEPS = RULE.format(code="ACME004", name="sleeps", body="import time; time.sleep(600)")

Dptune = Callable[..., subprocess.CompletedProcess[str]]
Install = Callable[..., dict[str, str]]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Make a distribution with these modules; the environment in which it is installed."""

    def with_modules(**modules: str) -> dict[str, str]:
        metadata, package = tmp_path / "acme-1.0.dist-info", tmp_path / "acme"
        for folder in (metadata, package):
            folder.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n", encoding="utf-8")
        (metadata / "entry_points.txt").write_text("[dptune.rules]\nacme = acme\n", encoding="utf-8")
        (package / "__init__.py").write_text("print('imported acme')\n", encoding="utf-8")
        for name, text in modules.items():
            (package / f"{name}.py").write_text(text, encoding="utf-8")
        return {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}

    return with_modules


@pytest.fixture
def installed(install: Install) -> dict[str, str]:
    """The environment with a pack of one rule that is quiet, one that fails, and a module that is none."""
    return install(speaks=SPEAKS, fails=FAILS, broken="raise OSError('no \\x1b licence')\n")


@pytest.fixture
def dptune(installed: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dptune]:
    """Run `dptune` with that pack, in this process."""
    monkeypatch.syspath_prepend(installed["PYTHONPATH"])
    yield functools.partial(in_process.dptune, cwd=tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme"]:
        del sys.modules[name]


BROKEN = (
    "dptune: warning: rule pack 'acme' (acme 1.0): acme.broken is left out: OSError: no \\x1b licence",
    "dptune: warning: ACME002 (acme 1.0) could not run: the rule failed: ValueError: no such luck",
)


def test_a_report_names_what_is_broken_on_stderr_and_its_json_is_whole(dptune: Dptune) -> None:
    done = dptune("report", SAMPLE, "--no-cache", "--format", "json")
    broken_but_whole(done)


@pytest.mark.thorough
def test_a_report_in_a_process_of_its_own_names_what_is_broken(installed: dict[str, str], tmp_path: Path) -> None:
    words = [sys.executable, "-m", "dptune", "report", SAMPLE, "--no-cache", "--format", "json"]
    broken_but_whole(subprocess.run(words, capture_output=True, text=True, env=installed, cwd=tmp_path, check=False))


def broken_but_whole(done: subprocess.CompletedProcess[str]) -> None:
    """The report is all that is on stdout, and what is broken is named."""
    report = Report.model_validate_json(done.stdout)
    assert done.stderr.splitlines() == ["imported acme", "asked speaks", "asked fails", *BROKEN]
    assert done.returncode == 0
    assert "ACME001" in report.quiet
    assert [one.reason for one in report.skipped if one.rule == "ACME002"] == [
        "the rule failed: ValueError: no such luck"
    ]


def test_a_check_names_what_is_broken_on_stderr_and_its_json_is_whole(dptune: Dptune) -> None:
    done = dptune("check", SAMPLE, "--no-cache", "--format", "json")
    assert json.loads(done.stdout)["outcome"] == "passed"
    assert done.stderr.splitlines()[-2:] == [*BROKEN]
    assert done.returncode == 0


def test_rules_are_listed_with_their_marks_as_text(dptune: Dptune) -> None:
    done = dptune("rules", "list")
    said = " ".join(done.stdout.split())
    assert "made [red]up[/red]" in said
    assert r"ACME001 speaks (from acme 1.0): Says [bold]nothing\x1b[2J" in said
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stderr.splitlines() == ["imported acme", BROKEN[0]]
    listed = json.loads(dptune("rules", "list", "--format", "json").stdout)
    assert [one["code"] for one in listed][:3] == ["ACME001", "ACME002", "DP101"]


def test_a_rule_is_explained_with_its_marks_as_text(dptune: Dptune) -> None:
    done = dptune("rules", "explain", "acme001")
    said = " ".join(done.stdout.split())
    assert r"Text with [bold]marks[/bold], [/] and \x1b[31mescape codes\x07." in said
    assert r"share = 0.1 so that [i]it[/i] is \x1b[1mthere" in said
    assert "\x1b" not in done.stdout
    assert done.returncode == 0


def forked(env: dict[str, str], folder: Path, stdout: Path, stderr: Path, limit_s: float = 30.0) -> forks.Forked:
    """A report on the sample in a process of its own that finds what is installed there."""

    def find_the_pack() -> None:
        sys.path.insert(0, env["PYTHONPATH"])
        rule_calls.LIMIT_S = limit_s

    words = ("report", SAMPLE, "--no-cache", "--format", "json")
    with open(os.devnull) as nothing, stdout.open("w") as out, stderr.open("w") as err:
        streams = (nothing.fileno(), out.fileno(), err.fileno())
        return in_process.forked(*words, streams=streams, cwd=folder, env=env, before=find_the_pack)


def test_rules_that_do_not_end_are_named_and_the_process_ends(install: Install, tmp_path: Path) -> None:
    """With less time for a rule than the 30 s it has."""
    out, err = tmp_path / "stdout", tmp_path / "stderr"
    process = forked(install(loops=LOOPS, sleeps=SLEEPS), tmp_path, out, err, limit_s=0.5)
    assert process.wait(900) == 0, err.read_text()
    report = Report.model_validate_json(out.read_text())
    why = "it did not end within 0.5 s"
    assert [(one.rule, one.reason) for one in report.skipped if one.rule.startswith("ACME")] == [
        ("ACME003", why),
        ("ACME004", why),
    ]
    assert err.read_text().splitlines()[-2:] == [
        f"dptune: warning: {code} (acme 1.0) could not run: {why}" for code in ("ACME003", "ACME004")
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="there Ctrl-C goes to a whole console")
@pytest.mark.parametrize(
    ("module", "begun"), [(LOOPS, "still here\n"), pytest.param(SLEEPS, "asked sleeps\n", marks=pytest.mark.thorough)]
)
def test_ctrl_c_ends_the_command_in_a_rule_that_does_not_end(
    install: Install, tmp_path: Path, module: str, begun: str
) -> None:
    out, log = tmp_path / "stdout", tmp_path / "stderr"
    process = forked(install(rule=module), tmp_path, out, log)
    try:
        while (not log.exists() or begun not in log.read_text()) and process.poll() is None:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        status = process.wait(900)
    finally:
        process.kill()
    assert (status, out.read_text()) == (130, "")
    assert "dptune: interrupted\n" in log.read_text()
