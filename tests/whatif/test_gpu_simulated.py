"""What changes do to simulated steps, each for one reason: predicted within what the model does not know.

The pairs of `make bench-simulated` showed these reasons. A small model is simulated in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from tests.simulator import machine, pairs, settings
from tests.simulator.changes import CHANGES, Run
from tests.simulator.settings import Loader

from dptune.knobs import Value
from dptune.measure import measure
from dptune.trace import load
from dptune.whatif.run_model import RunModel

SMALL = {"layers": 4, "width": 512, "heads": 8, "tokens": 256, "batch": 4, "losses_read": 0, "loader": None}
DDP = {**SMALL, "strategy": "ddp", "precision": "fp32", "optimizer": "foreach", "hook": "none"}
FSDP = {**SMALL, "strategy": "fsdp", "precision": "fp32", "optimizer": "fused", "unit_layers": 1, "reshard": True}
UNITS = {**FSDP, "layers": 6}  # those merged are of two, three or all layers

KNOWN: dict[str, tuple[float, RunModel]] = {}  # by the text of the run
LOADER = Loader(workers=4, decode_us=20.0, pinned=True, sample_bytes=100_000)


@pytest.fixture(scope="module", autouse=True)
def _soon() -> Iterator[None]:
    """Without noise the launch queue fills in two steps."""
    with mock.patch.object(pairs, "WARMUP", 2):
        yield


def run_of(seed: int, chosen: dict[str, object], host: float, gb_per_s: float) -> Run:
    """Two ranks without noise, a host so many times as slow, and a link."""
    found = machine.drawn(seed, 2).without_noise()
    quick = replace(found.link, gb_per_s=gb_per_s)
    wanted = replace(settings.drawn(seed, 2), **chosen)  # type: ignore[arg-type]
    return replace(found, host=found.host.times(host), link=quick), wanted


def unchanged(run: Run) -> tuple[float, RunModel]:
    """The simulated step of a run, and the model of its traces."""
    if (known := KNOWN.get(repr(run))) is not None:
        return known
    before = pairs.simulated(run, traced=True, steps=pairs.ALIKE)
    with TemporaryDirectory() as folder:
        pairs.write_traces(run, before, Path(folder), steps=pairs.ALIKE)
        recorded = load([folder], cached=False)
        found = pairs.mean_step_ns(before, pairs.ALIKE), RunModel.of(recorded, measure(recorded))
    KNOWN[repr(run)] = found
    return found


def told_and_true(run: Run, change: str, value: str) -> tuple[float, float, RunModel]:
    """The predicted step and the simulated one, as shares of the unchanged one.

    The model's step is compared even where its ends are too far apart to name it.
    """
    before_ns, model = unchanged(run)
    after = pairs.simulated(CHANGES[change].apply(run, value), traced=True, steps=pairs.ALIKE)
    words: dict[str, Value] = {"true": True, "false": False}
    setting: dict[str, Value] = {change: words.get(value, value) if value.isalpha() else float(value)}
    with mock.patch("dptune.whatif.ranges._MOST_OFF", 1.0):
        predicted = model.predict(setting)
    return (
        predicted.step_ns / model.step_ns,
        pairs.mean_step_ns(after, pairs.ALIKE) / before_ns,
        model,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "value", "chosen", "host", "gb_per_s", "apart"),
    [
        pytest.param(
            "ddp.no_sync", "true", {**DDP, "micro_batches": 2}, 3.0, 200.0, 0.02, id="host time of nodes stays"
        ),
        pytest.param(
            "accumulation.micro_batches",
            "1",
            {**DDP, "micro_batches": 2},
            0.3,
            200.0,
            0.02,
            id="gradients not added",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "accumulation.micro_batches",
            "1",
            {**DDP, "micro_batches": 2, "no_sync": True},
            3.0,
            200.0,
            0.01,
            id="setting gradients takes host time",
            marks=pytest.mark.thorough,
        ),
        pytest.param("ddp.bucket_cap_mb", "50", DDP, 0.3, 20.0, 0.02, id="copied out bucket after bucket"),
        pytest.param("ddp.bucket_cap_mb", "1", DDP, 4.0, 300.0, 0.02, id="host time of buckets"),
        pytest.param(
            "ddp.bucket_cap_mb",
            "1",
            {**DDP, "gradient_as_bucket_view": True},
            4.0,
            300.0,
            0.02,
            id="host time of waits for buckets",
            marks=pytest.mark.thorough,
        ),
        pytest.param("cuda.graphs", "true", FSDP, 4.0, 200.0, 0.02, id="gathers wait for no kernel"),
        pytest.param("batch.times", "2", {**DDP, "loader": LOADER}, 4.0, 200.0, 0.005, id="a queue's time stays"),
        pytest.param(
            "fsdp.prefetch",
            "true",
            FSDP,
            0.2,
            5.0,
            0.005,
            id="gathered ahead already",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "fsdp.no_sync",
            "true",
            {**FSDP, "micro_batches": 2},
            0.2,
            5.0,
            0.02,
            id="reductions of units once per step",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "fsdp.no_sync",
            "true",
            {**FSDP, "micro_batches": 2},
            1.0,
            200.0,
            0.02,
            id="host time of reductions",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "fsdp.units", "3", UNITS, 0.2, 5.0, 0.02, id="units gathered together", marks=pytest.mark.thorough
        ),
        pytest.param(
            "fsdp.units", "1", UNITS, 0.2, 20.0, 0.02, id="one unit hides nothing", marks=pytest.mark.thorough
        ),
        pytest.param("fsdp.units", "1", UNITS, 4.0, 200.0, 0.02, id="hooks of one unit", marks=pytest.mark.thorough),
        pytest.param("fsdp.units", "6", {**UNITS, "unit_layers": 3}, 4.0, 200.0, 0.02, id="hooks of more units"),
        pytest.param(
            "fsdp.units",
            "3",
            {**UNITS, "unit_layers": 6},
            0.2,
            20.0,
            0.03,
            id="parts hidden behind others",
            marks=pytest.mark.thorough,
        ),
        pytest.param("wrapper", "ddp", FSDP, 0.2, 20.0, 0.02, id="buckets in place of units"),
        pytest.param(
            "wrapper",
            "ddp",
            {**UNITS, "losses_read": 1},
            2.0,
            5.0,
            0.02,
            id="a loss that is read waits for buckets",
            marks=pytest.mark.thorough,
        ),
        pytest.param("syncs.removed", "true", {**FSDP, "losses_read": 1}, 0.2, 5.0, 0.02, id="first gathers wait"),
    ],
)
def test_one_reason(
    change: str, value: str, chosen: dict[str, object], host: float, gb_per_s: float, apart: float
) -> None:
    told, true, _ = told_and_true(run_of(3, chosen, host, gb_per_s), change, value)
    assert told == pytest.approx(true, abs=apart)


@pytest.mark.long
def test_kernels_beside_a_transfer_are_as_much_slower_as_simulated() -> None:
    run = run_of(3, {**DDP, "batch": 16}, 0.2, 5.0)
    slower = replace(run[0], device=replace(run[0].device, compute_beside_transfer=1.24)), run[1]
    told, true, model = told_and_true(slower, "link.gb_per_s", "20")
    assert model.model.beside_times == pytest.approx(1.24, abs=0.03)  # type: ignore[union-attr]
    assert told == pytest.approx(true, abs=0.01)
