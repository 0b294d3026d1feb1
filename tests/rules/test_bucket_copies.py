"""Copies of gradients out of DDP's buckets: the rule, on runs made by hand."""

import pytest

from dptune.measured import BucketCopyFigures
from dptune.runfile.communication import DdpFacts

COPIES = DdpFacts("Net", "train.py:31", gradient_as_bucket_view=False)


@pytest.fixture
def said(ask, make_facts, hand_made):
    def say(host=0.04, gpu=0.003, idle=0.3, ddp=COPIES, device="cuda"):
        whole = hand_made.STEP_NS
        idle_ns = round(idle * whole)
        run = hand_made.measured_run(
            spent=[hand_made.Account(window_ns=whole, compute_ns=whole - idle_ns, launch_idle_ns=idle_ns)],
            device=device,
            bucket_copies=hand_made.figures(BucketCopyFigures, copies_per_step=161, host_share=host, device_share=gpu),
        )
        return ask("DP116", run, [make_facts(ddp=[ddp])])

    return say


def test_a_gpu_that_waits_for_its_host(said):
    (advice,) = said()
    assert (
        advice.title == "DDP copies 161 gradients out of its buckets (4 % of a step): pass gradient_as_bucket_view=True"
    )
    (change,) = advice.changes
    assert (change.knob, change.now, change.then, str(change.at)) == (
        "ddp.gradient_as_bucket_view",
        False,
        True,
        "train.py:31",
    )
    assert (advice.impact, advice.saves.basis, advice.numerics) == ("low", "bound", "same")


@pytest.mark.parametrize(
    ("spent", "share"),
    [({"idle": 0.03}, 3), ({"idle": 0.01}, None), ({"idle": 0.0, "gpu": 0.06}, 6), ({"device": "cpu"}, None)],
)
def test_it_counts_the_hosts_time_while_the_gpu_idles_and_the_gpus_own(said, spent, share):
    found = said(**spent)
    assert [f"({share} % of a step)" in advice.title for advice in found] == ([] if share is None else [True])


def test_views_and_unknown_settings(said):
    assert said(ddp=DdpFacts("Net", gradient_as_bucket_view=True)) == []
    assert said(ddp=DdpFacts("Net")) == []
