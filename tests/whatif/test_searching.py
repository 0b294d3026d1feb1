"""The best bucket plan, where it can be computed by hand or by trying everything."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.measured import Missing
from dptune.whatif.cpu.buckets import Caps, assign
from dptune.whatif.cpu.changes import changed
from dptune.whatif.cpu.model import Loading, Pass, RankStep, StepModel
from dptune.whatif.cpu.replay import step_ns
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.searching import best_sets, caps_text, curve, plan

MB = 2**20


def model(ready, sizes, link, after=50.0, passes=1, **more):
    """Two like ranks; the last gradient is the end of the compute."""
    one = Pass(0.0, 100.0, ready[-1], tuple(ready))
    step = RankStep((one,) * passes, after)
    return StepModel({0: [step], 1: [step]}, tuple(sizes), Caps((sum(sizes),)), link, **more)


def test_the_best_plan_by_hand():
    """Gradients of 100 bytes ready at 100, 200, 300, 400; a collective takes 60 and 1 for each byte: of k gradients
    60 + 100 k. What is ready last, at 400, takes 160 at least: 560 is the least. Of each by itself the link is busy
    for 640 from 100 on: 740. With 2, 1, 1: from 200 till 460, then 160, 160: 780. With 1, 2, 1: 100 to 260, 300 to
    560, 560 to 720. With 1, 3: 100 to 260, 400 to 760. With 3, 1: 300 to 660, to 820. With 2, 2: 200 to 460, 460 to
    720. With 4: 400 to 860. With 1, 1, 2: to 260, to 420, 420 to 680: the best.
    """
    four = model([100, 200, 300, 400], [100] * 4, Link(60, 1.0))
    assert plan(four, four.caps) == (1, 1, 2)
    best = changed(four, {"ddp.bucket_cap_mb_list": caps_text(four.gradient_bytes, (1, 1, 2))})
    assert step_ns(best) == pytest.approx(100 + 680 + 50)


GRADIENTS = st.lists(st.tuples(st.integers(1, 200), st.integers(1, 300)), min_size=1, max_size=7)


@pytest.mark.long
@given(GRADIENTS, st.integers(0, 100))
def test_of_few_gradients_no_plan_is_better(parts, alpha):
    ready = [sum(took for took, _ in parts[: at + 1]) for at in range(len(parts))]
    made = model(ready, [size for _, size in parts], Link(alpha, 1.0))

    def took(counts):
        return step_ns(changed(made, {"ddp.bucket_cap_mb_list": caps_text(made.gradient_bytes, counts)}))

    found = took(plan(made, made.caps))
    cuts = [[at for at in range(1, len(parts)) if which >> at & 1] for which in range(0, 2 ** len(parts), 2)]
    plans = [[after - before for before, after in pairwise([0, *own, len(parts)])] for own in cuts]
    assert found == pytest.approx(min(map(took, plans)))


@pytest.mark.long
@settings(max_examples=settings.default.max_examples // 3, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 300)), min_size=11, max_size=20), st.integers(0, 100))
def test_of_many_gradients_the_plan_is_no_worse_than_where_it_was_looked_for(parts, alpha):
    ready = [sum(took for took, _ in parts[: at + 1]) for at in range(len(parts))]
    made = model(ready, [size for _, size in parts], Link(alpha, 1.0))
    counts = plan(made, made.caps)
    assert sum(counts) == len(parts)
    found = step_ns(changed(made, {"ddp.bucket_cap_mb_list": caps_text(made.gradient_bytes, counts)}))
    for caps in (made.caps, Caps((1,)), Caps((sum(made.gradient_bytes),))):
        assert found <= step_ns(replace(made, caps=caps)) * (1 + 1e-9)


def test_of_a_compiled_module_no_size_is_proposed_that_torch_refuses():
    """Its DDPOptimizer wants buckets as large as DDP's own first one. Small ones would be best here."""
    made = model([100e6, 200e6, 300e6, 400e6], [MB] * 4, Link(0.0, 0.01))
    free = [one.cap_mb for one in curve(made)]
    assert min(size for size in free if size) < 1
    compiled = replace(made, least_cap_bytes=MB)
    assert [one.cap_mb for one in curve(compiled)] == [None, 1, 2, 5]
    small = model([100e6, 200e6], [MB // 4] * 2, Link(0.0, 0.01), least_cap_bytes=MB)
    assert [one.cap_mb for one in curve(small)] == [None]
    assert [*best_sets(small, accumulates=False)] == []
    for name, value in (("ddp.bucket_cap_mb", 0.5), ("ddp.bucket_cap_mb_list", "0.2,0.5")):
        with pytest.raises(Missing, match="torch's DDPOptimizer refuses buckets below 1 MiB"):
            changed(compiled, {name: value})
        assert changed(made, {name: value}).caps != made.caps
    assert changed(compiled, {"ddp.bucket_cap_mb_list": "0.2,1"}).caps != made.caps


@pytest.mark.long
def test_of_very_many_gradients_few_plans_are_replayed(monkeypatch):
    """Without a bucket for each, and a bucket split at a few places only."""
    count, replayed = 400, []
    made = model([1e5 * (at + 1) for at in range(count)], [4096] * count, Link(1e5, 1.0))
    monkeypatch.setattr("dptune.whatif.searching.step_ns", lambda one: replayed.append(one) or step_ns(one))
    counts = plan(made, made.caps)
    assert sum(counts) == count
    assert len(replayed) < 4 * 300 + 50
    best = min(one.step_ns for one in curve(made))
    assert step_ns(changed(made, {"ddp.bucket_cap_mb_list": caps_text(made.gradient_bytes, counts)})) <= best


@given(st.lists(st.integers(4, 40 * MB).map(lambda size: size // 4 * 4), min_size=1, max_size=12), st.data())
def test_the_sizes_to_ask_for_make_the_plan(sizes, data):
    borders = sorted({0, len(sizes), *data.draw(st.lists(st.integers(1, len(sizes))))})
    counts = [after - before for before, after in pairwise(borders)]
    caps = Caps.of(each_mb=[float(one) for one in caps_text(sizes, counts).split(",")])
    assert [len(bucket) for bucket in assign(sizes, caps)] == counts


def test_the_curve_has_each_way_to_make_buckets_once():
    tried = curve(model([1e6, 2e6, 3e6], [MB, MB, MB], Link(0, 1.0)))
    assert [(one.cap_mb, one.buckets) for one in tried] == [(None, 2), (0.001, 3), (2, 2), (5, 1)]


def test_the_best_set_is_of_all_together():
    """Two passes, each with a collective of 3 MB at 1 byte per ns, which takes as long as the compute of both."""
    two = model([1e6, 2e6, 3e6], [MB, MB, MB], Link(0, 1.0), passes=2)
    first, *more = best_sets(two, accumulates=True)
    assert first["ddp.no_sync"] is True
    assert step_ns(changed(two, first)) == pytest.approx(
        min(one.step_ns for one in curve(changed(two, {"ddp.no_sync": True})))
    )
    assert not more  # a list of sizes saves nothing over one size
    assert all("ddp.no_sync" not in one for one in best_sets(two, accumulates=False))


@pytest.mark.parametrize(("prepare_ms", "cores", "best"), [(8, 2.0, 2), (8, 1.0, 2), (20, 1.0, 5)])
def test_workers_are_tried_where_the_loader_has_none(prepare_ms, cores, best):
    """As many as a batch's preparation has steps of 4.4 ms, of which 1.4 are taking it over; it waits, for the most
    part, so that more of them than cores are of use."""
    loading = Loading(batch=8, workers=0, prepare_ns=prepare_ms * 1e6, computing=0.0, cores_per_rank=cores)
    one = Pass(prepare_ms * 1e6, 100.0, 3e6, (1e6, 2e6, 3e6))
    waiting = StepModel({0: [RankStep((one,), 50.0)]}, (4, 4, 4), Caps.of(), Link(0, 1.0), loading=loading)
    assert next(best_sets(waiting, accumulates=False)) == {"loader.num_workers": best}


def test_nothing_is_best_where_nothing_saves():
    assert list(best_sets(model([1e6, 2e6, 3e6], [4, 4, 4], Link(0, 1.0)), accumulates=False)) == []
