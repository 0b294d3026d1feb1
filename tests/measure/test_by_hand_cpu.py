"""Two ranks of a gloo run as `dptune profile` leaves it, every figure by hand. Times in microseconds.

Main thread   loader [0,100) with an operator inside; mm [100,400); c10d call [400,420)         step 7 [0,1000)
              mm [1100,1300); backward [1300,1500) with a c10d call in [1450,1500)              step 8 [1000,2000)
Gloo thread   all_reduce [420,700), a division after it; all_reduce [1480,1600)
"""

from types import SimpleNamespace

import numpy as np
import pytest

from dptune.measure import measure
from dptune.measure.intervals import Intervals
from dptune.measure.steps import input_wait
from dptune.measure.steps.input_wait import LoaderWait
from dptune.measured import Missing
from dptune.runfile import json_files
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import DeviceFacts, Facts
from dptune.runfile.loader import LoaderFacts, PreparingFacts
from dptune.runfile.record import RunRecord
from dptune.runfile.window import Window
from dptune.trace import load

from .handmade import BACKWARD, LOADER, US, annotation, load_events, measure_events, operator, step, write

LIGHT = [
    step(7, 0, 1000),
    annotation(LOADER, 0, 100),
    operator("aten::stack", 20, 60),
    operator("aten::mm", 100, 400),
    operator("aten::add", 150, 200),
    operator("c10d::allreduce_", 400, 420),
    annotation("gloo:all_reduce", 420, 700, thread=2),
    operator("aten::div", 700, 710, thread=2),
    step(8, 1000, 2000),
    operator("aten::mm", 1100, 1300),
    operator(BACKWARD, 1300, 1500),
    operator("c10d::allreduce_", 1450, 1500),
    annotation("gloo:all_reduce", 1480, 1600, thread=2),
]
SHAPES = {"Input Dims": [[1000]], "Input type": ["float"]}
DETAILED = [
    step(11, 0, 1000),
    operator("aten::mm", 100, 400),
    annotation("gloo:all_reduce", 420, 700, thread=2, **SHAPES),
]


def facts(rank):
    durations = [[800, 1000, 1200], [900, 1000, 1500]][rank]
    untraced = Window(
        "untraced",
        4,
        durations_ns=[time * US for time in durations],
        loader_wait_ns=[100 * US] * 3,
        loader_batches=[2] * 3,
        loader_samples=[32] * 3,
        backwards=[2] * 3,
        unsynced_backwards=[1] * 3,
    )
    light = Window("light", 7, durations_ns=[1000 * US] * 2)
    detailed = Window("detailed", 11, durations_ns=[1400 * US])
    ddp = DdpFacts("Net", rebuilt_bucket_sizes=[4444])
    device = DeviceFacts("cpu", name="x86_64")
    windows = [untraced, light, detailed]
    return Facts(rank, world_size=2, host="box", backend="gloo", device=device, windows=windows, ddp=[ddp])


@pytest.fixture
def folder(tmp_path):
    for rank in range(2):
        for name, events in (("trace", LIGHT), ("detail.trace", DETAILED)):
            told = {"backend": "gloo", "rank": rank, "world_size": 2}
            told["pg_config"] = [{"pg_name": "0", "pg_size": 2}]
            write(tmp_path / f"rank-{rank:05d}.{name}.json.gz", events, distributedInfo=told)
        json_files.write(tmp_path / f"rank-{rank:05d}.facts.json", facts(rank))
    json_files.write(tmp_path / "run.json", RunRecord(world_size=2))
    return tmp_path


def test_step_accounts(folder):
    measured = measure(load([folder]))
    for rank in measured.ranks:
        (device,) = rank.devices
        assert (device.device, device.device_operations, device.kernels) == ("cpu", 7, 0)
        first, second = device.steps
        assert (first.number, second.number) == (7, 8)
        assert first.account.compute_ns == 300 * US
        assert first.account.exposed_communication_ns == first.account.communication_ns == 280 * US
        assert first.account.input_idle_ns == 100 * US
        assert first.account.sync_idle_ns == 20 * US  # in the c10d call, before gloo runs
        assert first.account.host_idle_ns == 300 * US
        assert second.account.compute_ns == 350 * US
        assert second.account.communication_ns == 120 * US
        assert second.account.sync_idle_ns == 30 * US
        assert second.account.host_idle_ns == 500 * US
        assert device.whole.window_ns == 1580 * US
        assert device.whole.busy_ns == (650 + 400) * US
        assert device.whole.input_idle_ns == 80 * US
    assert measured.account.window_ns == 4000 * US


