"""What predictions say that they take for granted."""

from dataclasses import replace

import pytest

from dptune.knobs import KNOBS
from dptune.whatif.assumptions import assumed
from dptune.whatif.cpu.buckets import Caps
from dptune.whatif.cpu.changes import CHANGES
from dptune.whatif.cpu.model import Latency, Loading, Pass, RankStep, StepModel
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.gpu.program import Program

STEP = RankStep((Pass(0.0, 100.0, 60.0, (50.0,)),), 50.0)
PLAIN = {"gradient_bytes": (60,), "caps": Caps((100,)), "link": Link(0, 1.0), "dtype": "float32"}
GPU = Program([], [], [], [], None, 2)


def on_cpus(**more):
    return StepModel({0: [STEP], 1: [STEP]}, **{**PLAIN, **more})


@pytest.mark.parametrize("name", sorted(set(CHANGES) & set(KNOBS)))
def test_every_prediction_says_what_it_takes_for_granted(name):
    assert assumed(on_cpus(), {name: 1}, traced=False)


def test_a_traced_host_is_slower_than_without_the_profiler():
    words = "host calls take as long as with the profiler; without it they are faster"
    assert [any(each.startswith(words) for each in assumed(GPU, {}, traced=traced)) for traced in (True, False)] == [
        True,
        False,
    ]
    assert not any(each.startswith(words) for each in assumed(on_cpus(), {}, traced=True))


def test_each_sentence_once():
    (only,) = assumed(on_cpus(), {"ddp.bucket_cap_mb": 1.0, "ddp.first_bucket_mb": 1.0}, traced=False)
    assert only == "collectives of other sizes take as long as the link model predicts"


def test_what_is_communicated_outside_of_passes_is_named_where_it_would_change():
    model = on_cpus(others=3, others_ns={0: 1e6, 1: 2e6})
    stays = "3 collectives per step outside of backward passes are unchanged (2.0 ms)"
    for name in ("link.gb_per_s", "world_size", "straggler.removed"):
        assert stays in assumed(model, {name: 2}, traced=False)
        assert stays not in assumed(on_cpus(), {name: 2}, traced=False)
    assert stays not in assumed(model, {"ddp.no_sync": True}, traced=False)


@pytest.mark.parametrize(
    ("latency", "told"),
    [
        (Latency(0.65, why="so it was"), "0.65"),
        (Latency(1.0, ((1000.0, 1.3),), why="so it was"), "1.3"),
        (Latency(1.0, ((1000.0, 1.3), (4000.0, 0.7), (16_000.0, 0.9)), why="so it was"), "0.7 to 1.3"),
    ],
)
def test_latency_that_is_another_than_the_fit_tells_is_said(latency, told):
    sentence = f"latency is {told} times the fitted value: so it was"
    assert sentence in assumed(on_cpus(latency=latency), {"ddp.bucket_cap_mb": 1.0}, traced=False)
    assert not any("latency" in one for one in assumed(on_cpus(), {"ddp.bucket_cap_mb": 1.0}, traced=False))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "link.between_alpha_us and link.between_gb_per_s are not set: assumed as within a node"),
        ({"link.between_gb_per_s": 1.0}, "link.between_alpha_us is not set: assumed as within a node"),
        ({"link.between_gb_per_s": 1.0, "link.between_alpha_us": 9.0}, ""),
    ],
)
def test_a_link_between_nodes_that_is_not_set_is_said(changes, words):
    """Of two ranks on one host, on two nodes without further settings, the step is predicted unchanged."""
    for model in (on_cpus(), GPU):
        said = " ".join(assumed(model, {"nodes": 2, **changes}, traced=False))
        assert ("assumed as within" in said) == bool(words)
        assert words in said
        assert "assumed as within" not in " ".join(assumed(model, {"nodes": 1}, traced=False))


def test_latency_that_is_set_is_taken_as_that_of_the_fit_is():
    model = on_cpus(latency=Latency(0.65, why="so it was"))
    assert "latency is 0.65 times the value set: so it was" in assumed(model, {"link.alpha_us": 5.0}, traced=False)


@pytest.mark.parametrize("changes", [{"straggler.removed": False}, {"ddp.comm_hook": "none"}, {"ddp.no_sync": False}])
def test_what_changes_nothing_takes_nothing_for_granted(changes):
    assert assumed(on_cpus(), changes, traced=False) == []


def test_steps_that_take_more_than_an_epoch_say_so():
    """Of 8 batches that a rank draws, steps take one: 8 times the batch is all of them, on twice the ranks twice."""
    loading = Loading(batch=4, workers=0, prepare_ns=1.0, computing=0.0, cores_per_rank=1.0, epoch=8, sharded=True)
    more = "a step takes more samples than an epoch has: the next epoch starts within it"
    for changes, beyond in (
        ({"loader.batch_size": 32}, False),
        ({"loader.batch_size": 36}, True),
        ({"loader.batch_size": 32, "world_size": 4}, True),
        ({"world_size": 16}, False),
        ({"world_size": 18}, True),
    ):
        assert (more in assumed(on_cpus(loading=loading), changes, traced=False)) == beyond
    assert more not in assumed(on_cpus(loading=replace(loading, epoch=None)), {"world_size": 18}, traced=False)


def test_gradients_of_an_unknown_type():
    unsaid = "gradients are assumed to be float32: the recording does not show their dtype"
    assert unsaid in assumed(on_cpus(dtype=None), {"ddp.comm_hook": "fp16"}, traced=False)
    assert unsaid not in assumed(on_cpus(), {"ddp.comm_hook": "fp16"}, traced=False)


def test_a_gpu_is_told_of_in_traced_time():
    scaled = "the profiler slows all host calls by the same factor, and no device work"
    assert scaled in assumed(GPU, {"host.times": 0.5}, traced=False)
    assert scaled not in assumed(GPU, {"host.times": 0.5}, traced=True)
    assert any("casts move" in said for said in assumed(GPU, {"ddp.comm_hook": "bf16"}, traced=True))
