"""What calling an operator takes on the host: timed in this process."""

import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from dptune.capture.injected.observe import call_time, process_rank  # noqa: E402


def test_a_call_without_its_surroundings(monkeypatch):
    """The shortest of several loops counts; no graph is recorded."""
    monkeypatch.setattr(process_rank, "device_kind", lambda: "cpu")
    calls = []
    monkeypatch.setattr(call_time, "_took_ns", lambda rows: calls.append(torch.is_grad_enabled()) or len(calls) * 2000)
    assert call_time.measured() == 2000 / call_time._CALLS
    assert calls == [False] * call_time._REPEATS


def test_the_shortest_of_several_is_positive_and_short(monkeypatch):
    monkeypatch.setattr(process_rank, "device_kind", lambda: "cpu")
    assert 100 < call_time.measured() < 1_000_000


def test_gpus_are_not_timed(monkeypatch):
    monkeypatch.setattr(process_rank, "device_kind", lambda: "cuda")
    assert call_time.measured() is None
