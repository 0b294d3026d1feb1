"""How long the full-screen report lets a user wait: until something is seen, until the report is, and for each key.

    python tests/benchmarks/interface.py                run what is missing, then print the table (make bench-interface)
    python tests/benchmarks/interface.py --table        print the table of what there is

`dptune report` in a terminal of 140 columns and 40 rows, of a process of its own: a trace of 500 MB, and 1,000 ranks of
2.6 MB each, written by kineto_text.py where they are not there yet; first read anew, then from the columns that were
kept. A key is answered when words of its tab are on the screen. Seconds, the median of several; it resumes where it
stopped, and raw results stand in results/interface.json.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from command_line import main
from loading import trace
from overhead import commit, machine

RESULTS = Path(__file__).parent / "results" / "interface.json"
ROUNDS = 3
LIMIT_S = 180.0
SIZE = (40, 140)
_REPORT = "ms/step"  # beside the title, and in the verdict
# What is pressed, and what is seen once it is answered.
KEYS = (
    ("2", "Recommendations as ranked"),
    ("3", "Selected rank"),
    ("4", "Collectives (traced times)"),
    ("5", "Longest gaps (traced times)"),
    ("6", "from left to right"),
    ("+", "from left to right"),
    ("7", "Predicted step"),
    ("1", _REPORT),
)
_ESCAPES = re.compile(rb"\x1b(?:\[[0-9;?<>=]*[A-Za-z]|[()][A-Z0-9]|[=>]|\][^\x07]*\x07|P[^\x1b]*\x1b\\)")


class Terminal:
    """A process in a terminal of its own, and what it wrote."""

    def __init__(self, words: Sequence[str], env: dict[str, str]) -> None:
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.execvpe(words[0], list(words), {**env, "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""})
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        self._written = b""

    def wait_for(self, words: str) -> float:
        """Seconds until the words were written, from now on; anything at all where there are none."""
        began = time.perf_counter()
        while time.perf_counter() - began < LIMIT_S:
            if select.select([self._file], [], [], 0.5)[0]:
                self._written += os.read(self._file, 1 << 16)
                seen = _ESCAPES.sub(b"", self._written).decode(errors="replace")
                if (words and words in seen) or (not words and seen.strip()):
                    return time.perf_counter() - began
        raise SystemExit(f"'{words}' was not written in {LIMIT_S:.0f} s")

    def press(self, key: str, words: str) -> float:
        """Seconds until a key is answered by the words."""
        self._drain()
        os.write(self._file, key.encode())
        return self.wait_for(words)

    def _drain(self) -> None:
        while select.select([self._file], [], [], 0.3)[0]:
            os.read(self._file, 1 << 16)
        self._written = b""

    def end(self) -> None:
        """Leave it."""
        os.write(self._file, b"q")
        time.sleep(0.3)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._file)


def once(paths: Sequence[str], cached: bool) -> dict[str, Any]:
    """One opening, and every key."""
    env = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")}
    words = [sys.executable, "-m", "dptune", "report", *paths, *([] if cached else ["--no-cache"])]
    terminal = Terminal(words, env)
    first = terminal.wait_for("")
    report = first + terminal.wait_for(_REPORT)
    keys = [terminal.press(key, words) for key, words in KEYS]
    terminal.end()
    return {"first_s": first, "report_s": report, "keys_s": dict(zip((key for key, _ in KEYS), keys, strict=True))}


def collect(work: Path) -> dict[str, Any]:
    """Open each run several times; each opening is written down as soon as it has ended."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"openings": []}
    results.update(machine=machine(), command="python tests/benchmarks/interface.py")
    for what in ("500 MB", "1,000 ranks"):
        size, ranks = (500, 1) if what == "500 MB" else (2, 1000)
        paths = [str(trace(size, "offset", rank)) for rank in range(ranks)]
        for cached in (False, True):
            own = [one for one in results["openings"] if (one["what"], one["cached"]) == (what, cached)]
            if cached and not own:
                once(paths, cached)  # which keeps the columns
            for _ in range(ROUNDS - len(own)):
                results["openings"].append({"what": what, "cached": cached, "commit": commit(), **once(paths, cached)})
                RESULTS.write_text(json.dumps(results) + "\n")
    return results


def table(results: dict[str, Any]) -> str:
    """The results as text."""
    commits = ", ".join(dict.fromkeys(one["commit"] for one in results["openings"]))
    lines = [f"machine: {results['machine']}; commits: {commits}; seconds, medians", ""]
    lines.append(f"{'opened':24s}something  report  " + "  ".join(f"key {key}" for key, _ in KEYS))
    for what, cached in dict.fromkeys((one["what"], one["cached"]) for one in results["openings"]):
        own = [one for one in results["openings"] if (one["what"], one["cached"]) == (what, cached)]
        first, report = (median(one[name] for one in own) for name in ("first_s", "report_s"))
        keys = "  ".join(f"{median(one['keys_s'][key] for one in own):5.2f}" for key, _ in KEYS)
        lines.append(f"{f'{what}, again' if cached else what:24s}{first:9.2f}  {report:6.2f}  {keys}")
    return "\n".join(lines)


if __name__ == "__main__":
    main(__doc__, RESULTS, collect, table, "interface")
