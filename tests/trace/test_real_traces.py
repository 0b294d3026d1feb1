import numpy as np

from dptune.trace import load


def test_counts_equal_the_manifest(real_traces, manifest_entry):
    trace = load([real_traces / manifest_entry["file"]]).ranks[0].light
    columns = trace.columns
    steps = columns.rows(named=lambda name: name.startswith("ProfilerStep#"))
    found = np.array(columns.categories)[columns.category_id[steps]].tolist()
    assert trace.events == manifest_entry["events"]
    assert {category: found.count(category) for category in set(found)} == manifest_entry["profiler_steps"]
    assert len(columns.rows({"kernel", "Kernel"})) == manifest_entry["gpu_kernels"]
    described = columns.of_category({"kernel"}, trace.collectives.row)
    assert described.sum() == manifest_entry["nccl_kernels_with_metadata"]
    assert trace.partial == ""
    claimed = manifest_entry["distributed"] or {}
    assert trace.distributed.rank == claimed.get("rank")
    assert trace.distributed.world_size == claimed.get("world_size")


def test_eight_ranks_in_one_folder(real_traces):
    run = load([real_traces / "nanogpt_8xh100"])
    assert [rank.rank for rank in run.ranks] == list(range(8))
    assert run.rank_basis == "distributedInfo in the trace"
    assert run.findings == []
