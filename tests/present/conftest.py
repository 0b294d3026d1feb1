from __future__ import annotations

import sys
from typing import Any

import pytest

from dptune.advice import Advice, Change, Evidence, Headline, Location, Report, RunSummary, Saving, Skipped, Trust
from dptune.finding import Finding
from dptune.measured import (
    Account,
    AccumulationFigures,
    CollectiveFigures,
    CopyFigures,
    DeviceFigures,
    InputFigures,
    MatmulFigures,
    Measured,
    RankFigures,
    StepAccount,
    StepTime,
)

EVIL = "void \x1b[31mgemm<float>[bold red]x[/bold red]\u202e\x07"
FOREIGN = "these traces were not recorded by dptune"


def account(compute: int, hidden: int, exposed: int, copy: int, waiting: int, unexplained: int) -> Account:
    return Account(
        window_ns=compute + exposed + copy + waiting + unexplained,
        compute_ns=compute,
        exposed_unsplit_ns=exposed,
        copy_ns=copy,
        input_idle_ns=waiting,
        unexplained_idle_ns=unexplained,
        communication_ns=hidden + exposed,
        hidden_communication_ns=hidden,
    )


STEP = account(
    compute=60_000_000, hidden=9_000_000, exposed=21_000_000, copy=2_000_000, waiting=12_000_000, unexplained=5_000_000
)


def rank(number: int) -> RankFigures:
    step = StepAccount(number=3, start_ns=1, account=STEP)
    device = DeviceFigures(device=f"cuda:{number}", steps=[step], whole=STEP, device_operations=90, kernels=80)
    return RankFigures.only(
        "the rank ended before its timed steps",
        rank=number,
        host="node-a",
        device_name="NVIDIA H100 80GB HBM3",
        source=f"rank-{number:05d}.trace.json.gz",
        partial="cut off after 1,204 events" if number == 1 else "",
        events=1204,
        devices=[device],
        untraced_median_ns=140_200_000 if number == 0 else None,
        loader_wait_share=0.12,
    )


def measured() -> Measured:
    return Measured.only(
        "no second rank was read",
        world_size=2,
        backend="nccl",
        device_kind="cuda",
        samples_per_step=512,
        step=StepTime(
            basis="untraced",
            time_ns=140_200_000,
            untraced_median_ns=140_200_000,
            untraced_q1_ns=138_000_000,
            untraced_q3_ns=145_000_000,
            untraced_steps=20,
            light_median_ns=158_000_000,
            light_q1_ns=157_000_000,
            light_q3_ns=160_000_000,
            light_steps=5,
            missing={"detailed_median_ns": "the detailed window holds no whole step"},
        ),
        account=STEP,
        ranks=[rank(0), rank(1)],
        collectives=[
            CollectiveFigures.only(
                "no second rank was read",
                kind="all_reduce",
                group="default_pg",
                group_size=2,
                dtype="float32",
                message_bytes=26_214_400,
                calls=80,
                calls_per_step=8,
                median_ns=2_600_000,
                shortest_ns=2_000_000,
                total_ns=210_000_000,
            ),
            CollectiveFigures.only(
                "the kernel carries no arguments",
                kind=EVIL,
                calls=3,
                calls_per_step=0.3,
                median_ns=400_000,
                shortest_ns=3_000,
                total_ns=1_200_000,
            ),
        ],
        copies=[
            CopyFigures.only(
                "the trace does not say",
                direction="h2d",
                calls=20,
                calls_per_step=2,
                total_bytes=104_857_600,
                total_ns=31_000_000,
                exposed_ns=20_000_000,
                most_share=0.0,
                most_held_share=0.0,
            )
        ],
        input=InputFigures(
            wait_share=0.12,
            wait_ns=16_800_000,
            computed_share=0.9,
            basis="untraced",
            missing={"preparing": "not metered"},
        ),
        accumulation=AccumulationFigures(backwards_per_step=4, synchronised_backwards_per_step=4),
        matmul=MatmulFigures(
            fp32_share=0.2,
            fp32_convolution_share=0.0,
            tensor_core_share=0.3,
            unclassified_share=0.02,
            unaligned_share=0.0,
            unaligned_sized_share=0.0,
            layout_share=0.0,
            layout_calls=0.0,
            tensor_cores=True,
            operator_shares={},
        ),
    )


