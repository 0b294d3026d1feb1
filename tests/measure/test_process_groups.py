"""What process groups are for: by description, by their collectives, and in rules that are about gradients."""

import gzip
import json

import pytest

from dptune.measure import measure
from dptune.measure.communication.process_groups import process_groups, replicas
from dptune.measure.views import view
from dptune.measured import CommunicationFigures, Missing
from dptune.present.process_groups import group_name, group_rows
from dptune.present.sections.overlap import collective_name
from dptune.testing import figures
from dptune.trace import load

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import BACKWARD, annotation, launched, load_events, measure_events, operator, step

ACCUMULATES = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def header(**groups):
    """A trace of rank 0 of 8 that lists these groups; a description, and ranks or a size."""
    listed = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 8, "ranks": list(range(8))}]
    for number, (description, ranks) in enumerate(groups.items(), 1):
        listed.append({"pg_name": str(number), "pg_desc": description, "pg_size": len(ranks), "ranks": ranks})
    return {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8, "pg_config": listed}}


def all_reduce(called, start, end, correlation, group, size, thread=1):
    """The launch and the kernel of an all-reduce of 1,000 floats."""
    described = {"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float"}
    described |= {"Group size": size, "Process Group Name": group}
    call, kernel = launched("ncclDevKernel_AllReduce_Sum_f32_RING_LL", called, start, end, correlation, 8, thread)
    return [call, {**kernel, "args": {**kernel["args"], **described}}]


# A step in which group 1 all-reduces in both passes, as tensor parallelism does, and group 2 averages a gradient.
EVENTS = [
    step(3, 0, 100),
    step(4, 100, 200),
    annotation("Optimizer.step#SGD.step", 90, 99),
    annotation("Optimizer.step#SGD.step", 190, 199),
    *launched("gemm", 1, 10, 20, 1),
    *all_reduce(21, 22, 30, 2, "1", 4),
    operator(BACKWARD, 40, 60, thread=2),
    *launched("gemm", 41, 42, 50, 3, thread=2),
    *all_reduce(51, 52, 58, 4, "1", 4, thread=2),
    operator(ACCUMULATES, 62, 68, thread=2),
    *all_reduce(63, 64, 70, 5, "2", 2, thread=2),
    *launched("sgd", 92, 93, 95, 6),
    *launched("gemm", 105, 110, 120, 7),
]
BY_USE = header(undefined=[0, 1, 2, 3], also_undefined=[0, 4])


@pytest.mark.parametrize(
    ("description", "dimensions"),
    [
        ("mesh_tp", ["tensor"]),  # DeviceMesh
        ("mesh_dp_shard", ["shard"]),
        ("mesh_dp_shard_cp", ["shard", "context"]),
        ("mesh_dp_replicate", ["replicate"]),
        ("mesh_infer_pp", ["pipeline"]),
        ("TENSOR_MODEL_PARALLEL_GROUP", ["tensor"]),  # Megatron-LM
        ("DATA_PARALLEL_GROUP_WITH_CP", ["data", "context"]),
        ("EXPERT_MODEL_PARALLEL_GROUP", ["expert"]),
        ("EXPERT_DATA_PARALLEL_GROUP", ["expert", "data"]),
        ("MODEL_PARALLEL_GROUP", ["tensor", "pipeline"]),
        ("tp", ["tensor"]),
    ],
)
def test_by_description(tmp_path, description, dimensions):
    measured = measure_events(tmp_path, EVENTS, **header(**{description: [0, 1, 2, 3]}))
    group = next(found for found in measured.process_groups if found.size == 4)
    assert (group.dimensions, group.confidence) == (dimensions, "high")


@pytest.mark.parametrize("description", ["default_pg", "undefined", "mesh_dim_0", "data_loading", "tp\x1b[2J"])
def test_other_descriptions_name_no_dimension(tmp_path, description):
    measured = measure_events(tmp_path, EVENTS[:4], **header(**{description: [0, 1, 2, 3]}))
    assert next(found for found in measured.process_groups if found.size == 4).known("dimensions") is None


