"""Two ranks of a GPU run, small enough to compute every figure by hand. Times in microseconds.

Host     step 3 [0,100)                     step 4 [100,200)                     launched later
Device   gemm   [50,80)   rank 0, rank 1    gemm   [150,180), launched [142,147) [300,310), launched [205,210)
         nccl   [70,110) on 0, [90,110) on 1       [160,190)
         copy   [105,115)   memset [112,120)
Loader                     [118,140)
Windows         [50,150)                           [150,190)

Both ranks take part in both all-reduces: the first moves data in [90,110), and rank 0 waits in [70,90) for rank 1.
Idle in step 3: [120,150): loader to 140, then nothing for 2, launching for 5, then 3 until the kernel begins. On rank 1
[80,90) too, in which the all-reduce that was launched at 20 does not begin.
"""

import json

import pytest

from dptune.measure import measure
from dptune.measured import IDLE, Account, Missing
from dptune.trace import load

from .handmade import (
    LOADER,
    US,
    all_reduce,
    annotation,
    copy,
    event,
    kernel,
    launch,
    measure_events,
    on_device,
    operator,
    step,
)

HEADER = {"deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0}]}


def events(rank):
    launches = {1: 10, 2: 20, 3: 30, 4: 40, 5: 142, 6: 148, 7: 205}
    return [
        step(3, 0, 100),
        step(4, 100, 200),
        on_device("gpu_user_annotation", "ProfilerStep#3", 50, 120, -1),
        annotation(LOADER, 118, 140),
        operator("triton_poi_fused_add_0", 0, 90, stream=7, device=0),
        *(launch(n, at, at + 5) for n, at in launches.items()),
        event("cuda_driver", "cuLaunchKernel", 121, 122, correlation=4),  # a later record of the same launch
        kernel("ampere_sgemm_128x64_tn", 50, 80, 1),
        kernel("vectorized_elementwise_kernel", 60, 65, 99),  # launched before recording began
        all_reduce(90 if rank else 70, 110, 2, elements=1000, group="0", group_size=2),
        copy("HtoD (Pageable -> Device)", 105, 115, 3, bytes=100),
        on_device("gpu_memset", "Memset (Device)", 112, 120, 4, bytes=8),
        kernel("ampere_s16816gemm_bf16_128x128", 150, 180, 5),
        all_reduce(160, 190, 6, elements=1000, group="0", group_size=2),
        kernel("vectorized_elementwise_kernel", 300, 310, 7),
    ]


@pytest.fixture
def measured(tmp_path):
    return measure_events(tmp_path, events(0), events(1), **HEADER)


def account(**classes_us):
    found = {name: classes_us.pop(name.removesuffix("_ns"), 0) * US for name in Account.model_fields}
    assert not classes_us
    exposed = sum(found[f"exposed_{part}_ns"] for part in ("transfer", "waiting", "unsplit"))
    return found | {"exposed_communication_ns": exposed, "idle_ns": sum(found[name] for name in IDLE)}


def test_step_accounts(measured):
    first, second = (rank.devices[0] for rank in measured.ranks)
    assert [(step.number, step.start_ns) for step in first.steps] == [(3, 50 * US), (4, 150 * US)]
    assert first.steps[0].account.model_dump() == account(
        window=100,
        compute=30,
        exposed_transfer=20,
        exposed_waiting=10,
        copy=5,
        memset=5,
        input_idle=20,
        launch_idle=8,
        host_idle=2,
        communication=40,
        hidden_communication=10,
    )
    assert second.steps[0].account.model_dump() == account(
        window=100,
        compute=30,
        exposed_transfer=20,
        copy=5,
        memset=5,
        input_idle=20,
        launch_idle=8,
        dependency_idle=10,
        host_idle=2,
        communication=20,
    )
    for rank in (first, second):
        assert rank.steps[1].account.model_dump() == account(
            window=40, compute=30, exposed_transfer=10, communication=30, hidden_communication=20
        )


def test_whole_account_and_counts(measured):
    first = measured.ranks[0].devices[0]
    assert (first.device, first.device_operations, first.kernels) == ("cuda:0", 8, 6)
    assert first.whole.model_dump() == account(
        window=260,
        compute=70,
        exposed_transfer=30,
        exposed_waiting=10,
        copy=5,
        memset=5,
        input_idle=20,
        launch_idle=8 + 95,
        host_idle=2 + 15,
        communication=70,
        hidden_communication=30,
    )


def test_the_run(measured):
    assert measured.account.model_dump() == account(
        window=280,
        compute=120,
        exposed_transfer=60,
        exposed_waiting=10,
        copy=10,
        memset=10,
        input_idle=40,
        launch_idle=16,
        dependency_idle=10,
        host_idle=4,
        communication=120,
        hidden_communication=50,
    )
    assert (measured.world_size, measured.backend, measured.device_kind) == (2, "nccl", "cuda")
    assert [rank.device_name for rank in measured.ranks] == ["NVIDIA A100-SXM4-80GB"] * 2
    assert measured.step.basis == "traced"
    assert (measured.step.time_ns, measured.step.light_steps) == (70 * US, 2)


def test_collectives(measured):
    (collective,) = measured.collectives
    assert collective.model_dump() == {
        "missing": {},
        "kind": "all_reduce",
        "group": "0",
        "group_size": 2,
        "dtype": "float32",
        "message_bytes": 4000,
        "calls": 4,
        "calls_per_step": 1.0,
        "calls_per_member": 1.0,
        "median_ns": 30 * US,
        "shortest_ns": 20 * US,
        "total_ns": 120 * US,
        "matched": "order",  # no call has a number
        "transfer_ns": 25 * US,  # 20 and 30
        "waiting_ns": 20 * US,
        "algbw_gb_per_s": 4000 / (25 * US),
        "busbw_gb_per_s": 4000 / (25 * US),  # 2 (n - 1) / n of two ranks is 1
    }


def test_who_comes_late_and_why(measured):
    """Rank 1 comes 20 us late to the first all-reduce, before which nothing is shared; to the second both at once."""
    first, second = (rank.arrival for rank in measured.ranks)
    assert [(step.number, step.lag_ns) for step in second.steps] == [(3, 20 * US), (4, 0)]
    assert [(step.number, step.lag_ns) for step in first.steps] == [(3, 0), (4, 0)]
    assert (second.collectives, second.last_share, second.lag_ns) == (2, 0.5, 10 * US)
    assert second.missing["cause"].startswith("no earlier collective")
    assert measured.straggler.model_dump(exclude={"missing", "differences"}) == {
        "rank": 1,
        "lag_ns": 10 * US,
        "late_share": 1.0,
        "steps_share": 0.5,
        "waiting_share": 10 / 280,
        "gain_share": 0.0,  # what comes before the first all-reduce is not compared
        "work_ratio": None,
    }
    assert [(rank.clock_ahead_ns, rank.known("clock_residual_ns")) for rank in measured.ranks] == [(0, None), (0, 0)]
    assert measured.ranks[0].missing["clock_residual_ns"] == "it is the rank that the others are compared with"


def test_copies(measured):
    (copy,) = measured.copies
    assert copy.model_dump(exclude={"sites"}) == {
        "missing": {"large_gb_per_s": "no copy is as large as 1 MiB, below which latency dominates"},
        "direction": "h2d",
        "pinned": False,
        "calls": 2,
        "calls_per_step": 0.5,
        "total_bytes": 200,
        "total_ns": 20 * US,
        "exposed_ns": 10 * US,
        "most_share": 5 / 140,  # the same on both ranks
        "most_held_share": 0.0,
        "hidden_ns": 10 * US,
        "step_share": 20 / 280,
        "gb_per_s": 200 / (20 * US),
        "large_gb_per_s": None,
        "blocking_calls": 0,  # tests/measure/test_copies.py has those that block
        "held_ns": 0,
    }
    assert [(site.calls_per_step, site.copy_bytes, site.every_step) for site in copy.sites] == [(0.5, 100, False)]


def test_input_and_matmul(measured):
    assert (measured.input.basis, measured.input.wait_ns) == ("traced", 11 * US)
    assert measured.input.wait_share == pytest.approx(22 / 140)  # of the windows, which last 70 each
    assert measured.matmul.tensor_cores is True
    assert measured.matmul.fp32_share == pytest.approx(60 / 280)
    assert measured.matmul.tensor_core_share == pytest.approx(60 / 280)


def test_what_a_foreign_trace_cannot_say_is_missing_with_a_reason(measured):
    for read, why in (
        (lambda: measured.samples_per_step, "no operator shows the batch size"),
        (lambda: measured.step.untraced_median_ns, "untraced steps"),
        (lambda: measured.step.detailed_median_ns, "no window with shapes and stacks"),
        (lambda: measured.accumulation.backwards_per_step, "where gradients are accumulated"),
        (lambda: measured.ranks[0].host, "does not name the host"),
    ):
        with pytest.raises(Missing, match=why):
            read()


def test_without_profiler_steps_only_the_whole_is_accounted_for(tmp_path):
    kept = [event for event in events(0) if "ProfilerStep" not in event["name"]]
    measured = measure_events(tmp_path, kept)
    (device,) = measured.ranks[0].devices
    assert device.steps == []
    assert device.whole.compute_ns == 70 * US
    with pytest.raises(Missing, match="no ProfilerStep marks"):
        _ = measured.account
    with pytest.raises(Missing, match="no ProfilerStep marks"):
        _ = measured.step.time_ns


def test_a_trace_that_breaks_off_has_no_steady_steps(tmp_path):
    text = json.dumps({"schemaVersion": 1, "traceEvents": events(0)})
    (tmp_path / "t.json").write_text(text[:-60])
    measured = measure(load([tmp_path / "t.json"]))
    assert measured.ranks[0].partial.startswith("after 20 whole events")
    assert measured.ranks[0].devices[0].steps == []
    with pytest.raises(Missing, match="breaks off"):
        _ = measured.account


def test_a_clock_that_no_machine_has_is_left_out(tmp_path):
    """Times since the epoch would not fit 64 bits: they are not counted from it, and all else is as it was."""
    measured = measure_events(tmp_path, events(0), events(1), baseTimeNanoseconds=2**63 - 1000)
    assert measured.straggler.rank == 1
    assert measured.account.exposed_waiting_ns == 10 * US
