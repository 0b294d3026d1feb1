"""What a real terminal gets, and what everything else gets."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import pytest

from dptune.cli import main
from dptune.commands import report
from dptune.present import quit_key
from dptune.present.quit_key import until_quit

from .. import in_process  # noqa: TID252 - tests are no installed package

pty = pytest.importorskip("pty")
fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")

SHELL = {name: value for name, value in os.environ.items() if name not in {"CI", "NO_COLOR", "COLUMNS", "LINES"}}


class Terminal:
    """What a command wrote to a terminal, and how it ended; a pseudo-terminal is read until nobody has it open."""

    def __init__(self, keys: bytes = b"", after: Sequence[bytes] = ()) -> None:
        self.seen = b""
        self.status = -1
        self._keys, self._after = keys, after

    @property
    def text(self) -> str:
        """Without control sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen.decode(errors="replace")).replace("\r\n", "\n")

    def read(self, terminal: int) -> None:
        while True:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            self.seen += piece
            if self._keys and all(word in self.seen for word in self._after):
                os.write(terminal, self._keys)
                self._keys = b""
        os.close(terminal)


def started(
    words: list[str],
    *,
    keys: bytes = b"",
    after: Sequence[bytes] = (b"Limits", b"Quit"),
    stdout: Path | None = None,
    before: Callable[[], object] = lambda: None,
    **environment: str,
) -> Terminal:
    """The command in a process of its own, which has nothing but the terminal, and calls `before` first.

    `keys` are typed once the words of `after` are on the screen.
    """
    terminal, theirs = pty.openpty()
    out = os.open(stdout, os.O_WRONLY | os.O_CREAT) if stdout else os.dup(theirs)
    env = {**SHELL, "TERM": "xterm-256color", **environment}

    def take_the_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for number in (terminal, theirs, out):
            os.close(number)
        before()

    process = in_process.forked(*words, streams=(theirs, out, theirs), env=env, before=take_the_terminal)
    for number in (theirs, out):
        os.close(number)
    shown = Terminal(keys, after)
    shown.read(terminal)
    shown.status = process.wait()
    return shown


def here(words: list[str], encoding: str = "utf-8", **environment: str) -> Terminal:
    """The command in this process, with a terminal as its standard streams."""
    shown = Terminal()
    terminal, theirs = pty.openpty()
    reader = threading.Thread(target=shown.read, args=(terminal,))
    reader.start()
    env = {**SHELL, "TERM": "xterm-256color", **environment}
    with contextlib.ExitStack() as stack:
        stack.callback(reader.join)
        stack.callback(os.close, theirs)
        stack.enter_context(mock.patch.dict(os.environ, env, clear=True))
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            stream = stack.enter_context(open(theirs, mode, encoding=encoding, closefd=False))
            stack.enter_context(mock.patch.object(sys, name, stream))
        shown.status = main(words)
    return shown


def test_a_terminal_gets_the_full_screen_report_and_q_leaves_it(traces: Path) -> None:
    shown = started(["report", str(traces)], keys=b"q")
    assert shown.status == 0
    assert "\x1b[?1049h" in shown.seen.decode()  # the alternate screen
    assert "1 Overview" in shown.text


def test_q_leaves_the_report_while_it_loads(traces: Path) -> None:
    def load_for_long(args: object) -> None:
        print("loading", flush=True)
        for _ in range(3000):
            time.sleep(0.1)  # a single long one would miss an interrupt that comes just before it
        pytest.fail("it was not left")

    loads = functools.partial(setattr, report, "_read", load_for_long)
    shown = started(["report", str(traces)], keys=b"xq", after=[b"loading"], before=loads)
    assert shown.status == 0, shown.text
    assert "\x1b[?1049h" not in shown.seen.decode()
    assert "interrupted" not in shown.text


@pytest.mark.parametrize(("typed", "ends"), [(b"q", True), (b"Q", True), (b"", False), (b"xyz", False)])
def test_the_terminal_is_afterwards_as_it_was(typed: bytes, ends: bool) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)

    def load() -> bool:
        assert termios.tcgetattr(theirs) != before
        os.write(ours, typed)
        return not threading.Event().wait(60 if ends else 0.05)

    with open(theirs, encoding="utf-8") as stdin, mock.patch.object(sys, "stdin", stdin):
        assert until_quit(load) is (None if ends else True)
        assert termios.tcgetattr(theirs) == before
    os.close(ours)


def test_a_key_that_is_read_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was typed ahead: the interrupt comes as soon as keys are read."""

    def read_at_once(keys: quit_key._Keys) -> None:
        keys.quit = True
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(quit_key._Keys, "start", read_at_once)
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    with open(theirs, encoding="utf-8") as stdin, mock.patch.object(sys, "stdin", stdin):
        assert until_quit(lambda: pytest.fail("it was loaded")) is None
        assert termios.tcgetattr(theirs) == before
    os.close(ours)


def test_ctrl_c_interrupts_what_loads() -> None:
    ours, theirs = pty.openpty()
    with contextlib.ExitStack() as stack:
        stdin = stack.enter_context(open(theirs, encoding="utf-8"))
        stack.enter_context(mock.patch.object(sys, "stdin", stdin))
        stack.enter_context(pytest.raises(KeyboardInterrupt))
        until_quit(lambda: signal.raise_signal(signal.SIGINT))
    os.close(ours)


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        ([], {"CI": "true"}),
        ([], {"TERM": "dumb"}),
        ([], {"encoding": "latin-1"}),
        (["--no-tui"], {}),
        (["--format", "text"], {}),
    ],
)
def test_text_where_the_full_screen_is_not_wanted(words: list[str], environment: dict[str, str], traces: Path) -> None:
    shown = here(["report", str(traces), *words], **environment)
    assert shown.status == 0
    assert "\x1b[?1049h" not in shown.seen.decode()
    assert "ms/step (traced mean)" in shown.text
    assert "--section NAME" in shown.text


def test_text_on_a_terminal_is_coloured_unless_no_color(traces: Path) -> None:
    coloured = here(["report", str(traces), "--full"])
    assert "\x1b[1mStep time breakdown" in coloured.seen.decode()
    plain = here(["report", str(traces), "--full"], NO_COLOR="1")
    assert "\x1b[1m" not in plain.seen.decode()
    dumb = here(["report", str(traces), "--full"], TERM="dumb")
    assert "\x1b" not in dumb.seen.decode()


def test_a_redirected_report_is_clean_while_the_terminal_shows_progress(traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    shown = started(["report", str(traces), "--format", "json"], stdout=out)
    assert shown.status == 0
    assert out.read_text(encoding="utf-8").startswith("{\n")
    assert "ms/step" not in shown.text


@pytest.mark.thorough  # test_tui.py shows it each time, and a test above NO_COLOR on a terminal
def test_the_full_screen_report_works_without_colour(traces: Path) -> None:
    shown = started(["report", str(traces)], keys=b"q", NO_COLOR="1", COLORTERM="truecolor")
    assert shown.status == 0
    assert "ms/step" in shown.text
    colours = re.findall(rb"[34]8;2;(\d+);(\d+);(\d+)", shown.seen)
    assert [colour for colour in colours if len(set(colour)) > 1] == []  # greys only
