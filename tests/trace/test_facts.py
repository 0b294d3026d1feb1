"""Facts that are wrong, doubled or absent: each is a finding, none a crash, and no run with one is sound."""

import json
import os
import sys

import pytest

from dptune.advise.known_facts import known
from dptune.errors import RunError, TraceError
from dptune.measure import measure
from dptune.measure.steps.accumulation import accumulation
from dptune.measured import Missing
from dptune.runfile import json_files
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import Facts
from dptune.runfile.record import RunRecord
from dptune.runfile.window import Window
from dptune.trace import load
from dptune.whatif import needed_facts

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
WINDOW = {"name": "untraced", "first_step": 1, "durations_ns": [5, 5], "loader_wait_ns": [1, 1]}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rank-00000.trace.json.gz").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [EVENT]}))
    json_files.write(tmp_path / "run.json", RunRecord())
    write(tmp_path)
    return tmp_path


def write(folder, name="rank-00000", **changed):
    facts = {"rank": 0, "world_size": 1, "windows": [WINDOW], **changed}
    (folder / f"{name}.facts.json").write_text(json.dumps(facts))


def findings(folder):
    run = load([folder])
    measure(run)
    assert {finding.level for finding in run.findings} <= {"partial"}
    return {finding.code: finding.text for finding in run.findings}


def test_possible_facts_are_no_finding(folder):
    assert findings(folder) == {}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"durations_ns": [5, 0]}, "a step took 0 ns"),
        ({"durations_ns": [5, -7]}, "a step took -7 ns"),
        ({"durations_ns": [5, 10**300]}, "a step took too large"),
        ({"device_durations_ns": [0, 0]}, "a step on the device took 0 ns"),
        ({"loader_wait_ns": [1, 6]}, "a step of 5 ns waited 6 ns"),
        ({"loader_wait_ns": [1, -1]}, "loader_wait_ns holds -1"),
        ({"backwards": [1]}, "backwards holds 1 steps and durations_ns 2"),
        ({"backwards": [1, 1], "unsynced_backwards": [1, 2]}, "2 of 1 backward calls"),
        ({"first_step": -1}, "begins with step -1"),
        ({"taken_share": 1.5}, "1.5 of the time of its cores were taken away"),
        ({"skipped_steps": -1}, "its skipped_steps is -1"),
        ({"trace_text_bytes": -1}, "its trace_text_bytes is -1"),
        ({"saving_ns": 2**70}, "its saving_ns is too large"),
        ({"taken_share": -0.1}, "-0.1 of the time of its cores were taken away"),
        ({"collections_ns": [[5, 3]]}, "it collected garbage at impossible times"),
        ({"collect_calls": [{"calls": -1, "spent_ns": 5}]}, "its counts or times of gc.collect() calls are impossible"),
    ],
)
def test_an_impossible_window_is_left_out(folder, changed, why):
    write(folder, windows=[{**WINDOW, **changed}, {**WINDOW, "name": "light"}])
    found = findings(folder)
    assert found["window-impossible"].startswith("rank 0: its window `untraced` is left out: ")
    assert why in found["window-impossible"]
    assert [window.name for window in load([folder]).facts[0].windows] == ["light"]


@pytest.mark.parametrize(
    "changed",
    [
        {"rank": -1},
        {"rank": 3},
        {"world_size": 0},
        {"world_size": 10**7},
        {"world_size": "2"},
    ],
)
def test_facts_of_no_run_are_unreadable(folder, changed):
    write(folder, **changed)
    assert set(findings(folder)) == {"file-unreadable", "facts-missing"}


