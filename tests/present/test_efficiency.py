"""The section of efficiency, its line on the first screen, and cost, from figures set by hand."""

from __future__ import annotations

import json

import pytest

from dptune.advice import Cost, Report
from dptune.advise.cost import with_cost
from dptune.measured import DtypeFlops, EfficiencyFigures, KindFlops
from dptune.present.html import page
from dptune.present.text import first_screen, sections
from dptune.present.tui.overview import overview

from .test_device import with_figures

TERA = 10**12
PEAK = DtypeFlops(dtype="bf16", flops=40 * TERA, peak_flops_per_s=1e15, source="A datasheet")


def efficiency(**changed: object) -> EfficiencyFigures:
    known = {
        "rank": 1,
        "window": "detailed",
        "steps": 4,
        "devices": 1,
        "flops": 40 * TERA,
        "recomputed_flops": 8 * TERA,
        "optimizer_flops": 0,
        "flops_per_step": 10e12,
        "model_flops_per_step": 8e12,
        "kinds": [
            KindFlops(kind="matrix product", flops=30 * TERA, time_ns=60_000_000, flops_per_s=500e12),
            KindFlops.only("no kernel", kind="attention", flops=10 * TERA),
        ],
        "dtypes": [PEAK],
        "counted_share": 1.0,
        "step_ns": 20e6,
        "flops_per_s": 500e12,
        "total_flops_per_s": 1e15,
        "peak_flops_per_s": 1e15,
        "mfu": 0.4,
        "hfu": 0.5,
        "memory_bound_share": 0.25,
        "samples_per_s": 3200.0,
        "all_devices": 2,
    }
    return EfficiencyFigures.only("not seen", **{**known, **changed})


@pytest.fixture
def reached(report: Report) -> Report:
    return with_figures(report, efficiency=efficiency())


def shown(report: Report) -> str:
    return " ".join(sections(report, ["efficiency"]).split())


def test_the_section(reached: Report) -> None:
    page = shown(reached)
    for words in (
        "Efficiency (FLOPs of rank 1, 4 traced steps, detailed window)",
        "MFU 40.0 % HFU 50.0 %",
        "bf16 1.00 PFLOP/s per device, dense. Source: A datasheet",
        "10.0 TFLOP per step and device, including 2.00 TFLOP of recomputation",
        "500.0 TFLOP/s per device, 1.00 PFLOP/s in total (20.0 ms per step)",
        "Memory-bound 25.0 % of the step (elementwise, ",
        "3,200 per second, 1,600 per device",
        "Tokens not measured: not seen",
        "matrix product 7.50 TFLOP 75.0 % 500.0 TFLOP/s",
        "attention 2.50 TFLOP 25.0 % [a]",
    ):
        assert words in page
    assert "Not counted" not in page
    assert "Cost" not in page


def test_what_is_not_counted_makes_a_lower_bound(report: Report) -> None:
    less = efficiency(counted_share=0.8, uncounted=["some::attention"])
    page = shown(with_figures(report, efficiency=less))
    for figure in (
        "MFU at least 40.0 %",
        "FLOPs at least 10.0 TFLOP per step and device",
        "Achieved at least 500.0 TFLOP/s per device, at least 1.00 PFLOP/s in total",
    ):
        assert figure in page
    assert "some::attention (sizes not known); 20.0 % of the time of matrix kernels" in page


def test_figures_of_traced_steps_of_one_rank_of_three_hundred(reached: Report) -> None:
    step = reached.measured.step.model_copy(update={"basis": "traced"})
    of_one = with_figures(reached, world_size=300, step=step, ranks=reached.measured.ranks[:1])
    page = shown(of_one)
    assert "1.00 PFLOP/s in total, extrapolated from 1 of 300 ranks (20.0 ms per traced step)" in page
    assert "1,600 per device (extrapolated from 1 of 300 ranks)" in page
    assert "Steps are traced: without the profiler, MFU and rates are higher." in page
    priced = shown(of_one.model_copy(update={"cost": Cost.only("not priced", gpu_hour_price=2.0)}))
    assert "Steps are traced: without the profiler, MFU and rates are higher and cost is lower." in priced
    assert "over all ranks (extrapolated from 1 of 300 ranks)" in " ".join(sections(of_one, ["input"]).split())


