"""DP411: low MFU by the kind of kernels that wastes most."""

import pytest

from dptune.advise.engine import build_report
from dptune.config import Settings
from dptune.measured import DtypeFlops, EfficiencyFigures, KernelFigures, KindFlops, Missing
from dptune.runfile.compilation import CompileFacts
from dptune.runfile.facts import DeviceFacts
from dptune.testing import figures
from dptune.trace import load

from .. import reading  # noqa: TID252 - tests are no installed package

STEP_NS = 10_000_000
PEAK = 312e12


def efficiency(mfu, rates, counted=1.0):
    """One step of 10 ms; for each kind, its share of the step and its rate as a share of the peak."""
    kinds = []
    for kind, (share, reached) in rates.items():
        time_ns = round(share * STEP_NS)
        flops = round(reached * PEAK * time_ns / 1e9)
        kinds.append(figures(KindFlops, kind=kind, flops=flops, time_ns=time_ns, flops_per_s=reached * PEAK))
    total = sum(kind.flops for kind in kinds)
    dtypes = [figures(DtypeFlops, dtype="bf16", flops=total, peak_flops_per_s=PEAK, source="a datasheet")]
    known = {"mfu": mfu, "flops": total, "kinds": kinds, "dtypes": dtypes, "step_ns": STEP_NS, "counted_share": counted}
    return figures(EfficiencyFigures, steps=1, devices=1, **known)


@pytest.fixture
def run(make_measured, make_facts):
    """A step of a GPU, with its efficiency; `fusible` is the share of kernels that torch.compile fuses."""

    def make(mfu, rates, fusible=0.0, counted=1.0, **facts):
        measured = make_measured(device_kind="cuda")
        kernels = figures(
            KernelFigures,
            counted="kernels",
            per_step=100,
            median_ns=10_000,
            total_ns=STEP_NS,
            top=[],
            kinds_ns={"elementwise": round(fusible * measured.account.window_ns)},
        )
        update = {"efficiency": efficiency(mfu, rates, counted), "kernels": kernels}
        missing = {name: why for name, why in measured.missing.items() if name not in update}
        return measured.model_copy(update={**update, "missing": missing}), [make_facts(**facts)]

    return make


def test_products_far_from_the_peak(ask, run):
    """Half the step at 28 % of the peak, where 70 % can be had: 30 % of the step is wasted."""
    measured, facts = run(0.14, {"matrix product": (0.5, 0.28), "attention": (0.1, 0.35)}, fusible=0.05)
    (advice,) = ask("DP411", measured, facts)
    assert advice.title == (
        "MFU is 14 %: matrix product kernels take 50 % of a step and run at 28 % of the GPU's peak: larger or batched "
        "products, lower precision"
    )
    assert advice.saves.high_share == pytest.approx(0.5 * (1 - 0.28 / 0.7))
    assert advice.saves.low_share == 0
    assert (advice.confidence, advice.saves.basis) == ("low", "bound")
    wasted = {found.label: found.value for found in advice.evidence if "wasted" in found.label}
    assert wasted == {
        "wasted by matrix product kernels (28 % of the peak)": pytest.approx(0.3),
        "wasted by attention kernels (35 % of the peak)": pytest.approx(0.05),
        "wasted by kernels that could be fused": pytest.approx(0.05),
    }


def test_kernels_that_could_be_fused(ask, run):
    measured, facts = run(0.1, {"matrix product": (0.2, 0.6)}, fusible=0.4)
    (advice,) = ask("DP411", measured, facts)
    assert "kernels that could be fused take 40 % of a step" in advice.title
    assert "torch.compile" in advice.title
    assert ask("DP411", *run(0.1, {"matrix product": (0.2, 0.6)}, fusible=0.4, compiled=CompileFacts())) == []


@pytest.mark.parametrize(
    ("mfu", "share", "reached"),
    [
        (0.35, 0.5, 0.2),  # MFU is not low
        (0.2, 0.5, 0.69),  # as good as such kernels get
        (0.03, 0.08, 0.3),  # the GPU waits
    ],
)
def test_quiet(ask, run, mfu, share, reached):
    assert ask("DP411", *run(mfu, {"matrix product": (share, reached)})) == []


def test_what_is_not_known(ask, run):
    with pytest.raises(Missing, match="operators with known sizes account for 60 %"):
        ask("DP411", *run(0.1, {"matrix product": (0.5, 0.2)}, counted=0.6))
    measured, (facts,) = run(0.1, {"matrix product": (0.5, 0.2)}, device=DeviceFacts("cuda", index=0))
    assert ask("DP411", measured, [facts, facts])  # each may be the first that its process sees
    ranks = [rank.model_copy(update={"gpu_ranks": [0, 1]}) for rank in measured.ranks]
    with pytest.raises(Missing, match="several ranks run on one GPU"):
        ask("DP411", measured.model_copy(update={"ranks": ranks}), [facts, facts])


def test_a_cpu_has_no_peak(ask, make_measured, make_facts):
    assert ask("DP411", make_measured(device_kind="cpu"), [make_facts()]) == []


@pytest.mark.parametrize(
    ("name", "fires"),
    [
        ("hta_training/b1ceb4c_control.json.gz", True),
        ("single_gpu/c4adadd_dcb0aa1a78e7_4399.1752181589589738346.pt.trace.json.gz", False),
    ],
)
def test_public_traces(real_traces, name, fires):
    """Recommendation training with unfused kernels; and a GPU that waits for launches, whose kernels are few."""
    run = load([real_traces / name])
    advice = build_report(run, reading.measured(real_traces / name), Settings(select=("DP411",))).advice
    assert ["kernels that could be fused take 22 % of a step" in found.title for found in advice] == [True] * fires