def advice() -> list[Advice]:
    saves = Saving(
        low_ms=0,
        high_ms=20.66,
        low_share=0,
        high_share=0.1473,
        low_us_per_sample=0,
        high_us_per_sample=40.4,
        global_batch=512,
        basis="bound",
        how="three of four all-reduces would not be made",
    )
    no_sync = Advice(
        rule="DP102",
        slug="no-sync",
        kind="time",
        impact="medium",
        title="Gradients are all-reduced 4 times per optimizer step, 1 would do",
        why="With accumulation only the last backward needs to reduce gradients; DDP reduces them in each.",
        changes=[Change(knob="ddp.no_sync", now=False, then=True, at=Location(file="train.py", line=31))],
        saves=saves,
        confidence="high",
        evidence=[
            Evidence(label="all-reduces of gradients", value=4, unit="per step"),
            Evidence(
                label=f"longest kernel {EVIL}", value=12.345, unit="ms", rank=1, start_ns=5_000_000, end_ns=9_000_000
            ),
        ],
        numerics="same",
        fingerprint="DP102:ddp",
        verify="",
    )
    tf32 = Advice(
        rule="DP401",
        slug="fp32-matmul",
        kind="time",
        impact="low",
        title="20 % of the step is fp32 matrix products without tensor cores",
        why="TF32 runs them on tensor cores.",
        changes=[Change(knob="precision.float32_matmul", now=None, then="high")],
        saves=saves.model_copy(
            update={"low_ms": 4.1, "low_share": 0.029, "low_us_per_sample": None, "basis": "replayed"}
        ),
        confidence="medium",
        evidence=[],
        numerics="changes",
        watch="Compare the loss of the first 1,000 steps.",
        fingerprint="DP401:matmul",
    )
    risk = no_sync.model_copy(
        update={
            "rule": "DP506",
            "slug": "sampler",
            "kind": "risk",
            "saves": None,
            "changes": [],
            "impact": "high",
            "title": "Every rank trains on the same samples",
            "why": "The loader has no DistributedSampler.",
        }
    )
    return [no_sync, tf32, risk]


def make_report() -> Report:
    return Report(
        dptune="0.1.0",
        run=RunSummary(sources=["runs/a"], command="python train.py", recorded="2026-11-20T23:31:08", torch="2.13.0"),
        headline=Headline(
            verdict="Communication that nothing hides takes 21.0 % of every step.",
            why="21.0 % of 140.2 ms is spent reducing gradients while nothing is calculated.",
            next="Reduce gradients once per optimizer step: see DP102.",
        ),
        trust=Trust(level="partial", findings=[Finding(code="cut", level="partial", text="rank 1's file broke off")]),
        advice=advice(),
        skipped=[Skipped(rule="DP201", reason="no link table"), Skipped(rule="DP202", reason="no link table")],
        quiet=["DP101", "DP501"],
        measured=measured(),
    )


def make_foreign() -> Report:
    """A run of which next to nothing is known."""
    device = DeviceFigures(device="cuda:0", steps=[], whole=STEP, device_operations=9, kernels=9)
    bare = RankFigures.only(FOREIGN, rank=0, source="t.json", events=12, devices=[device])
    no_steps = "no steps were found in the trace"
    empty = Measured.only(
        FOREIGN,
        step=StepTime.only("no ProfilerStep in the trace", basis="traced"),
        ranks=[bare],
        input=InputFigures.only(FOREIGN),
        accumulation=AccumulationFigures.only(FOREIGN),
        matmul=MatmulFigures.only(FOREIGN),
    )
    empty.missing.update(dict.fromkeys(("account", "collectives", "copies"), no_steps))
    return make_report().model_copy(
        update={
            "measured": empty,
            "advice": [],
            "quiet": [],
            "run": RunSummary(sources=["t.json"]),
            "trust": Trust(
                level="unjudgeable", findings=[Finding(code="steps", level="unjudgeable", text="no steps were found")]
            ),
        }
    )


@pytest.fixture(autouse=True)
def nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no terminal, textual computes each change of the screen and drops it: a fifth of what walks take.

    Tests render the lines of the screen themselves, where they look at it.
    """
    if (compositor := sys.modules.get("textual._compositor")) is None:
        return
    whole = compositor.Compositor.render_update

    def render_update(self: Any, full: bool = False, screen_stack: Any = None, simplify: bool = False) -> Any:
        if full:
            return whole(self, full, screen_stack, simplify)
        compositor.visible_screen_stack.set(screen_stack or [])
        self._dirty_regions.clear()
        return None

    monkeypatch.setattr(compositor.Compositor, "render_update", render_update)


@pytest.fixture
def report() -> Report:
    return make_report()


@pytest.fixture
def foreign() -> Report:
    return make_foreign()
