"""Which steps are set aside, on which ranks, and what they are then no part of. Times in microseconds."""

from dataclasses import replace
from itertools import pairwise
from statistics import median, quantiles

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.advise.trust import judge
from dptune.measure.figures import measure
from dptune.measure.steps.outliers import outliers, recurring
from dptune.measure.steps.steady import figures, steady
from dptune.measure.steps.times import step_time
from dptune.measure.views import view
from dptune.runfile.facts import Facts
from dptune.runfile.window import Window
from dptune.trace import load

from .handmade import LOADER, US, all_reduce, annotation, call, copy, launched, load_events, step

OPTIMIZER = "Optimizer.step#SGD.step"


def run_of(tmp_path, lengths, ranks=1, names=None, marked=True, since=(0, 0), lacking=0):
    """A step launches a copy and a kernel at its beginning; the kernel runs until 10 before its end.

    `since`: how many of the first steps each rank has not recorded; `lacking`: how late rank 1's clock is.
    """
    begins = np.cumsum([1000, *lengths]).tolist()
    recorded = [[] for _ in range(ranks)]
    for rank, events in enumerate(recorded):
        for number, (start, end) in list(enumerate(pairwise(begins)))[since[rank] :]:
            start, end = (at - lacking * rank for at in (start, end))
            name = names[number] if names else "gemm"
            events.append(step(number, start, end) if marked else annotation(OPTIMIZER, start - 1, start))
            events.append(call("cudaMemcpyAsync", start, start + 1, 2 * number + 1))
            events.append(copy("HtoD (Pinned -> Device)", start + 2, start + 5, 2 * number + 1, bytes=8))
            events += launched(name, start + 1, start + 5, end - 10, 2 * number + 2)
    return load_events(tmp_path, *recorded)


def views_of(run):
    return [view(rank.rank, rank.light) for rank in run.ranks]


def kept(run):
    views, aside = steady(views_of(run))
    return [[window.number for window in own.devices[0].windows] for own in views], [step.number for step in aside]