def test_figures_from_the_facts(folder):
    measured = measure(load([folder]))
    assert measured.step.model_dump() == {
        "missing": {},
        "basis": "untraced",
        "time_ns": 1000 * US,
        "repeats_ns": [],
        "untraced_median_ns": 1000 * US,
        "untraced_q1_ns": 925 * US,
        "untraced_q3_ns": 1175 * US,
        "untraced_mean_ns": 1_066_666,  # between 1,000 and 1,133 1/3 us
        "untraced_steps": 3,
        "untraced_period": 1,
        "untraced_outliers": 0,
        "longest_outlier_ns": 0,
        "longest_outlier_wait_ns": 0,
        "light_median_ns": 1000 * US,
        "light_q1_ns": 1000 * US,
        "light_q3_ns": 1000 * US,
        "light_steps": 2,
        "detailed_median_ns": 1400 * US,
        "detailed_steps": 1,
    }
    assert (measured.world_size, measured.backend, measured.device_kind) == (2, "gloo", "cpu")
    assert measured.samples_per_step == 64
    assert measured.input.basis == "untraced"
    assert measured.input.wait_share == pytest.approx((300 / 3000 + 300 / 3400) / 2)
    assert measured.input.wait_ns == round((300 / 3000 + 300 / 3400) / 2 * 1000 * US)  # of steps of 1000
    assert [rank.loader_wait_share for rank in measured.ranks] == pytest.approx([300 / 3000, 300 / 3400])
    assert measured.accumulation.backwards_per_step == 2
    assert measured.accumulation.synchronised_backwards_per_step == 1
    assert (measured.ranks[1].host, measured.ranks[1].untraced_median_ns) == ("box", 1000 * US)
    assert measured.matmul.tensor_cores is False
    assert "CPU" in measured.matmul.missing["fp32_share"]
    assert measured.copies == []


def test_recorded_collections_of_garbage_are_idle_time_of_the_step(tmp_path):
    """[800,850) of the first step, in nanoseconds since the epoch."""
    base_ns = 10**18
    run = load_events(tmp_path, LIGHT, baseTimeNanoseconds=base_ns)
    collections_ns = [[base_ns + 800 * US, base_ns + 850 * US]]
    run.facts[0] = Facts(0, windows=[Window("light", 7, [1000 * US] * 2, collections_ns=collections_ns)])
    account = measure(run).account
    assert (account.gc_idle_ns, account.host_idle_ns) == (50 * US, (300 + 500 - 50) * US)


def collective(folder):
    (found,) = measure(load([folder])).collectives
    assert (found.kind, found.calls, found.calls_per_step) == ("all_reduce", 4, 1.0)
    assert (found.group, found.group_size) == ("0", 2)
    assert (found.median_ns, found.shortest_ns, found.total_ns) == (200 * US, 120 * US, 800 * US)
    return found


def test_sizes_come_from_the_detailed_window(folder):
    assert (collective(folder).message_bytes, collective(folder).dtype) == (4000, "float32")


def test_sizes_come_from_the_buckets_where_there_is_no_detailed_window(folder):
    for path in folder.glob("*.detail.*"):
        path.unlink()
    found = collective(folder)
    assert found.message_bytes == 4444
    assert found.missing == {"dtype": "the trace does not name the element type"}


@pytest.mark.parametrize("change", [{"comm_hook": "fp16_compress_hook"}, {"rebuilt_bucket_sizes": [1, 2, 3]}])
def test_sizes_are_missing_where_nothing_fits(folder, change):
    for path in folder.glob("*.detail.*"):
        path.write_bytes(b"")
    for rank in range(2):
        own = facts(rank)
        own.ddp[0] = DdpFacts("Net", **{"rebuilt_bucket_sizes": [4444], **change})
        json_files.write(folder / f"rank-{rank:05d}.facts.json", own)
    with pytest.raises(Missing, match="no input shapes for these collectives"):
        _ = collective(folder).message_bytes