LOADER, SGD = {"batch_size": 8}, {"name": "SGD"}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"loaders": [LOADER, {"num_workers": -3}]}, "loaders[1].num_workers = -3"),
        ({"loaders": [{"num_workers": 10**7}]}, "loaders[0].num_workers = 10000000"),
        ({"loaders": [{"batch_size": -8}]}, "loaders[0].batch_size = -8"),
        ({"loaders": [{"preparing": {"batches": -1}}]}, "loaders[0].preparing.batches = -1"),
        ({"loaders": [{"dataset_samples": 10**400}]}, "loaders[0].dataset_samples = a number of very many digits"),
        ({"optimizers": [{**SGD, "default_learning_rate": -0.1}]}, "optimizers[0].default_learning_rate = -0.1"),
        ({"optimizers": [{**SGD, "first_learning_rate": 1e30}]}, "optimizers[0].first_learning_rate = 1e+30"),
        ({"optimizers": [{**SGD, "betas": [0.9, -1.0]}]}, "optimizers[0].betas[1] = -1"),
        ({"device": {"kind": "cpu", "usable_cores": -2}}, "device.usable_cores = -2"),
        ({"device": {"kind": "cuda", "memory_bytes": 10**30}}, "device.memory_bytes = 1e+30"),
        ({"ddp": [{"module": "Net", "bucket_sizes": [1, -1]}]}, "ddp[0].bucket_sizes[1] = -1"),
        ({"steps": -1}, "steps = -1"),
    ],
)
def test_a_fact_with_a_number_that_no_run_has_is_left_out_and_the_others_stay(folder, changed, told):
    write(folder, torch="2.9", **changed)
    (name,) = changed
    text = f"rank 0: its fact `{name}` is left out: {told}, which no run has"
    assert findings(folder) == {"facts-left-out": text}
    facts = load([folder]).facts[0]
    assert getattr(facts, name) == getattr(Facts(0), name)
    assert (facts.torch, len(facts.windows)) == ("2.9", 1)
    assert facts.lacking(name) == f"`{name}` of rank 0 could not be read: {told}, which no run has"


def test_the_training_process_has_a_number_among_processes_that_draw(folder):
    generator = {"name": "Draws.rng", "kind": "Generator", "workers": [-1, 0], "epochs": [0, 0], "states": ["a", "b"]}
    write(folder, loaders=[LOADER | {"generators": [generator]}])
    (loader,) = load([folder]).facts[0].loaders
    assert loader.generators[0].workers == [-1, 0]
    assert findings(folder) == {}


HOOK = {"where": "train.py:3"}
REPEATED = {"module": "net", "step_ns": [9, 9], "again_ns": [1, 1], "graph_ns": [1, 1], "forward_ns": [5, 5]}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"hooks": [HOOK] * 20_000}, "hooks has 20,000 entries; the limit is 1,000"),
        ({"unreached": [{"optimizer": "SGD"}] * 1_001}, "unreached has 1,001 entries; the limit is 1,000"),
        ({"kept": {"looks": [{"step": 1}] * 1_001}}, "kept.looks has 1,001 entries; the limit is 1,000"),
        ({"windows": [WINDOW] * 17}, "windows has 17 entries; a recording has at most 16"),
        (
            {"repeated_forward": [REPEATED, {**REPEATED, "again_ns": [1]}]},
            "repeated_forward[1] has 2 step_ns, 1 again_ns, 2 graph_ns, 2 forward_ns for the same steps",
        ),
        (
            {"frozen_features": [{"module": "net", "step_ns": [9, 9], "spent_ns": [1, 1, 1]}]},
            "frozen_features[0] has 2 step_ns, 3 spent_ns for the same steps",
        ),
        (
            {"unread_results": [{"function": "f", "step_ns": [9], "again_ns": [1], "forward_ns": []}]},
            "unread_results[0] has 1 step_ns, 1 again_ns, 0 forward_ns for the same steps",
        ),
        (
            {"discarded_gradients": {"passes": [2, 2], "discarded": [1]}},
            "discarded_gradients has 2 passes, 1 discarded for the same steps",
        ),
    ],
)
def test_a_fact_of_more_entries_than_are_read_or_of_uneven_lists_is_left_out(folder, changed, why):
    write(folder, torch="2.9", **changed)
    (name,) = changed
    assert findings(folder)["facts-left-out"] == f"rank 0: its fact `{name}` is left out: {why}"
    facts = load([folder]).facts[0]
    assert getattr(facts, name) == getattr(Facts(0), name)
    assert facts.torch == "2.9"


