"""What can go wrong, as a user sees it.

    DptuneError             one sentence, a hint, an exit status
    ├── UsageError          the command line or the configuration asks for something that is not there
    ├── TraceError          a file that is not a trace, or of which nothing could be read
    │   └── NotATraceError       a complete JSON file with other content
    ├── RunError            a folder or set of files that does not make a run
    │   └── SeveralRunsError     a local folder of several recordings
    └── CaptureError        a recording that could not be made

The command line prints `dptune: error: <message>` and `hint: <hint>` on stderr; `--debug` adds the traceback.
"""

from __future__ import annotations


class DptuneError(Exception):
    """A failure with a sentence for the user, a hint on what to do, and the exit status to end with."""

    def __init__(self, message: str, hint: str = "", exit_status: int = 2) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_status = exit_status


class UsageError(DptuneError):
    """The command line or the configuration asks for something that is not there."""


class TraceError(DptuneError):
    """A file that is not a torch.profiler trace, or of which nothing could be read."""


class NotATraceError(TraceError):
    """A complete JSON file with other content: settings, metrics, another tool's trace."""


class RunError(DptuneError):
    """A folder or set of files that does not make a run."""


class SeveralRunsError(RunError):
    """A local folder of several recordings, where one is asked for."""


class CaptureError(DptuneError):
    """A recording that could not be made."""


def described(error: BaseException) -> str:
    """Its kind and what it says: an exception of other people's code may have no words, or fail over them."""
    try:
        words = str(error)
    except BaseException:
        words = ""
    kind = type(error).__name__
    return f"{kind}: {words}" if words else kind
