"""An exit status names the signal that ended a script."""

import pytest

from dptune.runfile.exit_status import exit_text


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (139, "exit status 139, SIGSEGV"),
        (137, "exit status 137, SIGKILL"),
        (1, "exit status 1"),
        (255, "exit status 255"),
        (128, "exit status 128"),
    ],
)
def test_a_signal_is_named(status: int, expected: str) -> None:
    assert exit_text(status) == expected