def test_as_many_entries_as_are_read_are_no_finding(folder):
    write(folder, hooks=[HOOK] * 1_000, losses=[0.5] * 5_000)
    assert findings(folder) == {}
    assert len(load([folder]).facts[0].hooks) == 1_000


def test_of_windows_of_one_name_the_first_is_used(folder):
    write(folder, windows=[WINDOW, {**WINDOW, "first_step": 9}])
    assert findings(folder) == {
        "window-impossible": "rank 0: its window `untraced` is left out: another window before it has this name"
    }
    assert [window.first_step for window in load([folder]).facts[0].windows] == [1]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"environment": {"NCCL_DEBUG": 5}}, "`environment.NCCL_DEBUG` must be text, but is 5"),
        ({"environment": {"NCCL_DEBUG": ["x"]}}, "`environment.NCCL_DEBUG` must be text, but is a list"),
        ({"settings": {"a": {}}}, "`settings.a` must be true or false or a whole number or"),
        ({"ddp": 3}, "`ddp` must be a list, but is 3"),
        ({"loaders": [LOADER, {"num_workers": "2"}]}, '`loaders[1].num_workers` must be a whole number, but is "2"'),
        ({"optimizers": [{}]}, "`optimizers[0]` has no `name`"),
        ({"grad_scale": 10**400}, "`grad_scale` is a number with hundreds of digits"),
        ({"cpu_peak": {"threads": 1, "ranks": 1, "expected": 1, "dtypes": [5]}}, "`cpu_peak.dtypes[0]` must be an ob"),
    ],
)
def test_a_fact_of_another_type_is_left_out_and_the_others_stay(folder, changed, why):
    write(folder, torch="2.9", losses=[0.5], **changed)
    (name,) = changed
    found = findings(folder)
    assert set(found) == {"facts-left-out"}
    assert found["facts-left-out"].startswith(f"rank 0: its fact `{name}` is left out: {why}")
    facts = load([folder]).facts[0]
    assert getattr(facts, name) == getattr(Facts(0), name)
    assert (facts.torch, facts.losses, len(facts.windows)) == ("2.9", [0.5], 1)


@pytest.mark.parametrize("value", ["no", "False", -1, 1, 0.5])
def test_a_switch_that_is_neither_on_nor_off_is_left_out(folder, value):
    write(folder, settings={"anomaly_mode": value, "default_dtype": "torch.float32"})
    why = f"it must be true or false, but is {json.dumps(value)}"
    assert findings(folder) == {"facts-left-out": f"rank 0: its fact `settings.anomaly_mode` is left out: {why}"}
    facts = load([folder]).facts[0]
    assert facts.settings == {"default_dtype": "torch.float32"}
    assert facts.unread == {"anomaly_mode": why}  # so that no comparison takes it for unset


H200 = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "totalGlobalMem": 150_000_000_000}


@pytest.mark.parametrize(
    ("device", "listed", "left_out", "why"),
    [
        ({"compute_capability": "9.0", "memory_bytes": 149_000_000_000}, [H200], "", ""),
        ({"compute_capability": "7.0"}, [H200], "compute_capability", "it is 7.0, and the trace lists 9.0"),
        ({"compute_capability": "7.0"}, [], "compute_capability", "it is 7.0, and 'NVIDIA H200' has 9.0"),
        ({"name": "Tesla T4"}, [H200], "name", "it is 'Tesla T4', and the trace lists 'NVIDIA H200'"),
        ({"name": "Tesla T4", "index": 3}, [H200, {**H200, "id": 1}], "", ""),  # which of them is not known
        ({"name": "AMD Instinct MI300X", "compute_capability": "9.4"}, [], "", ""),
        (
            {"memory_bytes": 80_000_000_000},
            [H200],
            "memory_bytes",
            "it is 80,000,000,000, and the trace lists 150,000,000,000",
        ),
    ],
)
def test_a_fact_about_the_gpu_that_the_trace_or_its_name_contradicts_is_left_out(folder, device, listed, left_out, why):
    trace = {"schemaVersion": 1, "deviceProperties": listed, "traceEvents": [EVENT]}
    (folder / "rank-00000.trace.json.gz").write_text(json.dumps(trace))
    write(folder, device={"kind": "cuda", "name": "NVIDIA H200", "index": 0, **device})
    text = f"rank 0: its fact `device.{left_out}` is left out: {why}"
    assert findings(folder) == ({"facts-left-out": text} if left_out else {})
    if left_out:
        assert getattr(load([folder]).facts[0].device, left_out) is None