def plain(lengths):
    """The rule as it is said, by trying: the steps that are longer than the limit of the others."""
    found = []
    for many in range(1, len(lengths) // 3 + 1):
        if len(lengths) < 4:
            break
        order = sorted(lengths)
        others, long = order[:-many], order[-many:]
        low, _, high = quantiles(others, n=4, method="inclusive")
        limit = max(median(others) + 5 * (high - low), 1.5 * median(others))
        if long[0] > limit >= others[-1]:
            found = long
    return found


@pytest.mark.parametrize(
    ("lengths", "long"),
    [
        ([900, 100, 101, 102], [0]),
        ([900, 100, 101], []),  # of three steps none can be told
        ([100, 102, 98, 149], []),
        ([100, 102, 98, 155], [3]),
        ([100, 140, 60, 190], []),  # noisy: 100 + 5 x 40
        ([5000, 900, 100, 101, 99, 100], [0, 1]),
        ([900, 900, 900, 100, 100, 100, 100], []),  # more than a third: that is how the run is
        ([200] * 6, []),
        ([210, 219, 425, 210, 220], [2]),
    ],
)
def test_the_rule_by_hand(lengths, long):
    assert outliers(lengths) == long


@given(st.lists(st.integers(1, 50) | st.integers(50, 1000), max_size=15))
def test_the_rule_equals_a_plain_one(lengths):
    found = outliers(lengths)
    assert sorted(lengths[at] for at in found) == plain(lengths)
    assert len(found) <= len(lengths) / 3


def test_a_long_step_is_no_part_of_any_figure(tmp_path):
    """By hand: five steps of 100, the first of 900; the last window ends with its kernel, 12 before the next step's.

    That is more than 1 % of the 388, so the last is in no figure either.
    """
    run = run_of(tmp_path, [900, 100, 100, 100, 100])
    measured = measure(run)
    (aside,) = measured.steps.set_aside
    assert (aside.number, aside.length_ns, aside.of_usual, aside.warm_up) == (0, 900 * US, 9.0, True)
    assert (aside.loader_wait_ns, aside.idle_ns, aside.spent) == (0, 12 * US, "")  # its kernel takes the rest
    assert (measured.steps.basis, measured.steps.by_rank) == ("profiler_step", {0: 3})
    assert measured.steps.cut_short == [4]
    assert measured.account.window_ns == 100 * 3 * US
    assert measured.account.compute_ns == 85 * 3 * US
    (copies,) = measured.copies
    assert (copies.calls, copies.calls_per_step) == (3, 1.0)
    assert measured.ranks[0].devices[0].whole.window_ns == (900 + 400 - 2 - 10) * US


def test_the_same_numbers_go_on_all_ranks(tmp_path):
    """By hand: on rank 1 the step is as long, for its kernel waits."""
    assert kept(run_of(tmp_path, [100, 100, 100, 700, 100, 100], ranks=2)) == ([[0, 1, 2, 4, 5]] * 2, [3])


def synchronised(waits, every=1):
    """Per rank and step: the loader, a kernel of 60 from 2 after it, every so many steps an all-reduce.

    That ends 10 after the last rank has come, and each waits for it. `waits` are by rank how long its loader takes in
    each step.
    """
    recorded = [[] for _ in waits]
    at = [0] * len(waits)
    for number in range(len(waits[0])):
        begins = [start + own[number] + 2 for start, own in zip(at, waits, strict=True)]
        ends = [begin + 60 for begin in begins]
        reduced = number % every == every - 1
        meet = max(ends) + 10
        for rank, events in enumerate(recorded):
            begin, end = begins[rank], meet if reduced else ends[rank]
            events += [step(number, at[rank], end), annotation(LOADER, at[rank], begin - 2)]
            events += launched("gemm", begin - 2, begin, ends[rank], 2 * number + 1)
            if reduced:
                events.append(call("cudaLaunchKernel", begin - 1, begin, 2 * number + 2))
                events.append(all_reduce(ends[rank], meet, 2 * number + 2, 10, "0", len(waits)))
            at[rank] = end
    for start, own, events in zip(at, waits, recorded, strict=True):
        begin = start + own[-1] + 2
        events += [annotation(LOADER, start, begin - 2), *launched("gemm", begin - 2, begin, begin + 1, 99)]
    return recorded


def stalling_once(rank, number, steps, ranks=3):
    """The loader takes 8 in each step, and 308 once."""
    return [[308 if (own, at) == (rank, number) else 8 for at in range(steps)] for own in range(ranks)]


def test_a_stall_on_one_rank_is_excluded_in_the_window_that_holds_it(tmp_path):
    """A step takes 8 + 2 + 60 + 10. Rank 2 stalls before the first operation of step 4: in its own window of step 3.

    The others wait for it in step 4. All ranks then have the same steps, of 80 each. The mean of
    all eight is (8 x 80 + 300) / 8.
    """
    measured = measure(load_events(tmp_path, *synchronised(stalling_once(2, 4, 8))))
    alone, waited = measured.steps.set_aside
    assert (alone.number, alone.rank, alone.length_ns, alone.loader_wait_ns) == (3, 2, 380 * US, 308 * US)
    assert (waited.number, waited.rank, waited.length_ns, waited.loader_wait_ns) == (4, None, 380 * US, 8 * US)
    assert (alone.mean_ns, waited.mean_ns) == ((80 + 80 + 380) * US / 3, (380 + 380 + 80) * US / 3)
    assert measured.steps.by_rank == {0: 6, 1: 6, 2: 6}
    assert (measured.step.time_ns, measured.step.light_median_ns) == (80 * US, 80 * US)
    assert measured.share("input_idle_ns") == measured.input.wait_share == 8 / 80
    assert measured.share("exposed_waiting_ns") == 0
    said = {one.code: one.text for one in judge(measured, []).findings}["steps-set-aside"]
    assert said == (
        "2 of 8 traced steps are excluded from all figures: steps 3 and 4; step 3 took 0.38 ms on rank 2 (4.8 times "
        "the median), 0.31 ms of it waiting for the data loader; with them, the mean traced step takes 0.12 ms "
        "instead of 0.08 ms"
    )


def test_of_two_ranks_each_has_its_long_step(tmp_path):
    """Rank 0 stalls for 300 in its window of step 3, and rank 1 waits in its window of step 4."""
    _, aside = steady(views_of(load_events(tmp_path, *synchronised(stalling_once(0, 4, 8, ranks=2)))))
    assert [(one.number, one.rank, one.length_ns) for one in aside] == [(3, 0, 380 * US), (4, 1, 380 * US)]


def test_the_others_wait_for_a_stall_in_the_next_step_that_communicates(tmp_path):
    """The ranks meet in odd steps. Rank 2 stalls before step 6: in its window of 5. The others wait in step 7."""
    run = load_events(tmp_path, *synchronised(stalling_once(2, 6, 12), every=2))
    views, aside = steady(views_of(run))
    assert [(one.number, one.rank) for one in aside] == [(5, 2), (7, None)]
    lengths = {window.length_ns for own in views for window in own.devices[0].windows}
    assert lengths == {70 * US, 80 * US}


def test_a_long_step_on_one_rank_that_no_rank_waits_for_stays(tmp_path):
    """No step communicates: the others have no long step."""
    run = load_events(tmp_path, *synchronised(stalling_once(2, 4, 8), every=99))
    assert steady(views_of(run))[1] == []


@pytest.mark.parametrize(
    ("slow", "found"),
    [
        ([4, 9, 14], [4, 9, 14]),
        ([4, 9], []),  # twice
        ([4, 9, 13], []),
        ([4, 8, 12], []),  # not in step 0
        ([0, 4, 8, 12], [0, 4, 8, 12]),
        ([0, 4, 9, 14], [4, 9, 14]),
    ],
)
def test_long_steps_that_recur(slow, found):
    assert recurring({at: 300 if at in slow else 100 for at in range(16)}, slow) == found


def test_a_warm_up_is_no_turn():
    took = {at: 300 if at % 4 == 0 else 100 for at in range(16)} | {0: 9000}
    assert recurring(took, [0, 4, 8, 12]) == [4, 8, 12]


def test_slow_steps_that_recur_are_part_of_the_mean(tmp_path):
    """Every fifth step takes 180: (4 x 100 + 180) / 5. Of 16 steps the last completes no period."""
    measured = measure(run_of(tmp_path, [100, 100, 100, 100, 180] * 3 + [100]))
    assert measured.steps.set_aside == []
    assert measured.step.time_ns == 116 * US
    assert (measured.steps.grouped_by, measured.steps.period) == ("time", 5)
    assert [(group.numbers[:4], group.mean_ns) for group in measured.steps.groups] == [
        ([0, 1, 2, 3], 100 * US),
        ([4, 9, 14], 180 * US),
    ]
    assert [*measured.steps.surplus, *measured.steps.cut_short] == [15]


def test_operations_of_a_step_set_aside_lie_outside_all_steps(tmp_path):
    (own,), _ = steady(views_of(run_of(tmp_path, [100, 700, 100, 100])))
    assert [step.number for step in own.steps] == [0, 2, 3]
    assert own.devices[0].launched_in.tolist() == [0, 0, -1, -1, 1, 1, 2, 2]


@pytest.mark.parametrize("name", ["ncclDevKernel_AllReduce_Sum_f32", "multi_tensor_apply_kernel<Adam>"])
def test_an_optimizer_step_among_micro_batches_stays(tmp_path, name):
    names = ["gemm", "gemm", "gemm", name]
    assert kept(run_of(tmp_path, [100, 100, 100, 200], names=names)) == ([[0, 1, 2, 3]], [])
    assert kept(run_of(tmp_path, [100, 100, 100, 200], names=[name] * 4)) == ([[0, 1, 2]], [3])


def test_the_last_window_does_not_shorten_the_step_time(tmp_path):
    """By hand: the last lacks 12 of 100. With three others it is left out, with two it is needed."""
    whole, short = step_time([], views_of(run_of(tmp_path, [100] * 4))), (88, 100, 100)
    assert (whole.light_median_ns, whole.light_q1_ns, whole.light_q3_ns, whole.light_steps) == (*[100 * US] * 3, 3)
    few = step_time([], views_of(run_of(tmp_path, [100] * 3)))
    assert (few.light_q1_ns, few.light_steps) == (round(np.percentile(short, 25) * US), 3)


def test_untraced_steps_are_counted_and_kept(tmp_path):
    window = Window("untraced", 1, [100, 100, 101, 99, 900], loader_wait_ns=[1, 1, 1, 1, 700])
    times = step_time([Facts(0, windows=[window]), Facts(1, windows=[Window("untraced", 1, [100] * 5)])], [])
    assert (times.untraced_steps, times.untraced_outliers, times.untraced_median_ns) == (5, 1, 100)
    assert (times.longest_outlier_ns, times.longest_outlier_wait_ns) == (900, 700)


def test_with_further_processes_the_step_time_is_the_median_of_all():
    facts = [[Facts(0, windows=[Window("untraced", 1, [took] * 3)])] for took in (100, 130, 120, 90)]
    times = step_time(facts[0], [], facts[1:])
    assert (times.untraced_median_ns, times.repeats_ns, times.time_ns) == (100, [130, 120, 90], 110)
    assert step_time([Facts(0)], [], facts[1:]).repeats_ns == []


def test_steps_without_numbers_are_numbered_by_what_other_ranks_do_meanwhile(tmp_path):
    """The ends of the optimizer bound steps: n ends make n - 1 steps. Rank 1 began to record two steps later."""
    lengths = [100, 110, 90, 100, 120, 100, 100]
    assert kept(run_of(tmp_path, lengths, 2, marked=False, since=(0, 2), lacking=20))[0] == [
        [0, 1, 2, 3, 4, 5],
        [2, 3, 4, 5],
    ]
    assert kept(run_of(tmp_path, lengths, 2, marked=False, since=(2, 0)))[0] == [[2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]


def test_where_clocks_differ_the_first_steps_are_the_same(tmp_path):
    lengths = [100] * 6
    assert kept(run_of(tmp_path, lengths, 2, marked=False, lacking=-100_000))[0] == [[0, 1, 2, 3, 4]] * 2


def test_steps_that_begin_further_apart_than_a_quarter_are_not_taken_for_the_same(tmp_path):
    run = run_of(tmp_path, [100] * 7, 2, marked=False, since=(0, 2), lacking=40)
    assert kept(run)[0] == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3]]