def test_by_use(tmp_path):
    measured = measure_events(tmp_path, EVENTS, **BY_USE)
    tensor, data = (next(found for found in measured.process_groups if found.name == name) for name in "12")
    assert (tensor.dimensions, tensor.confidence, tensor.ranks) == (["tensor"], "medium", [0, 1, 2, 3])
    assert (data.dimensions, data.confidence, data.ranks) == (["data"], "high", [0, 4])
    whole = measured.process_groups[0]
    assert whole.size == 8
    with pytest.raises(Missing, match="neither its description nor its collectives"):
        _ = whole.dimensions
    assert group_rows(measured.process_groups) == [
        "1: tensor parallel, ranks 0-3 (medium confidence: neighbouring ranks all-reduce in it in forward and "
        "backward passes)",
        "2: data parallel, ranks 0, 4 (high confidence: gradients are all-reduced in it as they are accumulated)",
    ]
    named = [collective_name(row, measured.process_groups) for row in measured.overlap.rows]
    assert sorted(named) == [
        "all_reduce (gradients) in backward",
        "all_reduce (tensor) in backward",
        "all_reduce (tensor) in forward",
    ]
    assert [group_name(name, measured.process_groups) for name in "0123"] == ["0", "1 tensor", "2 data", "3"]


def test_tensor_groups_of_different_sizes_leave_the_number_of_replicas_open(tmp_path):
    measured = measure_events(tmp_path, EVENTS, **header(mesh_tp=[0, 1, 2, 3], TENSOR_MODEL_PARALLEL_GROUP=[0, 1]))
    tensor = [group for group in measured.process_groups if group.known("dimensions") == ["tensor"]]
    assert sorted(group.size for group in tensor) == [2, 4]
    assert [replicas([group], 8) for group in tensor] == [8 // group.size for group in tensor]
    assert replicas(tensor, 8) is None


@pytest.mark.parametrize(
    ("kinds", "dimension", "basis"),
    [
        (["all_gather", "reduce_scatter"], "shard", "FSDP's hooks gather and reduce-scatter in it"),
        (["all_reduce"], "replicate", "FSDP's hooks all-reduce in it"),
    ],
)
def test_by_hooks_of_fsdp(tmp_path, kinds, dimension, basis):
    """Hybrid sharding all-reduces the shards of gradients in a group of its own."""
    (rank,) = load_events(tmp_path, EVENTS[:4], **header(undefined=[0, 4])).ranks
    sharding = {"group": "1", "phase": "backward", "purpose": "sharding", "calls": 1, "most_share": 0.1}
    spent = {"communication_ns": 1, "hidden_ns": 0, "exposed_ns": 1}
    rows = [figures(CommunicationFigures, kind=kind, **sharding, **spent) for kind in kinds]
    found = process_groups([view(rank.rank, rank.light)], rows, 8)[1]
    assert (found.dimensions, found.confidence, found.basis) == ([dimension], "high", basis)


def test_ranks_that_are_not_neighbours_are_not_taken_for_tensor_parallel(tmp_path):
    measured = measure_events(tmp_path, EVENTS, **header(undefined=[0, 2, 4, 6], also_undefined=[0, 4]))
    assert next(found for found in measured.process_groups if found.name == "1").known("dimensions") is None


def test_only_groups_that_may_average_gradients(tmp_path):
    measured = measure_events(tmp_path, EVENTS, **BY_USE)
    assert [measured.may_average_gradients(name) for name in (*"012", None)] == [True, False, True, True]


def test_replicas_share_no_samples(tmp_path):
    """8 ranks in tensor groups of 4 are 2 replicas; a wrong number of ranks makes none."""
    groups = measure_events(tmp_path, EVENTS, **BY_USE).process_groups
    assert [replicas(groups, ranks) for ranks in (8, 6, None)] == [2, None, None]
    assert replicas([], 8) == 8


@pytest.mark.parametrize("ranks", ["0-3", None, []])
def test_a_group_that_lists_no_ranks(tmp_path, ranks):
    run = load_events(tmp_path, EVENTS, **damaged(ranks))
    (group,) = measure(run).process_groups
    assert (group.dimensions, group.known("ranks")) == (["tensor"], None)
    assert damage_of(run) == []


def damage_of(run):
    return [(one.level, one.text) for one in run.findings if one.code == "process-group-impossible"]


def damaged(ranks, size=4):
    entry = {"pg_name": "1", "pg_desc": "mesh_tp", "pg_size": size, "ranks": ranks}
    return {"distributedInfo": {"rank": 0, "world_size": 8, "pg_config": [entry]}}


@pytest.mark.parametrize(
    ("ranks", "size", "why"),
    [
        ([0, 1], 4, "has 4 ranks, and lists 2"),
        ([0, 1, 2, 3, 3], 4, "has 4 ranks, and lists 5"),
        ([0, 1, 2, "x"], 4, "has 4 ranks, and lists 3"),
        ([0, 0, 1, 2], 4, "has 4 ranks, and lists 3"),
        ([0, 1, 2, -1], 4, "has 4 ranks, and lists 3"),
        ([0, 1, 2, 10**9], 4, "has 4 ranks, and lists 3"),
        ([0, 1, 2, 8], 4, "lists rank 8, and the run has 8 ranks"),
        ([1, 2, 3, 4], 4, "does not list rank 0, the rank of this trace"),
        (None, 9, "has 9 ranks, and the run 8"),
    ],
)
def test_damaged_groups_are_named_and_not_used(tmp_path, ranks, size, why):
    run = load_events(tmp_path, EVENTS, **damaged(ranks, size))
    assert damage_of(run) == [("partial", f"0.json: process group '1' {why}: it is ignored")]
    assert measure(run).process_groups == []


def test_several_damaged_groups_are_one_finding(tmp_path):
    run = load_events(tmp_path, EVENTS, **header(mesh_tp=[1, 2], mesh_dp=[0, 9], mesh_pp=[0, 4]))
    ((_, text),) = damage_of(run)
    assert text == (
        "0.json: process group '1' does not list rank 0, the rank of this trace, and 1 more is damaged: they are "
        "ignored"
    )
    assert [group.ranks for group in measure(run).process_groups] == [list(range(8)), [0, 4]]


def test_a_name_of_several_groups(tmp_path):
    """Ranks may call different groups by the same name."""
    headers = [header(mesh_tp=ranks) for ranks in ([0, 1], [2, 3])]
    headers[1]["distributedInfo"]["rank"] = 2
    views = [load_events(tmp_path, EVENTS, **told).ranks[0] for told in headers]
    found = process_groups([view(rank.rank, rank.light) for rank in views], [], 8)
    group = next(group for group in found if group.size == 2)
    assert group.dimensions == ["tensor"]
    with pytest.raises(Missing, match="groups of different ranks have this name"):
        _ = group.ranks


def test_public_traces(real_traces):
    """By eye: b4b6dce has DDP's buckets in its only group; nanogpt's optimizer shards by hand, which shows no role."""
    ddp = reading.measured(real_traces / "hta_training" / "b4b6dce_nccl_data.json.gz").process_groups
    assert [(group.name, group.ranks, group.dimensions, group.confidence) for group in ddp] == [
        ("0", [0, 1], ["data"], "high")
    ]
    (nano,) = (real_traces / "nanogpt_adam_hook_h100").glob("3608dcf*")
    (group,) = reading.measured(nano).process_groups
    assert (group.size, group.ranks, group.known("dimensions")) == (8, list(range(8)), None)


def test_a_public_trace_with_several_groups(real_traces):
    """11 undescribed groups of gloo, each of all 300 ranks: no collective names its group, so none has a role."""
    (trace,) = (real_traces / "cpu_only").glob("05cd72f*")
    groups = reading.measured(trace).process_groups
    assert [group.size for group in groups] == [300] * 11
    assert len({group.name for group in groups}) == 11
    assert all(group.known("dimensions") is None for group in groups)


@pytest.mark.parametrize(("group", "size", "world_size"), [("0", 8, 8), ("default_pg", 8, 8), ("1", 4, None)])
def test_collectives_of_the_default_group_show_how_many_ranks_there_are(tmp_path, group, size, world_size):
    """A trace that says nothing of ranks itself."""
    events = [*EVENTS[:4], *all_reduce(21, 22, 30, 2, group, size), *launched("gemm", 101, 110, 120, 9)]
    assert measure_events(tmp_path, events).known("world_size") == world_size


def test_the_default_group_of_a_public_trace_without_its_header(real_traces, tmp_path):
    (path,) = (real_traces / "hta_training").glob("b4b6dce*")
    text = json.loads(gzip.decompress(path.read_bytes()))
    assert text.pop("distributedInfo")["world_size"] == 2
    steps = sorted(event["ts"] for event in text["traceEvents"] if str(event["name"]).startswith("ProfilerStep"))
    text["traceEvents"] = [event for event in text["traceEvents"] if event.get("ts", 0) < steps[1]]  # of one step
    (tmp_path / "trace.json").write_text(json.dumps(text))
    assert measure(load([tmp_path / "trace.json"])).world_size == 2