def test_of_windows_only_the_odd_one_is_left_out(folder):
    write(folder, windows=[{**WINDOW, "durations_ns": [5, True]}, {**WINDOW, "name": "light"}])
    why = "`windows[0].durations_ns[1]` must be a whole number, but is true"
    assert findings(folder) == {"facts-left-out": f"rank 0: its fact `windows[0]` is left out: {why}"}
    assert [window.name for window in load([folder]).facts[0].windows] == ["light"]
    write(folder, windows=5)
    assert set(findings(folder)) == {"facts-left-out", "windows-missing"}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"tokens_per_step": "many"}, 'a field: `tokens_per_step` must be a whole number, but is "many"'),
        (
            {"tokens_per_step": [], "ending": 5},
            "2 fields: `tokens_per_step` must be a whole number, but is a list, and others",
        ),
        ({"cards": [{"index": 0}, {"name": "H200"}]}, "a field: `cards[1]` has no `index`"),
    ],
)
def test_a_record_is_read_without_the_fields_that_do_not_fit(folder, changed, text):
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "command": ["python", "train.py"], **changed}))
    assert findings(folder) == {"record-left-out": f"run.json is read without {text}"}
    found = load([folder]).record
    assert found is not None
    assert (found.command, found.tokens_per_step) == (["python", "train.py"], None)
    assert [card.index for card in found.cards] == ([0] if "cards" in changed else [])


def test_many_odd_facts_are_one_finding(folder):
    write(folder, ddp=1, fsdp=2, loaders=3, optimizers=[{**SGD, "parameters": -4}], steps=-5)
    assert findings(folder)["facts-left-out"] == (
        "rank 0: 5 of its facts are left out: `ddp` (`ddp` must be a list, but is 1); `fsdp` (`fsdp` must be a list, "
        "but is 2); `loaders` (`loaders` must be a list, but is 3); and 2 more"
    )


def test_no_rule_takes_a_fact_that_was_left_out_for_one_that_is_not_so(folder):
    """bf16 autocast is on; as its fact is text of another type, nothing recommends or predicts it."""
    write(folder, autocast=16)
    facts = load([folder]).facts[0]
    guarded = known(facts)
    assert (guarded.rank, guarded.windows, facts.autocast) == (0, facts.windows, None)
    with pytest.raises(Missing, match="`autocast` of rank 0 could not be read: `autocast` must be text, but is 16"):
        assert guarded.autocast is None
    with pytest.raises(Missing, match="`autocast` of rank 0"):
        needed_facts.check([facts])
    needed_facts.check([Facts(0)])
    read_earlier = Facts(0, unread={"ddp": "why"}, ddp=[DdpFacts("Net")])
    assert known(read_earlier) is read_earlier
    with pytest.raises(Missing, match="`environment` of rank 0"):
        assert known(Facts(0, unread={"environment": "why"})).debug_switches == {}


def test_why_passes_average_nothing_is_not_claimed_without_the_facts():
    window = Window("untraced", 1, durations_ns=[5], backwards=[1])
    facts = Facts(0, world_size=2, windows=[window], unread={"ddp": "`ddp` must be a list, but is 3"})
    missing = accumulation([facts]).missing["synchronised_backwards_per_step"]
    assert missing == "`ddp` of rank 0 could not be read: `ddp` must be a list, but is 3"