def test_what_tells_the_steps_is_said(tmp_path):
    found = figures(*steady(views_of(run_of(tmp_path, [100] * 5, marked=False))))
    assert (found.basis, found.similarity, found.by_rank) == ("optimizer", 1.0, {0: 4})
    marked = figures(*steady(views_of(run_of(tmp_path, [100] * 5))))
    assert (marked.basis, marked.known("similarity")) == ("profiler_step", None)


def test_the_rank_whose_steps_are_least_alike_tells_how_alike_they_are(tmp_path):
    views = views_of(run_of(tmp_path, [100] * 5, 2, marked=False))
    told = [replace(own, similarity=similarity) for own, similarity in zip(views, (0.98, 0.95), strict=True)]
    assert figures(told, []).similarity == 0.95


KEPT = ("torchrec_straggler_4xv100", "nanogpt_8xh100", "hta_training/b1ceb4c", "single_gpu/29571b7")


@pytest.mark.parametrize(
    "name",
    [
        *(KEPT[0], "kineto_resnet50_loader/234cf25"),
        *(pytest.param(name, marks=pytest.mark.thorough) for name in (*KEPT[1:], "torchrec_qcomm_a_4xv100")),
    ],
)
def test_public_runs_that_keep_all_their_steps(real_traces, name):
    folder = real_traces / name
    run = load([folder] if folder.is_dir() else list(folder.parent.glob(f"{folder.name}*")))
    views, aside = steady(views_of(run))
    assert aside == []
    assert all(own.windows >= 3 for own in views)


def test_a_public_run_with_one_step_twice_as_long(real_traces):
    (path,) = real_traces.glob("cpu_only/05cd72f*")
    _, (aside,) = steady(views_of(load([path])))
    assert (aside.number, aside.warm_up, aside.of_usual) == (553, False, pytest.approx(1.98, abs=0.01))


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        *("healthy", "starved_loader"),
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("tiny_buckets", "accumulation_without_no_sync")),
    ],
)
def test_the_sample_runs_keep_all_their_steps(pytestconfig, name):
    _, aside = steady(views_of(load([pytestconfig.rootpath / "sample_traces" / name])))
    assert aside == []
