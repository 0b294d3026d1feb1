"""The peak of a CPU: timed by the ranks after their last window, and what reports make of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from dptune.capture.injected.observe import cpu_peak, process_rank  # noqa: E402
from dptune.capture.injected.observe.places import Places  # noqa: E402
from dptune.measure import measure  # noqa: E402
from dptune.runfile import json_files, paths  # noqa: E402
from dptune.runfile.facts import Facts  # noqa: E402
from dptune.trace import load  # noqa: E402

from .. import in_process  # noqa: E402, TID252 - tests are no installed package
from .conftest import environment  # noqa: E402

WIDTH, BATCH, RANKS = 64, 32, 2
SCRIPT = f"""
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear({WIDTH}, {WIDTH}), nn.Linear({WIDTH}, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100):
    optimizer.zero_grad()
    model(torch.ones({BATCH}, {WIDTH})).sum().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("peak")
    (place / "train.py").write_text(SCRIPT)
    windows = ("--warmup", "1", "--untraced", "3", "--light", "2", "--detailed", "2")
    words = ("--run-dir", "run", "--no-links", "--nproc-per-node", str(RANKS), *windows, "train.py")
    done = in_process.recording("profile", *words, cwd=place, env=environment())
    assert done.returncode == 0, done.stderr
    return place / "run"


@pytest.mark.records
def test_ranks_measure_at_once_and_mfu_follows_by_hand(recorded: Path) -> None:
    """The first layer needs no gradient of its input, the second does."""
    found = measure(load([recorded])).efficiency
    first, second = 2 * BATCH * WIDTH * WIDTH, 2 * BATCH * WIDTH
    assert found.model_flops_per_step == found.flops_per_step == 2 * first + 3 * second
    for rank in range(RANKS):
        facts = json_files.read(paths.facts(recorded, rank), Facts)
        peak = facts.cpu_peak
        assert peak is not None
        assert (peak.threads, peak.ranks, peak.expected) == (1, RANKS, RANKS)
        (dtype,) = peak.dtypes
        assert (dtype.dtype, dtype.width in cpu_peak._WIDTHS) == ("float32", True)
        assert dtype.products >= 2
        assert peak.load is not None
        assert 0 < found.flops_per_s < dtype.flops_per_s  # steps of tiny products among collectives
    if "mfu" in found.missing:
        assert "withheld" in found.missing["mfu"]  # by whatever else ran
    else:
        first_rank = json_files.read(paths.facts(recorded, 0), Facts).cpu_peak
        assert found.mfu == pytest.approx(found.model_flops_per_step / (found.step_ns / 1e9) / found.peak_flops_per_s)
        assert first_rank is not None
        assert found.peak_flops_per_s == pytest.approx(first_rank.dtypes[0].flops_per_s)


@pytest.mark.records
def test_recordings_without_a_peak_say_why(recorded: Path) -> None:
    run = load([recorded])
    for facts in run.facts.values():
        facts.cpu_peak = None
    assert run.record is not None
    assert run.record.cpu_peak is True
    found = measure(run).efficiency
    assert "let the script run until the recording ends" in found.missing["mfu"]
    assert found.flops_per_step > 0
    run.record.cpu_peak = None
    assert "an older version of dptune" in measure(run).efficiency.missing["mfu"]


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_rank, "device_kind", lambda: "cpu")
    monkeypatch.setattr(cpu_peak, "_SPENT_NS", 1)


def test_fp32_and_what_the_script_computes_in_are_measured(on_a_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    places = Places()
    places.autocast = "cpu:bfloat16"
    before = torch.get_rng_state()
    found = cpu_peak.measured(places, None)
    assert torch.equal(torch.get_rng_state(), before)
    assert found is not None
    assert [each.dtype for each in found.dtypes] == ["float32", "bfloat16"]
    assert (found.threads, found.ranks, found.expected) == (torch.get_num_threads(), 1, 1)
    monkeypatch.setattr(process_rank, "device_kind", lambda: "cuda")
    assert cpu_peak.measured(places, None) is None


def test_the_highest_rate_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of our own: products of 256 take 1 and 2 ms, of 512 take 4 and 8 ms, of 1,024 take 64 and 32 ms."""
    ms = 10**6

    def clock() -> Iterator[int]:
        yield 0
        now = 0
        for spent in (1, 2, 4, 8, 64, 32):
            yield now
            now += spent * ms
            yield now
        yield from itertools.repeat(10**12)

    with mock.patch.object(cpu_peak.time, "perf_counter_ns", clock().__next__), torch.no_grad():
        found = cpu_peak._peak("float32")
    rates = [2 * 256**3 / 1e-3, 2 * 512**3 / 4e-3, 2 * 1024**3 / 32e-3]
    assert found.flops_per_s == pytest.approx(max(rates))
    assert found.flops_per_s == pytest.approx(2 * 512**3 / 4e-3)
    assert found.width == 512


def test_a_rank_does_not_wait_long_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four ranks of the host two are recorded, and the other one does not come."""
    store = torch.distributed.HashStore()
    monkeypatch.setattr(cpu_peak.distributed_c10d, "_get_default_store", lambda: store)
    monkeypatch.setattr(process_rank, "together", lambda: True)
    monkeypatch.setattr(cpu_peak, "_PATIENCE_S", 0.02)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert cpu_peak._expected(None) == 4
    assert cpu_peak._expected([0, 9]) == 2
    assert cpu_peak._meet(2) == 1
    assert cpu_peak._meet(2) == 2