@pytest.mark.parametrize(
    "changed",
    [
        {"optimizers": [{**SGD, "learning_rates": [0.0, -0.01, float("nan")], "default_learning_rate": 0.0}]},
        {"optimizers": [{**SGD, "first_learning_rate": "inf"}], "losses": [-3.5, 1e30]},
        {"loaders": [{"num_workers": 0, "sampler_epoch": -1, "dataset_samples": sys.maxsize}], "local_rank": -1},
        {"ddp": [{"module": "Net", "bucket_cap_bytes": -1}]},
        {"noise": {"of_steps": [1e25, "inf"]}, "grad_scale": 2.0**70},
        {"settings": {"seed": -5}},
    ],
)
def test_odd_numbers_that_a_run_may_have_are_taken(folder, changed):
    write(folder, **changed)
    assert findings(folder) == {}


def test_what_facts_lack_is_said_with_what_to_do(folder):
    (folder / "rank-00000.facts.json").write_text("{}")
    told = "rank-00000.facts.json: it has no `rank`; restore the original file, or record again"
    assert findings(folder)["file-unreadable"] == f"{folder.name}: {told}"


def test_facts_that_may_not_be_read_are_said_to_be(folder):
    (folder / "rank-00000.facts.json").unlink()
    (folder / "rank-00000.facts.json").symlink_to(folder / "gone")
    told = findings(folder)["file-unreadable"]
    assert "rank-00000.facts.json cannot be read: No such file or directory;" in told


def test_deep_nesting_is_unreadable(folder):
    (folder / "rank-00000.facts.json").write_text("[" * 200_000)
    assert "nested too deeply" in findings(folder)["file-unreadable"]


def test_two_facts_files_of_one_rank(folder):
    write(folder, "rank-0")
    assert "two facts files claim rank 0" in findings(folder)["facts-duplicate"]


@pytest.mark.parametrize("window", ["trace", "detail.trace"])
def test_two_traces_of_one_rank_and_window(folder, window):
    for name in ("rank-0", "rank-00000"):
        (folder / f"{name}.{window}.json.gz").write_text((folder / "rank-00000.trace.json.gz").read_text())
    told = f"two files claim rank 0: rank-0.{window}.json.gz is used, rank-00000.{window}.json.gz left out"
    assert findings(folder)["rank-duplicate"] == told


def test_no_facts_beside_a_record(folder):
    (folder / "rank-00000.facts.json").unlink()
    assert findings(folder) == {"facts-missing": "rank 0 has a trace but no facts"}


def test_facts_without_windows(folder):
    write(folder, windows=[])
    assert set(findings(folder)) == {"windows-missing"}


@pytest.mark.parametrize("name", ["run.json", "rank-00000.facts.json", "rank-00000.trace.json.gz"])
@pytest.mark.parametrize("device", [True, False])
def test_pipes_and_devices_are_not_opened(folder, name, device):
    (folder / name).unlink()
    if device:
        (folder / name).symlink_to("/dev/zero")
    else:
        os.mkfifo(folder / name)
    assert "is not a regular file" in findings(folder)["file-unreadable"]


def test_a_pipe_given_as_trace_or_latest(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(TraceError, match="not a regular file"):
        load([tmp_path / "pipe.json"])
    os.mkfifo(tmp_path / "latest")
    with pytest.raises(RunError, match="not a regular file"):
        load([tmp_path])


def test_traces_that_lost_record_and_facts_are_traces(folder):
    (folder / "run.json").unlink()
    (folder / "rank-00000.facts.json").unlink()
    (folder / "rank-00000.detail.trace.json.gz").write_text("x")
    run = load([folder])
    assert ([rank.rank for rank in run.ranks], run.findings) == ([0], [])


def test_latest_names_only_a_folder_beside_it(folder):
    runs = folder / "runs"
    (runs / "own").mkdir(parents=True)
    for name in (str(folder), "..", "own/..", "../", "."):
        (runs / "latest").write_text(name)
        with pytest.raises(RunError, match="holds no trace files"):
            load([runs])
