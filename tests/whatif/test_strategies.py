"""Ways to share a training among ranks: by hand, and as a page."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.simulator import machine, pairs, settings

from dptune.commands.shared.reading import measured_of
from dptune.knobs import Value
from dptune.measured import (
    Account,
    DeviceFigures,
    Measured,
    MemoryFigures,
    Missing,
    PhaseFigures,
    RankFigures,
    StepAccount,
)
from dptune.predicted import Prediction
from dptune.runfile.communication import DdpFacts, FsdpFacts
from dptune.runfile.facts import Facts, OptimizerFacts
from dptune.trace import load
from dptune.whatif.cpu.buckets import Caps
from dptune.whatif.cpu.model import StepModel
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.predicting import compare
from dptune.whatif.strategies import strategies, too_large
from dptune.whatif.unit_strategies import with_units

from .. import in_process, reading  # noqa: TID252 - tests are no installed package
from ..kept_traces import keeping  # noqa: TID252 - tests are no installed package

SAMPLES = Path(__file__).parents[2] / "sample_traces"
TIMES = ("step_ns", "low_ns", "high_ns")
MS = 1_000_000
WHY = "not measured"
UNITS: dict[str, Any] = {"strategy": "fsdp", "layers": 2, "width": 512, "heads": 8, "tokens": 128, "batch": 4}
UNITS |= {"micro_batches": 2, "losses_read": 0, "loader": None, "precision": "fp32", "optimizer": "fused"}
STEP, FLOOR, OPTIMIZER = 100 * MS, 60 * MS, 10 * MS
SIZE = 8_000_000  # of the gradients
LINK = Link(alpha_ns=2 * MS, bytes_per_ns=0.2)  # 42 ms for all of them
WHOLE, HALF = 42 * MS, 21 * MS


def measured(ranks: int = 4, passes: int | None = None, **more: Any) -> Measured:
    """Steps of 100 ms that took 200 ms when they were traced; 20 of those are the optimizer's."""
    one = Account(**{**dict.fromkeys(Account.model_fields, 0), "window_ns": 2 * STEP, "compute_ns": 2 * STEP})
    device = DeviceFigures(
        device="cuda:0",
        steps=[StepAccount(number=0, start_ns=0, account=one)],
        whole=one,
        device_operations=1,
        kernels=1,
    )
    rest = dict.fromkeys(("communication_ns", "hidden_communication_ns", "exposed_communication_ns", "host_ns"), 0)
    spent = PhaseFigures.only(WHY, phase="optimizer", compute_ns=2 * OPTIMIZER, **rest)
    from dptune.measured import InputFigures, MatmulFigures, StepTime
    from dptune.measured.steps import AccumulationFigures

    return Measured.only(
        WHY,
        world_size=ranks,
        account=one,
        phases=[spent],
        ranks=[RankFigures.only(WHY, rank=0, source="0.json", events=1, devices=[device])],
        step=StepTime.only(WHY, basis="untraced", time_ns=STEP),
        input=InputFigures.only(WHY),
        accumulation=AccumulationFigures.only(WHY, **({} if passes is None else {"backwards_per_step": passes})),
        matmul=MatmulFigures.only(WHY),
        **more,
    )


