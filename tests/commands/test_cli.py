from __future__ import annotations

import contextlib
import importlib
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

import dptune
from dptune.cli import BETWEEN_COLLECTIONS, VERBS, main
from dptune.commands.version import PACKAGES
from dptune.errors import RunError, UsageError
from dptune.knobs import KNOBS
from dptune.whatif.scenarios import SCENARIOS


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A verb `fake SCRIPT ARGS...` whose `run` a test sets."""
    import argparse

    module = ModuleType("fake_verb", "Pretend.\n\nexamples:\n  dptune fake x.py")

    def arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--steps", type=int, default=1)
        parser.add_argument("script")
        parser.add_argument("rest", nargs=argparse.REMAINDER)

    module.arguments = arguments  # type: ignore[attr-defined]
    module.run = lambda args: 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_verb", module)
    monkeypatch.setitem(VERBS, "fake", ("fake_verb", "Pretend."))
    return module


def test_a_command_collects_garbage_seldom_and_a_caller_keeps_its_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    thresholds: list[tuple[int, ...]] = []
    monkeypatch.setattr("gc.set_threshold", lambda *given: thresholds.append(given))
    assert main(["--help"]) == 0
    assert thresholds == []
    monkeypatch.setattr(sys, "argv", ["dptune", "--help"])
    assert main() == 0
    assert thresholds == [BETWEEN_COLLECTIONS]


@pytest.mark.parametrize("name", sorted(VERBS))
def test_the_help_line_of_a_verb_is_its_modules_first_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, line = VERBS[name]
    assert (importlib.import_module(path).__doc__ or "").splitlines()[0] == line
    assert main(["--help"]) == 0
    assert f"  {name:<{max(map(len, VERBS))}}  {line}\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(VERBS))
def test_every_verb_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: dptune {name}")
    assert f"  dptune {name}" in said.partition("examples:")[2]


def test_help_is_wrapped_to_the_terminal_and_examples_are_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["profile", "--help"]) == 0
    said = capsys.readouterr().out
    assert "  dptune profile -m my_package.train --config small.yaml\n" in said
    assert "run `dptune profile\ntrain.py ARGS`; everything after the script belongs to the\n" in said
    text = said.partition("Instead of")[2].partition("examples:")[0]
    assert max(map(len, text.splitlines())) <= 60
    for columns in range(60, 81):  # at one of these widths a line would end before the sign
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(["tune", "--help"]) == 0
        assert not re.search(r"\n *%|\N{NO-BREAK SPACE}", capsys.readouterr().out)


def test_no_path_or_option_of_the_help_is_on_two_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hyphen ends no line: at one of these widths `dptune-runs` and `per-node` would be parted."""
    for columns in range(60, 81):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(["report", "--help"]) == 0
        said = capsys.readouterr().out
        assert "dptune-runs" in said
        assert not re.search(r"\w-\n", said)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert first == f"dptune {dptune.__version__}"
    assert second.startswith(f"Python {platform.python_version()} ({sys.executable}), ")
    assert f"numpy {metadata.version('numpy')}" in rest[0].split(", ")
    named = {word.split()[0] for word in rest[0].split(", ")}
    named |= set(rest[1].removeprefix("not installed: ").split(", ")) if len(rest) > 1 else set()
    assert named == set(PACKAGES)


