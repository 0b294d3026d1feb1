"""Advice without a setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptune.commands import verify
from dptune.commands.shared import reading, selection
from dptune.errors import UsageError


def test_advice_without_a_setting_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "report_of", lambda _: None)
    monkeypatch.setattr(selection, "advised", lambda *_: [])
    with pytest.raises(UsageError, match="DP504 recommends no setting") as raised:
        verify._advised(Path("run"), "DP504")
    assert "dptune report --section advice" in raised.value.hint