def facts(hosts: str = "aaaa", optimizer: str = "AdamW", **more: Any) -> list[Facts]:
    ddp = [DdpFacts("Net", gradient_bytes=SIZE, bucket_sizes=[SIZE // 2, SIZE // 2], parameter_tensors=6)]
    return [
        Facts(rank, host=host, **{"ddp": ddp, "optimizers": [OptimizerFacts(optimizer)], **more})
        for rank, host in enumerate(hosts)
    ]


def told(run: Measured | None = None, own: list[Facts] | None = None) -> dict[str, tuple[int, int, int | None, int]]:
    found = strategies(own or facts(), run or measured(), LINK, STEP, FLOOR)
    return {one.name: (one.state_bytes, one.low_ns, one.known("high_ns"), one.samples_times) for one in found}


def test_each_by_hand():
    """Of four ranks; the state of Adam is twice as large as the parameters, and buckets as large as them."""
    assert told() == {
        "DDP, unchanged": (5 * SIZE, STEP, STEP, 1),
        "DDP, 1/2 as often": (5 * SIZE, STEP + FLOOR - OPTIMIZER, STEP + FLOOR, 2),
        "DDP, 1/4 as often": (5 * SIZE, STEP + 3 * (FLOOR - OPTIMIZER), STEP + 3 * FLOOR, 4),
        # At most each of six tensors is sent by itself: 40 ms, and 2 ms each time.
        "ZeRO-1": (3 * SIZE + SIZE // 2, STEP + HALF - OPTIMIZER * 3 // 4, STEP + 40 * MS + 6 * 2 * MS, 1),
        # Three halves of an all-reduce are 63 ms, more than what is computed then.
        "FSDP": (SIZE, 63 * MS, None, 1),
    }


def test_gradients_that_are_views_of_buckets_need_no_others():
    own = told(own=facts(ddp=[DdpFacts("Net", gradient_bytes=SIZE, gradient_as_bucket_view=True)]))
    assert (own["DDP, unchanged"][0], own["ZeRO-1"][0]) == (4 * SIZE, 2 * SIZE + SIZE // 2)


def test_only_the_unchanged_run_has_a_step_without_a_model():
    found = strategies(facts(), measured(), LINK, STEP, FLOOR)
    assert [one.known("step_ns") for one in found] == [STEP, None, None, None, None]
    assert {one.missing["step_ns"] for one in found[1:]} == {"only bounds of its step are known"}


def test_what_is_not_known_has_no_upper_bound():
    found = strategies(facts(ddp=[DdpFacts("Net", gradient_bytes=SIZE)]), measured(), LINK, STEP, FLOOR)
    why = {one.name: one.missing.get("high_ns") for one in found}
    assert why["ZeRO-1"] == "the number of tensors was not recorded"
    assert why["FSDP"] == "the cost of gathering each unit is known only after running it"
    assert not why["DDP, 1/4 as often"]


def test_layers_are_gathered_in_each_backward_pass():
    """Three halves of an all-reduce, in each of four."""
    assert told(measured(passes=4))["FSDP"][1] == 4 * 63 * MS


def test_two_nodes_of_two_ranks_can_shard_within_each():
    assert told(own=facts("aabb"))["HSDP"] == (2 * SIZE, FLOOR - OPTIMIZER // 2, None, 1)
    for hosts in ("abcd", "aaab", "aab"):
        assert "HSDP" not in told(own=facts(hosts))


def test_shards_within_hosts_are_predicted():
    """Of 8 units the best is predicted to take 70 to 90 ms, and 20 less with shards within hosts."""
    model = StepModel(steps={}, gradient_bytes=(SIZE // 8,) * 8, caps=Caps.of(), link=LINK)

    def predict(changes: Mapping[str, Value]) -> Prediction:
        step_ns = ({4: 95, 8: 80}[int(changes["fsdp.units"] or 0)] - 20 * ("fsdp.within_hosts" in changes)) * MS
        ends = {"low_ns": step_ns - 10 * MS, "high_ns": step_ns + 10 * MS}
        return Prediction.only(WHY, changes=dict(changes), step_ns=step_ns, **ends)

    found = with_units(strategies(facts("aabb"), measured(), LINK, STEP, FLOOR), model, predict)
    sharded, hybrid = found[-2:]
    assert (sharded.name, sharded.low_ns, sharded.high_ns) == ("FSDP, 8 units", 70 * MS, 90 * MS)
    assert (sharded.step_ns, hybrid.step_ns) == (80 * MS, 60 * MS)
    assert (hybrid.name, hybrid.high_ns, hybrid.low_ns) == ("HSDP", 70 * MS, 50 * MS)
    assert "high_ns" not in {**sharded.missing, **hybrid.missing}


def test_memory_is_compared_where_no_step_is():
    """No link is known of this run; ZeRO-1 spares each of two ranks a half of the optimizer's state all the same."""
    run, recorded = measured_of([str(Path(__file__).parent / "runs" / "wide-layers-ddp")], 1, cached=False, links=None)
    found = compare(run, recorded)
    assert (found.strategies, found.known("measured_ns")) == ([], None)
    zero, fsdp = found.memory
    assert [peak.changes for peak in (zero, fsdp)] == [{"optimizer.sharded": True}, {"wrapper": "fsdp"}]
    assert zero.now_bytes - zero.peak_bytes == run.facts[0].tensors.state_bytes // 2
    assert fsdp.peak_bytes < zero.peak_bytes


@pytest.mark.parametrize(("optimizer", "times"), [("SGD", 4), ("AdamW", 5)])
def test_what_the_optimizer_keeps(optimizer, times):
    assert told(own=facts(optimizer=optimizer))["DDP, unchanged"][0] == times * SIZE


def test_activations_of_a_gpu_come_on_top_and_may_be_too_much():
    memory = MemoryFigures.only(
        WHY, rank=0, device="cuda:0", basis="run", capacity_bytes=10 * SIZE, peak_allocated_bytes=12 * SIZE
    )
    run = measured(memory=[memory])
    found = strategies(facts(), run, LINK, STEP, FLOOR)
    assert [one.rank_bytes - one.state_bytes for one in found] == [7 * SIZE] * 5
    assert not too_large(run, found)  # 8 of 10
    tight = measured(memory=[memory.model_copy(update={"capacity_bytes": 8 * SIZE})])
    assert too_large(tight, found)
    without = strategies(facts(), measured(), LINK, STEP, FLOOR)
    assert without[0].known("rank_bytes") is None
    assert not too_large(measured(), without)


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ([], "needs a recording of a DistributedDataParallel module"),
        (facts(ddp=[]), "needs a recording of a DistributedDataParallel module"),
        (facts(fsdp=[FsdpFacts(2)]), "needs a recording of a DistributedDataParallel module"),
        (facts(engine="deepspeed"), "needs a recording of a DistributedDataParallel module"),
        (facts(optimizer="ZeroRedundancyOptimizer"), "an optimizer that is not sharded"),
        (facts(optimizers=[]), "an optimizer that is not sharded"),
        (facts(ddp=[DdpFacts("Net")]), "gradient sizes were not recorded"),
        (facts(optimizer="Muon"), "the size of Muon's state per parameter is unknown"),
    ],
)
def test_where_there_is_nothing_to_compare(own, why):
    with pytest.raises(Missing, match=why):
        strategies(own, measured(), LINK, STEP, FLOOR)


def whatif(*words: str) -> subprocess.CompletedProcess[str]:
    return in_process.dptune("whatif", "--no-cache", *words, COLUMNS="120")


def test_a_recording_with_its_link_is_compared():
    done = whatif(str(SAMPLES / "accumulation_without_no_sync"), "--strategies", "--format", "json")
    assert done.returncode == 0, done.stderr
    own = json.loads(done.stdout)
    names = {one["name"] for one in own["strategies"]}
    assert {"DDP, unchanged", "DDP, 1/4 as often", "ZeRO-1"} <= names
    assert any(name.startswith("FSDP") for name in names)
    first = own["strategies"][0]
    assert first["low_ns"] == first["high_ns"] == own["measured_ns"]
    assert all(one["high_ns"] is None or one["low_ns"] <= one["high_ns"] for one in own["strategies"])


def test_what_cannot_be_compared_is_said():
    done = whatif(str(SAMPLES / "starved_loader"), "--strategies", "--set", "ddp.no_sync=true")
    assert done.returncode == 2
    assert "--strategies cannot be combined with changes" in done.stderr


@pytest.mark.long
def test_a_gpu_recording_of_units_is_compared():
    sample = str(SAMPLES / "gpu" / "ranks-nccl-fsdp")
    own = json.loads(whatif(sample, "--strategies", "--format", "json").stdout)
    found = {one["name"]: one for one in own["strategies"]}
    assert [*found] == ["FSDP, unchanged", "FSDP, kept gathered", "DDP"]
    assert found["FSDP, unchanged"]["low_ns"] == found["FSDP, unchanged"]["high_ns"] == own["measured_ns"]
    whole = load([str(SAMPLES / "gpu" / "ranks-nccl-ddp")]).facts[0].ddp[0].gradient_bytes  # of the same model
    states = {name: one["state_bytes"] for name, one in found.items()}
    assert states == {"FSDP, unchanged": 2 * whole, "FSDP, kept gathered": 3 * whole, "DDP": 5 * whole}  # AdamW
    model = reading.modelled(Path(sample))
    changes = {"FSDP, kept gathered": {"fsdp.reshard_after_forward": False}, "DDP": {"wrapper": "ddp"}}
    for name, change in changes.items():
        alone = model.predict(change)
        assert [found[name][of_step] for of_step in TIMES] == [alone.known(of_step) for of_step in TIMES]
        assert "did not measure tensors" in found[name]["missing"]["rank_bytes"]


@pytest.mark.long
def test_a_gpu_recording_of_ddp_is_compared_over_its_own_link():
    own = json.loads(whatif(str(SAMPLES / "gpu" / "ranks-nccl-ddp"), "--strategies", "--format", "json").stdout)
    assert {"DDP, unchanged", "DDP, 1/2 as often", "ZeRO-1", "FSDP"} <= {one["name"] for one in own["strategies"]}
    assert all(one["rank_bytes"] for one in own["strategies"])


@pytest.mark.long
def test_units_of_a_trace_alone_are_compared_without_the_optimizers_state(tmp_path):
    """Without facts of dptune the optimizer is unknown; gradients that are reduced in both passes can be in one."""
    run = machine.drawn(3, 2).without_noise(), replace(settings.drawn(3, 2), **UNITS)
    pairs.write_traces(run, pairs.simulated(run, traced=True, steps=pairs.ALIKE), tmp_path, steps=pairs.ALIKE)
    with keeping(tmp_path):
        own = json.loads(whatif(str(tmp_path), "--strategies", "--format", "json").stdout)
        page = whatif(str(tmp_path), "--strategies").stdout
    names = ["FSDP, unchanged", "FSDP, kept gathered", "FSDP, reduced once", "DDP"]
    assert [one["name"] for one in own["strategies"]] == names
    for one in own["strategies"]:
        assert one["state_bytes"] is None
        assert "optimizer's state" in one["missing"]["state_bytes"]
        assert one["low_ns"] <= one["high_ns"]
    assert "the size of the optimizer's state per parameter is unknown" in page


@pytest.mark.long
def test_one_rank_has_nothing_to_share():
    done = whatif(str(SAMPLES / "gpu" / "predict-base"), "--strategies")
    assert "single rank does not communicate" in done.stdout


@pytest.mark.long
def test_units_of_unknown_size_are_compared_by_their_steps(findings):
    """Ranges of reduce-scatters are missing as well there: DDP in their place is not predicted."""
    made = str(findings / "traces" / "made_fsdp2_without_prefetch")
    own = json.loads(whatif(made, "--strategies", "--format", "json").stdout)
    kept = next(one for one in own["strategies"] if one["name"] == "FSDP, kept gathered")
    assert kept["low_ns"] < kept["high_ns"] < own["measured_ns"]
    assert kept["low_ns"] < kept["step_ns"] < kept["high_ns"]
    assert "optimizer's state" in kept["missing"]["state_bytes"]
    ddp = next(one for one in own["strategies"] if one["name"] == "DDP")
    assert (ddp["step_ns"], ddp["low_ns"], ddp["high_ns"]) == (None, None, None)  # no bound of 0 ms
    assert all("reduce-scatters" in ddp["missing"][name] for name in ("step_ns", "low_ns", "high_ns"))


@pytest.mark.parametrize(
    "sample",
    [
        "accumulation_without_no_sync",
        *(pytest.param(sample, marks=pytest.mark.thorough) for sample in ("gpu/ranks-nccl-ddp", "gpu/ranks-nccl-fsdp")),
    ],
)
@pytest.mark.long
def test_strategies_are_a_table_on_80_columns(sample):
    page = in_process.dptune("whatif", str(SAMPLES / sample), "--strategies", COLUMNS="80").stdout.splitlines()
    at = next(number for number, line in enumerate(page) if line.startswith("Strategies"))
    assert page[at + 1].split()[0] == "strategy"
    rows = page[at + 2 : at + 5]
    assert all(line.startswith(("  DDP", "  FSDP")) for line in rows), rows
    assert max(map(len, page)) <= 80


def test_of_shards_whose_step_is_a_range_both_ends_are_kept():
    """The best middle is of 4 units."""
    model = StepModel(steps={}, gradient_bytes=(SIZE // 8,) * 8, caps=Caps.of(), link=LINK)

    def predict(changes: Mapping[str, Value]) -> Prediction:
        ends = {"low_ns": 40 * MS, "high_ns": (90 if changes["fsdp.units"] == 4 else 99) * MS}
        return Prediction.only("a range", changes=dict(changes), **ends)

    sharded = with_units(strategies(facts("abcd"), measured(), LINK, STEP, FLOOR), model, predict)[-1]
    assert (sharded.name, sharded.low_ns, sharded.high_ns) == ("FSDP, 4 units", 40 * MS, 90 * MS)
    assert (sharded.known("step_ns"), sharded.missing["step_ns"]) == (None, "a range")