def test_without_a_verb_the_help_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "commands:" in said.err


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["reprot"], "unknown command 'reprot'", "did you mean 'report'?"),
        (["zzzzzz"], "unknown command 'zzzzzz'", "see `dptune --help`"),
        (["--versoin"], "unknown option '--versoin' before the command", "did you mean '--version'?"),
        (["report", "--fromat=json"], "`dptune report` has no option '--fromat=json'", "did you mean '--format'?"),
        (["report", "-x"], "`dptune report` has no option '-x'", "see `dptune report --help`"),
        (["report", "--form", "json"], "`dptune report` has no option '--form'", "did you mean '--format'?"),
        (["report", "--format", "jsno"], "argument --format: invalid choice: 'jsno'", "did you mean 'json'?"),
        (["report", "--width", "x"], "argument --width: must be a number of columns", "see `dptune report --help`"),
        (["report", "--width", "39"], "from 40 to 400, not '39'", "see `dptune report --help`"),
        (["report", "--width", "401"], "from 40 to 400, not '401'", "see `dptune report --help`"),
        (["rules", "exlpain", "DP1"], "invalid choice: 'exlpain'", "did you mean 'explain'?"),
        (["rules", "list", "--frmat", "json"], "has no option '--frmat'", "did you mean '--format'?"),
        (["rules", "explain", "DP1", "DP2"], "`dptune rules` has no argument 'DP2'", "see `dptune rules --help`"),
    ],
)
def test_a_mistake_is_one_sentence_and_a_hint(
    words: list[str], message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    first, second = said.err.splitlines()
    assert first.startswith("dptune: error: ")
    assert message in first
    assert second == f"hint: {hint}"


def test_everything_after_the_script_is_the_scripts_own(verb: ModuleType) -> None:
    seen = []
    verb.run = lambda args: seen.append(args) or 7  # type: ignore[attr-defined, func-returns-value]
    assert main(["fake", "--steps", "3", "train.py", "--steps", "9", "--debug", "--help", "--", "-x"]) == 7
    (args,) = seen
    assert (args.script, args.steps) == ("train.py", 3)
    assert "debug" not in args
    assert args.rest == ["--steps", "9", "--debug", "--help", "--", "-x"]


def test_an_error_ends_with_its_own_status_and_no_traceback(
    verb: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: object) -> int:
        raise RunError("the run\x1b[31m is gone", "look for it", exit_status=5)

    verb.run = run  # type: ignore[attr-defined]
    assert main(["fake", "x.py"]) == 5
    said = capsys.readouterr()
    assert said.err == "dptune: error: the run\\x1b[31m is gone\nhint: look for it\n"


@pytest.mark.parametrize("words", [["--debug", "fake", "x.py"], ["fake", "--debug", "x.py"]])
def test_debug_shows_the_traceback(verb: ModuleType, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def run(args: object) -> int:
        raise UsageError("no", "")

    verb.run = run  # type: ignore[attr-defined]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("Traceback (most recent call last)")
    assert said.endswith("dptune: error: no\n")


def test_debug_is_known_behind_an_action_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "explain", "--debug", "DP000000"]) == 2
    assert capsys.readouterr().err.startswith("Traceback (most recent call last)")


