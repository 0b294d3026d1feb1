"""The tools: each is a call of the dptune command, so that an agent gets the figures that a user gets.

Reading tools start nothing but dptune. Tools that run a script need `allow_run`; without it they answer with the
command that they would run. No argument of a tool can be an option: a word that begins with `-` is refused.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dptune.agents.answers import Answer, answer, bounded, text
from dptune.agents.processes import CallError, Processes

REPORT = ("run", "headline", "trust", "advice", "together", "verified")
TUNED = (
    "run",
    "outcome",
    "reason",
    "ended",
    "kept",
    "settings",
    "final",
    "apply",
    "start",
    "by_hand",
    "tried",
    "not_tried",
)
_LAST_LINES = 12


@dataclass
class _Tuning:
    process: subprocess.Popen[str]
    folder: Path
    log: Path


@dataclass
class Calls:
    """The tools of one server. `allow_run`: whether tools may run scripts."""

    allow_run: bool = False
    _tunings: dict[str, _Tuning] = field(default_factory=dict)
    _processes: Processes = field(default_factory=Processes)

    def report(self, run: str = "") -> Answer:
        """Verdict, data quality and recommendations for a recording or traces (default: the latest recording)."""
        found = _json(self._dptune("report", *_words(run), "--format", "json"))
        advice = found["advice"]
        commands = [each["verify"] for each in advice if each["verify"]]
        todo = f"Verify the first recommendation: {commands[0]}" if commands else found["headline"]["next"]
        return answer(found, REPORT, todo)

    def explain(self, rule: str) -> Answer:
        """What a rule looks for, why it costs time, and how to change the script. `rule`: its code or name."""
        done = self._dptune("rules", "explain", *_words(rule))
        return {"text": text(done), "next_step": "Apply the change, then verify it with the tool verify."}

    def what_if(self, settings: list[str], run: str = "") -> Answer:
        """Predicted step time with settings (knob=value), from a recording alone; without settings, the best ones.

        If step_ns is null and high_ns is set, the prediction is a range: report low_ns to high_ns, not one step
        time. If only low_ns is set, it is a lower bound.
        """
        words = [word for setting in _words(*settings) for word in ("--set", setting)]
        found = _json(self._dptune("whatif", *_words(run), *words, "--format", "json", statuses=(0, 1)))
        parts = ("measured_ns", "replayed_ns", "error_share", "predictions", "curve", "limits", "missing")
        return answer(found, parts, "Verify a predicted saving with the tool verify.")

    def compare(self, a: str, b: str) -> Answer:
        """What changed between two recordings, and which parts of the step explain it."""
        found = _json(self._dptune("compare", *_words(a, b), "--format", "json", statuses=(0, 1)))
        parts = [name for name in found if name not in ("schema_version", "dptune")]
        return answer(found, parts, "One run per side cannot rule out noise: verify a change with the tool verify.")

    def check(self, run: str = "", fail_on: str = "high") -> Answer:
        """Whether a recording passes the gate: findings of this impact or more fail it (low, medium, high)."""
        words = ("--fail-on", *_words(fail_on), "--format", "json")
        found = _json(self._dptune("check", *_words(run), *words, statuses=(0, 1)))
        parts = ("outcome", "fail_on", "step_ns", "tripped", "budgets", "regression", "trust", "reservations")
        failed = found["outcome"] != "passed"
        return answer(found, parts, "Fix the findings in `tripped`." if failed else "Nothing to fix.")

    def verify(self, change: str, run: str = "", time_limit: str = "20m") -> Answer:
        """Runs the script with and without a change until one is clearly faster. `change`: a rule, or knob=value."""
        (asked,) = _words(change)
        option = "--set" if "=" in asked else "--advice"
        command = ("verify", *_words(run), option, asked, "--time-limit", *_words(time_limit), "--format", "json", "-q")
        if refused := self._refused(command):
            return refused
        found = _json(self._dptune(*command, statuses=(0, 1), trials="verify"))
        parts = ("outcome", "reason", "ended", "objective", "ratio", "fast_ratio", "a_step_ns", "b_step_ns", "learning")
        if found["outcome"] != "better":
            todo = "Do not apply it."
        elif found["learning"]["outcome"] == "other":
            todo = "Do not apply it: training results differ (`learning`)."
        elif option == "--set":
            todo = "Set it in the script."
        else:
            todo = (
                f"Apply it: {shlex.join(('dptune', 'report', *_words(run), '--patch', '--advice', asked))} | git apply"
            )
        return answer(found, parts, todo)

    def tune_start(
        self,
        command: list[str] | None = None,
        run: str = "",
        time_limit: str = "20m",
        numerics: Literal["same", "may-change"] = "same",
        only: str = "",
        ranks: int = 1,
    ) -> Answer:
        """Starts a search for the changes that make a script faster: `command` is train.py with its arguments.

        `only`: comma-separated rules and knobs to try (default: all). `ranks`: processes that torchrun would start on
        this host; a `command` that begins with a launcher (torchrun, accelerate) has its own number.
        """
        if bool(command) == bool(run):
            raise CallError("give either `command` (train.py and its arguments) or `run` (a recording)")
        if ranks < 1 or (run and ranks > 1):
            raise CallError("`ranks` is the number of processes that `command` is started with: 1 or more")
        folder = Path(tempfile.mkdtemp(prefix="dptune-tune-"))
        target = ("--run", *_words(run)) if run else (*_words((command or [""])[0]), *(command or [])[1:])
        options = ("--time-limit", *_words(time_limit), "--numerics", numerics, "-o", str(folder / "tuned"))
        options += ("--only", *_words(only)) if only else ()
        options += ("--nproc-per-node", str(ranks)) if ranks > 1 else ()
        words = ("tune", *options, *target)
        if refused := self._refused(words):
            folder.rmdir()
            return refused
        log, name = folder / "progress.txt", f"tune-{len(self._tunings) + 1}"
        try:
            process = self._processes.start(words, log, name)
        except CallError:
            shutil.rmtree(folder)
            raise
        self._tunings[name] = _Tuning(process, folder / "tuned", log)
        return {
            "search": name,
            "command": shlex.join(("dptune", *words)),
            "next_step": "Ask tune_status from time to time.",
        }

    def tune_status(self, search: str) -> Answer:
        """The last progress lines of a search that was started, and whether it still runs."""
        tuning = self._tuning(search)
        running = tuning.process.poll() is None
        lines = tuning.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        todo = "Ask again in a minute." if running else "Ask tune_result."
        return bounded({"running": running, "progress": [text(line) for line in lines], "next_step": todo})

    def tune_result(self, search: str) -> Answer:
        """What a search found: the measured saving of all kept changes, and the command that applies their patch."""
        tuning = self._tuning(search)
        if tuning.process.poll() is None:
            raise CallError(f"{search} still runs: ask tune_status")
        result = tuning.folder / "tuning.json"
        if not result.is_file():
            raise CallError(f"{search} ended without a result: {self.tune_status(search)['progress'][-1:]}")
        found = _json(result.read_text(encoding="utf-8"))
        return answer(found, TUNED, _what_now(found))

    def close(self) -> None:
        """End what still runs; a search keeps what it found."""
        self._processes.close()

    def _dptune(self, *words: str, statuses: Sequence[int] = (0,), trials: str = "") -> str:
        return self._processes.output(words, statuses, trials)

    def _tuning(self, search: str) -> _Tuning:
        if search not in self._tunings:
            raise CallError(f"no search is called {search}; there are: {', '.join(self._tunings) or 'none'}")
        return self._tunings[search]

    def _refused(self, words: Sequence[str]) -> Answer | None:
        """The answer where scripts may not be run."""
        if self.allow_run:
            return None
        command = shlex.join(("dptune", *words))
        todo = "Ask the user to run this command, or to start the server with `dptune mcp --allow-run`."
        return {"refused": "this tool runs a training script", "command": command, "next_step": todo}


def _what_now(tuning: Mapping[str, Any]) -> str:
    """The next step after a search."""
    if tuning["outcome"] == "faster":
        steps = [f"apply the patch: {tuning['apply']}"] if tuning["apply"] else []
        steps += [f"start the script with its variables: {tuning['start']}"] if tuning["start"] else []
        steps += ["add the lines in `by_hand` to the script"] if tuning["by_hand"] else []
        words = "; ".join(steps)
        return f"{words[:1].upper()}{words[1:]}."
    if tuning["ended"] in ("out of time", "interrupted"):
        return f"Nothing to apply. Continue with a longer time limit: {tuning['resume']} --time-limit 1h"
    return "Nothing to apply."


def _words(*words: str) -> tuple[str, ...]:
    """Words of a command line that are no options; empty ones are left out."""
    for word in words:
        if word.startswith("-") or "\0" in word:
            raise CallError(f"an argument cannot begin with '-': {word[:60]!a}")
    return tuple(word for word in words if word)


def _json(printed: str) -> dict[str, Any]:
    try:
        found = json.loads(printed)
    except ValueError:
        raise CallError("dptune printed no JSON") from None
    return dict(found)
