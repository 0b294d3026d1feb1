"""What an operator of a collective launches itself communicates, whatever it is called; what prepares it does not."""

import pytest

from dptune.measure.device.operations import operations
from dptune.trace.kernels import Work

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import annotation, copy, kernel, launch, load_events, measure_events, operator, step

DTOD, PTOP = "DtoD (Device -> Device)", "PtoP (Device -> Device)"


def work_of_one(folder, around, *operation):
    """The class of one operation that is launched at 10 inside of the ranges."""
    events = [step(0, 0, 100), *around, launch(1, 10, 11), *operation]
    (device,) = operations(load_events(folder, events).ranks[0].light)
    return Work(int(device.work[0]))


@pytest.mark.parametrize(
    "around",
    [
        [operator("c10d::alltoall_base_", 5, 20)],
        [operator("c10d::alltoall_base_", 5, 20), operator("record_param_comms", 6, 19)],
        [operator("record_param_comms", 6, 19), annotation("nccl:all_reduce", 7, 18)],
        [annotation("xccl:all_reduce", 7, 18)],
        [operator("_c10d_functional::all_gather_into_tensor", 5, 20)],
        [operator("symm_mem::one_shot_all_reduce", 5, 20)],
        [operator("vllm::all_reduce", 5, 20)],
        [operator("aten::linear", 1, 50), operator("TokenAllToAll", 5, 20)],
    ],
)
def test_a_kernel_launched_by_a_collective_communicates(tmp_path, around):
    assert work_of_one(tmp_path, around, kernel("exchange_v7", 12, 40, 1)) is Work.COMMUNICATION


@pytest.mark.parametrize(
    ("around", "name"),
    [
        # what prepares the transfer or unpacks it has an operator of its own
        ([operator("c10d::allgather_", 5, 20), operator("aten::cat", 8, 15)], "exchange_v7"),
        ([operator("record_param_comms", 5, 20), operator("aten::copy_", 8, 15)], "exchange_v7"),
        # or, where the trace lacks it, a name
        (
            [operator("c10d::allgather_", 5, 20)],
            "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 4>(float*)",
        ),
        ([operator("c10d::allreduce_", 5, 20)], "void at::native::vectorized_elementwise_kernel<4, CastFunctor>()"),
        ([operator("TokenAllToAll", 5, 20)], "to_mxfp8_dim0_kernel"),
        # neither a range that a script names, nor one around the wrong moment or of FSDP's packing
        ([annotation("all_to_all and experts", 5, 20)], "exchange_v7"),
        ([operator("c10d::allreduce_", 11.5, 20)], "exchange_v7"),
        ([operator("c10d::allreduce_", 5, 20, thread=2)], "exchange_v7"),
        ([operator("fsdp::all_gather_copy_in", 5, 20)], "exchange_v7"),
        ([operator("symm_mem::fused_all_gather_matmul", 5, 20)], "exchange_v7"),
    ],
)
def test_a_kernel_that_only_runs_near_a_collective_computes(tmp_path, around, name):
    assert work_of_one(tmp_path, around, kernel(name, 12, 40, 1)) is Work.COMPUTE


@pytest.mark.parametrize(("kind", "work"), [(PTOP, Work.COMMUNICATION), (DTOD, Work.COPY), ("HtoD", Work.COPY)])
def test_copies_of_a_collective_communicate_between_devices(tmp_path, kind, work):
    assert work_of_one(tmp_path, [operator("record_param_comms", 5, 20)], copy(kind, 12, 40, 1)) is work


def test_it_counts_as_a_collective_of_its_operators_kind(tmp_path):
    """Three steps of 100 us, of which `exchange_v7` takes 30 and a gemm 40: by hand, and as the kernels sum up. A
    fourth one is cut short: it is in the collectives only."""
    events = []
    for number in range(4):
        begin, first = 100 * number, 2 * number + 1
        events += [
            step(number, begin, begin + 100),
            operator("c10d::alltoall_base_", begin + 1, begin + 9),
            launch(first, begin + 2, begin + 3),
            kernel("exchange_v7", begin + 10, begin + 40, first),
            launch(first + 1, begin + 12, begin + 13),
            kernel("gemm", begin + 50, begin + 90, first + 1),
        ]
    measured = measure_events(tmp_path, events)
    assert (measured.account.communication_ns, measured.account.compute_ns) == (90_000, 120_000)
    (found,) = measured.collectives
    assert (found.kind, found.calls, found.total_ns) == ("all_to_all", 4, 120_000)
    assert measured.kernels.kinds_ns == {"communication": 90_000, "matrix product": 120_000}
    assert {one.name: one.kind for one in measured.kernels.top}["exchange_v7"] == "communication"


def test_what_was_launched_before_the_recording_is_what_others_of_its_name_are(tmp_path):
    events = [
        step(0, 0, 100),
        kernel("exchange_v7", 1, 4, 77),
        kernel("both", 5, 6, 78),
        operator("c10d::alltoall_base_", 5, 20),
        *(launch(at, 10 + at, 10.5 + at) for at in (1, 2)),
        launch(3, 30, 31),
        kernel("exchange_v7", 40, 50, 1),
        kernel("both", 50, 60, 2),
        kernel("both", 60, 70, 3),
    ]
    trace = load_events(tmp_path, events).ranks[0].light
    (device,) = operations(trace)
    communicates = device.work == int(Work.COMMUNICATION)
    assert [(trace.columns.name(row), flag) for row, flag in zip(device.rows, communicates.tolist(), strict=True)] == [
        ("exchange_v7", True),
        ("both", False),
        ("exchange_v7", True),
        ("both", True),
        ("both", False),
    ]


def test_triton_kernels_that_communicate(findings):
    account = reading.measured(findings / "traces" / "moe_triton_alltoall_as_compute.json.gz").account
    assert account.share("exposed_communication_ns") == pytest.approx(0.26, abs=0.005)