def test_a_bug_is_told_without_a_traceback(verb: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    verb.run = lambda args: 1 // 0  # type: ignore[attr-defined]
    assert main(["fake", "x.py"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("dptune: error: internal error: ZeroDivisionError: ")
    assert "hint: run it again with --debug" in said
    assert "Traceback" not in said


def test_an_interruption_ends_with_130(verb: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def run(args: object) -> int:
        raise KeyboardInterrupt

    verb.run = run  # type: ignore[attr-defined]
    assert main(["fake", "x.py"]) == 130
    assert capsys.readouterr().err == "dptune: interrupted\n"


@pytest.mark.parametrize("words", [["--help"], pytest.param(["rules", "list"], marks=pytest.mark.thorough)])
def test_a_reader_that_left_is_no_error(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "dptune", *words], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def shell(command: str) -> subprocess.CompletedProcess[str]:
    words = ["sh", "-c", command.replace("dptune", f"'{sys.executable}' -m dptune")]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("words", "where"),
    [
        ("--help", ">/dev/full"),
        ("report --help", ">&-"),
        *(
            pytest.param(words, where, marks=pytest.mark.thorough)
            for words, where in (
                ("report TRACES", ">/dev/full"),
                ("report TRACES", ">&-"),
                ("check TRACES", ">/dev/full"),
                ("check TRACES", ">&-"),
                ("rules list", ">/dev/full"),
                ("rules list", ">&-"),
                ("--help", ">&-"),
                ("report --help", ">/dev/full"),
            )
        ),
    ],
)
def test_output_that_cannot_be_written_is_said_and_never_reads_as_a_gate(words: str, where: str, traces: Path) -> None:
    done = shell(f"dptune {words} {where}".replace("TRACES", str(traces)))
    not_written(done.returncode, done.stderr)


def not_written(status: int, stderr: str) -> None:
    """It is said, and the status is that of no gate."""
    assert status == 2
    first, second = stderr.splitlines()
    assert first.startswith("dptune: error: cannot write to stdout: ")
    assert second.startswith("hint: ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(("verb", "stdout"), [("report", "/dev/full"), ("check", None)])
def test_figures_that_cannot_be_written_are_said_and_never_read_as_a_gate(
    verb: str, stdout: str | None, traces: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process; without a stdout Python has none."""
    stream = open(stdout, "w", encoding="utf-8") if stdout else None  # noqa: SIM115 - closing it fails as well
    monkeypatch.setattr(sys, "stdout", stream)
    status = main([verb, str(traces)])
    if stream:
        with contextlib.suppress(OSError):
            stream.close()
    not_written(status, capsys.readouterr().err)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("words", "where"),
    [
        ("reprot", "2>/dev/full"),
        ("reprot", ">&- 2>&-"),
        *(
            pytest.param("check nope", where, marks=pytest.mark.thorough)
            for where in ("2>/dev/full", ">&- 2>&-", ">&-", ">/dev/full", "2>&-", ">/dev/full 2>/dev/full")
        ),
    ],
)
def test_an_error_that_cannot_be_told_keeps_its_status(words: str, where: str) -> None:
    done = shell(f"dptune {words} {where}")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_report_into_a_file_needs_no_stdout(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is closed Python has none."""
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["report", str(traces), "-o", f"{tmp_path}/out.txt"]) == 0
    assert "ms/step" in (tmp_path / "out.txt").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_a_report_into_a_file_needs_no_stdout_of_its_process(traces: Path, tmp_path: Path) -> None:
    done = shell(f"dptune report '{traces}' -o '{tmp_path}/out.txt' >&-")
    assert done.returncode == 0
    assert "ms/step" in (tmp_path / "out.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("words", [["report"], ["check"], ["report", "-o"]])
def test_a_path_that_is_too_long_is_a_mistake(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "x" * 5000, *(["y"] if "-o" in words else [])]) == 2
    said = capsys.readouterr().err
    assert "internal error" not in said
    assert len(said.splitlines()) == 2


@pytest.mark.parametrize(
    ("error", "message"),
    [(RecursionError(), "nested too deeply"), (MemoryError(), "not enough memory"), (OSError(5, "no"), "no")],
)
def test_what_a_users_data_brings_about_is_no_internal_error(
    error: Exception, message: str, verb: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: object) -> int:
        raise error

    verb.run = run  # type: ignore[attr-defined]
    assert main(["fake", "x.py"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "\nhint: " in said
    assert "internal error" not in said


@pytest.mark.parametrize("words", [["report", "x"], ["check", "x"], ["rules", "list"]])
def test_a_working_directory_that_was_removed_is_named(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(words) == 2
    assert capsys.readouterr().err.splitlines() == [
        "dptune: error: the working directory no longer exists",
        "hint: change to a folder that exists",
    ]


def test_the_help_of_predictions_names_each_setting_that_only_a_prediction_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["whatif", "--help"]) == 0
    said = capsys.readouterr().out
    assert [name for name in SCENARIOS if name not in KNOBS and not re.search(rf"\b{re.escape(name)}\b", said)] == [
        "model.dtype"  # as "fsdp and model dtypes"
    ]
    assert max(map(len, said.splitlines())) < 80