def test_a_measured_peak(report: Report) -> None:
    source = "measured after the recorded steps: products of 1,024 x 1,024 matrices, 1 thread, 2 ranks at once"
    peak = DtypeFlops(dtype="fp32", flops=40 * TERA, peak_flops_per_s=1e15, source=source)
    quiet = efficiency(dtypes=[peak], peak_basis="measured", peak_withheld_share=0.04)
    page = shown(with_figures(report, efficiency=quiet))
    assert f"MFU 40.0 % HFU 50.0 % Peak fp32 1.00 PFLOP/s per rank, {source} FLOPs" in page
    assert "MFU 40.0 % of measured fp32 peak" in first_screen(with_figures(report, efficiency=quiet))
    busy = efficiency(dtypes=[peak], peak_basis="measured", peak_withheld_share=0.2)
    page = shown(with_figures(report, efficiency=busy))
    assert "MFU at most 40.0 %" in page
    assert "ranks at once. Other processes withheld up to 20.0 % of the CPU time during this: the true peak may" in page
    assert "MFU at most 40.0 % of measured" in first_screen(with_figures(report, efficiency=busy))
    both = efficiency(dtypes=[peak], peak_basis="measured", peak_withheld_share=0.2, counted_share=0.8)
    assert "MFU about 40.0 %" in shown(with_figures(report, efficiency=both))


def test_ranks_that_share_a_gpu(report: Report) -> None:
    """Of a GPU of 1 PFLOP/s; FLOPs are those of a rank, rates of samples those of the device."""
    shared = efficiency(sharing_ranks=2, peak_flops_per_s=5e14, all_devices=1)
    page = shown(with_figures(report, efficiency=shared))
    for words in (
        "bf16 1.00 PFLOP/s per device, dense; 2 ranks share it, 500.0 TFLOP/s each. Source: A datasheet",
        "10.0 TFLOP per step and rank, including",
        "500.0 TFLOP/s per rank, 1.00 PFLOP/s in total",
        "Samples 3,200 per second Tokens",
        "HFU counts all FLOPs. Ranks that share a GPU have equal parts of its peak.",
    ):
        assert words in page
    half = [PEAK.model_copy(update={"dtype": name, "flops": 20 * TERA}) for name in ("bf16", "fp16")]
    mixed = efficiency(sharing_ranks=2, peak_flops_per_s=5e14, dtypes=half)
    page = shown(with_figures(report, efficiency=mixed))
    assert "Peak 1.00 PFLOP/s per device, dense: 50.0 % of FLOPs at bf16 1.00 PFLOP/s, 50.0 % at fp16 1.00" in page


def test_a_cpu_has_ranks_and_no_tensor_cores(report: Report) -> None:
    page = shown(with_figures(report, device_kind="cpu", efficiency=efficiency()))
    assert "10.0 TFLOP per step and rank" in page
    assert "Samples 3,200 per second, 1,600 per rank" in page
    assert "Tensor cores" not in page
    assert "Tensor cores" in shown(with_figures(report, device_kind="cuda", efficiency=efficiency()))


def test_a_recording_without_steps(report: Report) -> None:
    page = shown(with_figures(report, efficiency=efficiency(scope="recording", steps=1)))
    for words in (
        "Efficiency (FLOPs of rank 1, whole recording)",
        "10.0 TFLOP per device, including",
        "in total (20.0 ms recorded)",
        "Memory-bound 25.0 % of the recording (",
        "operators FLOPs share rate while running",
    ):
        assert words in page