def test_device_durations_go_before_host_durations(folder):
    own = facts(0)
    own.windows[0].device_durations_ns = [2000 * US] * 3
    json_files.write(folder / "rank-00000.facts.json", own)
    (folder / "rank-00001.facts.json").unlink()
    assert measure(load([folder])).step.time_ns == 2000 * US


def test_facts_without_traces_still_give_the_step_time(folder):
    for path in folder.glob("*.gz"):
        path.unlink()
    measured = measure(load([folder]))
    assert measured.step.time_ns == 1000 * US
    assert [rank.rank for rank in measured.ranks] == [0, 1]
    with pytest.raises(Missing, match="no trace was recorded"):
        _ = measured.account


def test_no_loader_is_not_a_wait_of_zero(folder):
    for rank in range(2):
        own = facts(rank)
        own.windows[0].loader_batches = [0] * 3
        own.windows[0].loader_samples = [0] * 3
        json_files.write(folder / f"rank-{rank:05d}.facts.json", own)
    measured = measure(load([folder]))
    with pytest.raises(Missing, match="no batch was drawn"):
        _ = measured.input.wait_share
    with pytest.raises(Missing, match="no batch was drawn"):
        _ = measured.samples_per_step


def test_fsdp_kinds_come_from_the_operator(tmp_path):
    renamed = [{**e, "name": e["name"].replace("c10d::allreduce_", "c10d::_reduce_scatter_base_")} for e in LIGHT]
    (found,) = measure_events(tmp_path, renamed).collectives
    assert found.kind == "reduce_scatter"


def test_waits_of_traced_steps_do_not_mix_with_untraced_ones():
    found = input_wait.input_figures([LoaderWait(300, 3000, 3, 1000), LoaderWait(1200, 2400, 3)])
    assert (found.basis, found.wait_share, found.wait_ns) == ("untraced", 0.1, 100)


def test_what_is_left_of_a_traced_wait_if_the_profiler_adds_10_us_per_event():
    """Of 300 and 500 us, 20 and 10 events leave 100 and 400; a rank whose events were not read counts in neither."""
    waits = [LoaderWait(300_000, 1_000_000, 3, events=20), LoaderWait(500_000, 1_000_000, 3, events=10)]
    assert input_wait.input_figures([*waits, LoaderWait(9, 10, 3)]).least_share == 0.25
    assert input_wait.input_figures([LoaderWait(500_000, 1_000_000, 3, events=60)]).least_share == 0.0
    assert input_wait.input_figures([LoaderWait(300_000, 1_000_000, 3, 1000, events=20)]).least_share == 0.0


def test_events_of_a_traced_wait_by_hand(tmp_path):
    """Two steps of 1,000 us wait 200 and 100 us, in which two operators, each step and each wait start: 6."""
    listed = [
        step(1, 0, 1000),
        annotation(LOADER, 0, 200),
        operator("aten::stack", 20, 60),
        operator("aten::select", 30, 40),
        operator("aten::mm", 300, 900),
        step(2, 1000, 2000),
        annotation(LOADER, 1000, 1100),
        operator("aten::mm", 1200, 1900),
        step(3, 2000, 3000),
        operator("aten::mm", 2200, 2900),
    ]
    found = measure_events(tmp_path, listed).input
    assert (found.basis, found.wait_share) == ("traced", 300 / 3000)
    assert found.least_share == (300 - 10 * 6) / 3000


def test_a_validation_between_two_epochs_is_not_the_wait_of_a_step():
    """Three steps draw one batch and wait 1 ms of 10; a fourth draws 60 for a validation and waits 600 ms."""
    window = Window("untraced", 6, loader_batches=[1, 1, 61, 1], durations_ns=[10, 10, 900, 10])
    window.loader_wait_ns, window.loader_cpu_ns = [1, 1, 600, 1], [1, 0, 600, 0]
    own = Facts(rank=0, windows=[window])
    assert input_wait.waits(own, None) == LoaderWait(waited_ns=3, steps_ns=30, steps=3, median_ns=10)
    found = input_wait.input_figures([LoaderWait(3, 30, 3, 10)])
    assert (found.wait_share, found.wait_ns) == (pytest.approx(0.1), 1)
    assert input_wait.computed_share([own]) == pytest.approx(1 / 3)


