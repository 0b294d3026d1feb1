"""The sections of copies, kernels and memory, from figures set by hand."""

from __future__ import annotations

import pytest

from dptune.advice import Report
from dptune.measured import CopyFigures, CopySite, KernelFigures, KernelTime, MemoryFigures, ShardUnits
from dptune.present.sections.traffic import data_loading
from dptune.present.text import text

from_trace = "the trace does not say"
ANONYMOUS = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<Adam>(T)"


def section(page: str, title: str) -> str:
    """The lines of a section, joined, so that folding does not matter."""
    _, _, rest = page.partition(f"\n{title}")
    assert rest, f"no section '{title}'"
    return " ".join(rest.split("\n\n")[0].split())


def with_figures(report: Report, **figures: object) -> Report:
    missing = {name: why for name, why in report.measured.missing.items() if name not in figures}
    return report.model_copy(update={"measured": report.measured.model_copy(update={**figures, "missing": missing})})


@pytest.fixture
def full(report: Report) -> Report:
    site = CopySite.only(
        "the window was recorded without Python's stacks",
        rank=1,
        window="detailed",
        operator="aten::item",
        module="Net_0",
        function="train.py(31): step",
        copy_bytes=4,
        calls_per_step=2,
        every_step=True,
        total_ns=1_500_000,
        blocking_calls=6,
    )
    copy = CopyFigures.only(
        from_trace,
        direction="d2h",
        pinned=False,
        calls=12,
        calls_per_step=2,
        total_bytes=48,
        total_ns=2_000_000,
        exposed_ns=500_000,
        most_share=0.0,
        most_held_share=0.0,
        gb_per_s=0.02,
        blocking_calls=12,
        sites=[site],
    )
    top = KernelTime(
        name=ANONYMOUS, kind="optimizer", calls_per_step=4, total_ns=40_000_000, median_ns=12_340, step_share=0.25
    )
    kernels = KernelFigures.only(
        from_trace,
        counted="kernels",
        per_step=450,
        median_ns=8_250,
        total_ns=80_000_000,
        short_share=0.6,
        launch_bound_share=0.125,
        kinds_ns={"elementwise": 20_000_000, "optimizer": 60_000_000},
        top=[top],
    )
    memory = MemoryFigures.only(
        from_trace,
        rank=0,
        device="cuda:0",
        basis="run",
        window="detailed",
        peak_allocated_bytes=40 * 2**30,
        peak_reserved_bytes=60 * 2**30,
        peak_share=0.75,
        allocated_bytes_per_step=100 * 2**30,
        growth_bytes_per_step=2**20,
        malloc_calls_per_step=1.5,
    )
    step = report.measured.step.model_copy(update={"detailed_steps": 3})
    return with_figures(report, copies=[copy], kernels=kernels, memory=[memory], step=step)


def test_copies_say_how_fast_whether_they_block_and_where(full: Report) -> None:
    said = section(text(full), "Copies (traced, per step and rank)")
    # 12 copies, 2 per step, are those of 6 steps: 48 bytes, 2 ms, 0.5 ms and 12 blocking ones, each over 6
    assert "device to host pageable 2 8 bytes 0.33 0.08 ~0.02 2" in said
    assert "Call sites (per step of rank 1), most time first:" in said
    # read from the 3 steps of the detailed window: 6 blocking calls and 1.5 ms, over 3
    assert (
        "device to host pageable: aten::item in Net_0 by train.py(31): step, 2 blocking copies of 4 bytes in every "
        "step (0.50 ms)" in said
    )


def test_of_a_copy_within_a_device_the_host_memory_does_not_apply(full: Report) -> None:
    copy = full.measured.copies[0].model_copy(update={"sites": []})
    within = copy.model_copy(
        update={"direction": "d2d", "pinned": None, "missing": {"pinned": "copy within the device"}}
    )
    said = section(text(with_figures(full, copies=[copy, within])), "Copies")
    assert "on the device [a]" in said
    assert "[a] does not apply: copy within the device" in said


@pytest.mark.parametrize(
    ("window", "blocking", "told"),
    [
        ("light", 4, "2 blocking copies of 4 bytes in every step (0.75 ms)"),
        ("light", 1, "2 copies of 4 bytes in every step, 0.50 of them blocking (0.75 ms)"),
        ("detailed", 4, "2 copies of 4 bytes in every step"),
    ],
)
def test_a_site_is_told_per_step_of_the_window_it_was_read_from(
    full: Report, window: str, blocking: int, told: str
) -> None:
    """Two light steps of rank 1; of the detailed window nothing says how many there are."""
    copy = full.measured.copies[0]
    site = copy.sites[0].model_copy(update={"window": window, "blocking_calls": blocking})
    ranks = list(full.measured.ranks)
    device = ranks[1].devices[0]
    steps = [device.steps[0], device.steps[0].model_copy(update={"number": 4})]
    ranks[1] = ranks[1].model_copy(update={"devices": [device.model_copy(update={"steps": steps})]})
    step = full.measured.step.model_copy(update={"detailed_steps": 0})
    shown = with_figures(full, copies=[copy.model_copy(update={"sites": [site]})], ranks=ranks, step=step)
    assert section(text(shown), "Copies").endswith(told)