def test_a_mix_of_types(report: Report) -> None:
    half = PEAK.model_copy(update={"flops": 20 * TERA})
    other = DtypeFlops(dtype="fp8", flops=20 * TERA, peak_flops_per_s=2e15, source="A datasheet")
    mixed = efficiency(dtypes=[half, other], peak_flops_per_s=4e15 / 3)
    page = shown(with_figures(report, efficiency=mixed))
    assert "1.33 PFLOP/s per device, dense: 50.0 % of FLOPs at bf16 1.00 PFLOP/s, 50.0 % at fp8 2.00 PFLOP/s" in page
    assert "MFU 40.0 % of bf16/fp8 peak" in first_screen(with_figures(report, efficiency=mixed))


def test_the_first_screen_has_mfu_and_stays_within_its_lines(reached: Report) -> None:
    screen = first_screen(reached)
    assert "MFU 40.0 % of bf16 peak" in screen
    assert len(screen.splitlines()) <= 24
    assert max(map(len, screen.splitlines())) <= 80
    assert "MFU" not in first_screen(with_figures(reached, efficiency=EfficiencyFigures.only("no sizes")))


def test_the_first_screen_has_tokens_where_they_are_known(reached: Report) -> None:
    """They may take a line of their own; the page has them, too."""
    known = with_figures(reached, efficiency=efficiency(tokens_per_s=1_638_400.0, tokens_per_step=32_768))
    screen = first_screen(known)
    assert "   1,638,400 tokens/s   MFU 40.0 % of bf16 peak" in screen
    assert len(screen.splitlines()) <= 24
    assert max(map(len, screen.splitlines())) <= 80
    assert '<span class="rate">1,638,400 tokens/s</span>' in page(known)
    assert "tokens/s" not in first_screen(reached)


@pytest.mark.parametrize(
    ("name", "shown_too"), [("flash_attn_3::_flash_attn_forward", True), ("some::attention", True), ("x::gemm", False)]
)
def test_how_to_get_tokens_is_said_where_attention_ran(report: Report, name: str, shown_too: bool) -> None:
    product = KindFlops.only("no kernel", kind="matrix product", flops=40 * TERA)
    page = shown(with_figures(report, efficiency=efficiency(kinds=[product], uncounted=[name])))
    assert ("Tokens not measured: not seen" in page) is shown_too


def test_missing_figures_say_why(report: Report) -> None:
    page = shown(with_figures(report, efficiency=EfficiencyFigures.only("no sizes")))
    assert "MFU, HFU not measured: no sizes" in page
    assert "operators" not in page


def test_cost_and_what_each_recommendation_saves(reached: Report) -> None:
    priced = with_cost(reached, 3.6)
    assert priced.cost is not None
    step_s = reached.measured.step.rate_ns / 1e9
    assert priced.cost.per_1000_steps == pytest.approx(1000 * step_s / 3600 * 2 * 3.6)
    saving = [advice for advice in reached.advice if advice.saves]
    assert [each.rule for each in priced.cost.savings] == [advice.rule for advice in saving]
    for each, advice in zip(priced.cost.savings, saving, strict=True):
        assert each.high == pytest.approx(priced.cost.per_1000_steps * advice.saves.high_share)
    page = shown(priced)
    assert "per 1,000 steps (2 devices at 3.60 an hour)" in page
    assert f"{saving[0].rule} saves" in page
    read_back = Report.model_validate_json(priced.model_dump_json())
    assert read_back.cost == priced.cost


def test_a_price_of_gpus_is_none_of_cpus(reached: Report) -> None:
    cost = with_cost(with_figures(reached, device_kind="cpu"), 2.5).cost
    assert cost is not None
    assert cost.savings == []
    assert "price of a GPU" in cost.missing["per_1000_steps"]


def test_a_cost_of_ranks_that_were_not_read_is_extrapolated(reached: Report) -> None:
    page = shown(with_cost(with_figures(reached, world_size=300), 2.5))
    assert "at 2.50 an hour, extrapolated from 2 of 300 ranks)" in page