def test_what_preparing_a_batch_is_made_of() -> None:
    """Ten batches: 60 ms of reading, of which 15 compute, and 20 ms of collating, of which all do."""
    parts = PreparingFacts(10, 60_000_000, 15_000_000, 20_000_000, 20_000_000, "Rows.__getitem__ (a.py:3)")
    quick = LoaderFacts(batches_drawn=20, preparing=PreparingFacts(1, 1, 1, 1, 1))
    slow = [LoaderFacts(batches_drawn=3), LoaderFacts(batches_drawn=20, preparing=parts)]
    waits = [Window("untraced", 1, durations_ns=[9], loader_wait_ns=[wait]) for wait in (1, 5)]
    facts = [Facts(0, loaders=[quick], windows=[waits[0]]), Facts(1, loaders=slow, windows=[waits[1]])]
    told = input_wait.preparing(input_wait.drawn_from(facts))
    assert told is not None
    assert told.batch_ns == 8_000_000
    assert (told.reading_share, told.collating_share) == (0.75, 0.25)
    assert (told.reading_computed_share, told.computed_share) == (0.25, 35 / 80)
    assert (told.read_by, told.collated_by) == ("Rows.__getitem__ (a.py:3)", "")


@pytest.mark.parametrize("impossible", [PreparingFacts(0, 5, 5, 5, 5), PreparingFacts(5), PreparingFacts(5, -1, 0, 9)])
def test_parts_that_no_loader_has_are_none(impossible: PreparingFacts) -> None:
    assert input_wait.preparing(LoaderFacts(preparing=impossible)) is None
    assert input_wait.preparing(input_wait.drawn_from([])) is None


def test_what_waits_inside_an_operator_for_its_collective_is_no_compute(tmp_path):
    """A Function of Python: it computes 10 us, asks for an all-reduce, waits 60 us for it, and computes 5 us."""
    events = [
        step(0, 0, 100),
        operator("autograd::engine::evaluate_function: _AllReduceBackward", 10, 90),
        operator("_AllReduceBackward", 10, 90),
        operator("aten::mul", 10, 20),
        operator("c10d::allreduce_", 20, 22),
        operator("gloo:all_reduce", 22, 80, thread=9),
        operator("aten::add", 84, 89),
        operator("aten::sub", 92, 95),
        operator("AddBackward0", 95, 99),
    ]
    account = measure_events(tmp_path, events).account
    assert account.compute_ns == 22 * US
    assert account.exposed_communication_ns == 58 * US
    assert account.idle_ns == 20 * US


def test_what_a_wait_is_besides_preparing_batches():
    """Steps of one batch wait 10, 20, 30: 24 of the 60 are the sampler's. A step of a validation does not count."""
    window = Window("untraced", 3, [100] * 4, loader_wait_ns=[10, 20, 30, 900], loader_batches=[1, 1, 1, 9])
    own = Facts(rank=0, windows=[window])
    assert input_wait.other_share([own]) == 0.0  # an older recording
    window.loader_fetch_ns = [6, 12, 18, 900]
    assert input_wait.other_share([own]) == pytest.approx(0.4)
    assert input_wait.input_figures([LoaderWait(10, 100, 1, 1000)], [own]).other_share == pytest.approx(0.4)
    window.loader_fetch_ns = [0, 0, 0, 900]  # workers prepare those of the steps
    assert input_wait.other_share([own]) == 0.0


def test_the_wait_of_uneven_traced_steps_is_its_share_of_their_mean() -> None:
    """Steps of 100, 100 and 400 us, which wait 10, 10 and 100: 20 % of the time, and 40 us a step."""
    spans = [(0, 100_000), (100_000, 200_000), (200_000, 600_000)]
    steps = [SimpleNamespace(start_ns=start, end_ns=end, length_ns=end - start) for start, end in spans]
    devices = [SimpleNamespace(windows=steps)]
    loading = Intervals.union(np.array([0, 100_000, 200_000]), np.array([10_000, 110_000, 300_000]))
    view = SimpleNamespace(windows=3, devices=devices, host=SimpleNamespace(loading=loading), no_steps="", whole=False)
    wait = input_wait.waits(None, view)
    found = input_wait.input_figures([wait])
    assert (wait.share, found.wait_share, found.wait_ns, found.basis) == (0.2, 0.2, 40_000, "traced")