def test_kernels_say_how_many_of_what_kind_and_which(full: Report) -> None:
    said = section(text(full), "Kernels")
    assert "Kernels 450 per step, median 8.25 us; 60.0 % of them are shorter than 10 us" in said
    assert "Time by kind optimizer 75.0 %, elementwise 25.0 %" in said
    assert "Tensor cores 30.0 % of the step" in said
    assert "Launch-bound 12.5 % of the step" in said
    assert "multi_tensor_apply_kernel<Adam>(T) optimizer 4 12.3 25.0 %" in section(text(full, 120), "Kernels")


def test_operators_of_a_cpu_are_called_that(report: Report) -> None:
    top = KernelTime.only(
        "a CPU runs no kernels",
        name="aten::mm",
        calls_per_step=4,
        total_ns=40_000_000,
        median_ns=12_340,
        step_share=0.25,
    )
    operators = KernelFigures.only(
        "a CPU runs no kernels", counted="operators", per_step=9, median_ns=8_250, total_ns=80_000_000, top=[top]
    )
    page = text(with_figures(report, kernels=operators))
    said = section(page, "CPU operators by self time")
    assert "aten::mm 4 12.3 25.0 %" in said
    assert "Launch-bound" not in said
    assert "\nKernels" not in page


def test_memory_says_how_full_and_of_what(full: Report) -> None:
    said = section(text(full), "Memory")
    assert "0 cuda:0 40.0 GiB 60.0 GiB 75.0 % 100.0 GiB 1.00 MiB 1.50" in said
    assert "over the whole run" in said
    assert "unused not measured: the trace does not say" in said


def test_memory_that_is_not_known_is_one_reason_and_what_is_known_beside_it(report: Report) -> None:
    one = MemoryFigures.only("nobody counted", rank=3, device="cuda:0", malloc_calls_per_step=2, malloc_share=0.04)
    cpu = MemoryFigures.only(
        "nobody counted", rank=0, device="cpu", window="detailed", allocations_per_step=7, allocated_bytes_per_step=2048
    )
    said = section(text(with_figures(report, memory=[one])), "Memory")
    assert said == (
        "peak memory not measured: nobody counted. cudaMalloc and cudaFree calls: 2 per step, 4.0 % of "
        "the step (rank 3)."
    )
    none = one.model_copy(update={"malloc_calls_per_step": 0, "malloc_share": 0.0})
    said = section(text(with_figures(report, memory=[none])), "Memory")
    assert said.endswith("The steps of rank 3 call neither cudaMalloc nor cudaFree.")
    amd = section(text(with_figures(report, memory=[one], device_kind="rocm")), "Memory")
    assert "hipMalloc and hipFree calls: 2 per step" in amd
    assert "cuda" not in amd
    said = section(text(with_figures(report, memory=[cpu])), "Memory")
    assert said.endswith("Each step allocates 2.00 KiB in 7 allocations (rank 0, detailed window).")


@pytest.mark.parametrize(
    ("growth", "least", "words"),
    [
        (0, None, "Allocated memory does not grow from step to step (median)."),
        (
            2**20,
            None,
            "Allocated memory grows by 1.00 MiB per step (median); fewer than 4 consecutive steps were recorded, so "
            "this is no evidence of a leak.",
        ),
        (2**20, 0, "Allocated memory grows by 1.00 MiB per step (median), but not in every step."),
        (2**20, 2**19, "Allocated memory grows by 1.00 MiB per step (median), in every step."),
        (-(2**20), None, "Allocated memory shrinks by 1.00 MiB per step (median)."),
    ],
)
def test_growth_is_that_of_a_step_and_says_whether_it_may_be_a_leak(
    report: Report, growth: int, least: int | None, words: str
) -> None:
    known = {"window": "detailed", "allocations_per_step": 7, "allocated_bytes_per_step": 2048}
    known |= {"growth_bytes_per_step": growth} | ({} if least is None else {"least_growth_bytes": least})
    figures = MemoryFigures.only("nobody counted", rank=0, device="cpu", **known)
    said = section(text(with_figures(report, memory=[figures])), "Memory")
    assert said.endswith(words)


def test_what_is_missing_altogether_says_why(foreign: Report) -> None:
    page = text(foreign)
    for title in ("Kernels", "Memory"):
        assert "not measured: " in section(page, title)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_every_line_fits_the_page(full: Report, width: int) -> None:
    page = text(full, width)
    for title in ("Copies", "Kernels", "Memory"):
        for row in page.partition(f"\n{title}")[2].split("\n\n")[0].splitlines():
            assert len(row) <= width, row


def test_gradients_of_units_are_not_named_all_reduced(full: Report) -> None:
    """Units of FSDP reduce-scatter them."""

    def labels(report: Report) -> list[str]:
        return "".join(span.text for line in data_loading(report, 80) for span in line).split()

    units = ShardUnits.only("none", rows=[], forward_depth=0, backward_depth=0)
    assert "all-reduced" in labels(full)
    assert "reduced" not in labels(full)
    sharded = labels(with_figures(full, shard_units=units))
    assert "reduced" in sharded
    assert "all-reduced" not in sharded