def test_a_gpu_that_ranks_share_is_paid_for_once(report: Report) -> None:
    """Where the number of devices follows from the ranks alone."""
    ranks = [rank.model_copy(update={"gpu_ranks": [0, 1]}) for rank in report.measured.ranks]
    found = with_figures(report, efficiency=EfficiencyFigures.only("no sizes"))
    apart, together = (with_cost(with_figures(found, ranks=each), 2.5).cost for each in (report.measured.ranks, ranks))
    assert apart is not None
    assert together is not None
    assert (len(ranks), apart.devices, together.devices) == (2, 2, 1)
    assert apart.per_1000_steps == pytest.approx(2 * together.per_1000_steps)


@pytest.mark.parametrize(
    ("cost", "text"),
    [(1234.5, "1,234"), (3.391, "3.39"), (0.04672, "0.0467"), (0.00104, "0.00104"), (0.00002, "<0.0001"), (0.0, "0")],
)
def test_small_costs_have_digits(reached: Report, cost: float, text: str) -> None:
    found = Cost.only("not known", gpu_hour_price=0.9, devices=2, per_1000_steps=cost)
    page = shown(reached.model_copy(update={"cost": found}))
    assert f"Cost {text} per 1,000 steps (2 devices at 0.9 an hour)" in page


def test_the_page_has_the_section(reached: Report) -> None:
    written = page(reached)
    assert '<section id="efficiency">' in written
    assert "A datasheet" in written


def test_the_page_has_the_section_where_any_of_it_is_known(report: Report) -> None:
    """Time of kernels, rates and cost need no FLOPs."""

    def has_section(found: Report) -> bool:
        return '<section id="efficiency">' in page(found)

    nothing = with_figures(report, efficiency=EfficiencyFigures.only("no sizes"))
    assert not has_section(nothing)
    for known in ({"memory_bound_share": 0.2}, {"tokens_per_s": 5.0, "tokens_per_step": 5}):
        assert has_section(with_figures(report, efficiency=EfficiencyFigures.only("no sizes", **known)))
    assert has_section(with_cost(nothing, 2.5))
    assert "per 1,000 steps (2 devices" in page(with_cost(nothing, 2.5)).partition('<section id="efficiency">')[2]


def test_the_full_screen_report_has_the_section(reached: Report) -> None:
    lines = list(overview(with_cost(reached, 2.5), 100))
    text = " ".join("".join(span.text for span in line) for line in lines)
    assert "Efficiency (FLOPs of rank 1, 4 traced steps, detailed window)" in text
    assert "per 1,000 steps (2 devices at 2.50 an hour)" in text


def test_json_has_the_figures(reached: Report) -> None:
    document = json.loads(reached.model_dump_json())
    assert document["measured"]["efficiency"]["mfu"] == 0.4
    assert document["cost"] is None


def test_no_cost_where_ranks_may_share_a_gpu(reached):
    doubted = reached.measured.efficiency.model_copy(update={"shared_doubt": "ranks may share a GPU"})
    measured = reached.measured.model_copy(update={"efficiency": doubted})
    cost = with_cost(reached.model_copy(update={"measured": measured}), 2.5).cost
    assert cost.missing["devices"] == cost.missing["per_1000_steps"] == "ranks may share a GPU"
    assert (cost.known("devices"), cost.savings) == (None, [])


def test_an_interval_of_cost_where_ranks_may_share_a_gpu(reached):
    """1,000 steps on one device and on two."""
    update = {"shared_doubt": "rank 1 may share a GPU with rank 0", "devices_between": [1, 2]}
    doubted = reached.measured.efficiency.model_copy(update=update)
    priced = with_cost(with_figures(reached, efficiency=doubted), 2.5)
    cost, each = priced.cost, 1000 * reached.measured.step.rate_ns / 3600e9 * 2.5
    assert cost.known("per_1000_steps") is None
    assert cost.per_1000_steps_between == pytest.approx([each, 2 * each])
    saving = next(advice for advice in reached.advice if advice.saves)
    assert cost.savings[0].low == pytest.approx(each * saving.saves.low_share)
    assert cost.savings[0].high == pytest.approx(2 * each * saving.saves.high_share)
    text = "(1 to 2 devices at 2.50 an hour), in the unit of --gpu-hour-price; rank 1 may share a GPU with rank 0"
    assert text in shown(priced)
