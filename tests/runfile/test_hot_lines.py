"""Lines in which a function was found most, of made-up samples."""

import pytest

from dptune.runfile.facts import Facts
from dptune.runfile.hot_lines import found_share, hottest_line, sampled_phase, sampled_share
from dptune.runfile.window import SampledFacts, Window


def ranks(*samples):
    """One rank for each list of (path, what the last line calls, looks, ns)."""
    return [
        Facts(
            rank,
            windows=[
                Window(
                    "untraced",
                    3,
                    sampled=[
                        SampledFacts(path.split(" > "), through=through, looks=looks, steps=[0], spent_ns=[ns])
                        for path, through, looks, ns in places
                    ],
                )
            ],
        )
        for rank, places in enumerate(samples)
    ]


LOSS = [
    ("main (a/train.py:9) > Loss.pairs (loss.py:24)", "torch.dot", 3, 100),
    ("main (a/train.py:9) > Loss.pairs (loss.py:26)", "torch.dot", 4, 90),
    ("main (a/train.py:9) > Loss.pairs (loss.py:26) > helper (loss.py:3)", "", 4, 50),
    ("main (a/train.py:9) > Loss.pairs (loss.py:27)", "", 2, 900),
    ("main (a/train.py:12)", "torch.Tensor.backward", 9, 2000),
]


def test_the_line_with_most_time_and_enough_looks():
    assert hottest_line(ranks(LOSS), "pairs", "loss.py") == "loss.py:26"  # 90 and 50; two looks may be chance
    assert hottest_line(ranks(LOSS), "pairs", "other.py") is None
    assert hottest_line(ranks(LOSS), "fairs", "loss.py") is None


def test_all_ranks_count():
    other = [("Loss.pairs (loss.py:27)", "", 1, 10)]
    assert hottest_line(ranks(LOSS, other), "pairs", "loss.py") == "loss.py:27"


def test_only_while_the_line_calls_a_function():
    assert hottest_line(ranks(LOSS), "main", "a/train.py", "backward") == "a/train.py:12"
    assert hottest_line(ranks(LOSS), "main", "a/train.py", "dot") is None  # another function's line calls it
    assert hottest_line(ranks(LOSS), "pairs", "loss.py", "dot") == "loss.py:24"


def saving(ms, looks=10, phase=""):
    ours = SampledFacts(
        ["main (train.py:9)", "save (io.py:3)"], phase, looks=looks, steps=[0], spent_ns=[ms * 1_000_000]
    )
    rest = SampledFacts(["main (train.py:12)"], "backward", looks=40 - looks, steps=[0], spent_ns=[1])
    return Facts(0, windows=[Window("untraced", 3, [100_000_000], sampled=[ours, rest])])


def test_a_share_with_its_sampling_error():
    """Of 40 looks 10: a share of 0.25 is unsure by 1.645 x sqrt(0.25 x 0.75 / 40) = 0.113."""
    found = sampled_share([saving(25)], "save", "io.py")
    assert found.by_rank == {0: (pytest.approx(0.137, abs=1e-3), 0.25, pytest.approx(0.363, abs=1e-3))}
    assert found.samples == 10


def test_of_each_rank_if_one_was_found_there_often():
    """The other was not found there, or rarely: of 40 looks 0.02 is unsure by 0.036."""
    ranks = [saving(25), saving(2, looks=4), saving(0, looks=0)]
    for rank, own in enumerate(ranks):
        own.rank = rank
    found = sampled_share(ranks, "save", "io.py")
    assert found.by_rank[1] == (0, 0.02, pytest.approx(0.056, abs=1e-3))
    assert found.by_rank[2] == (0, 0, 0)


def test_no_share_where_no_rank_is_found_there_often_or_all_train():
    assert sampled_share([saving(25, looks=4)], "save", "io.py") is None
    assert sampled_share([saving(25, phase="forward")], "save", "io.py") is None
    assert sampled_share([], "save", "io.py") is None
    without = Facts(1, windows=[Window("untraced", 3, [100_000_000])])
    assert sampled_share([saving(25), without], "save", "io.py") is None


def test_a_phase_and_a_function_in_all_phases():
    trains = [saving(25, phase="optimizer")]
    assert sampled_share(trains, "save", "io.py", training=True).by_rank[0].likely == 0.25
    assert sampled_phase(trains, "optimizer").by_rank[0].likely == 0.25
    assert sampled_phase(trains, "forward") is None


def test_at_most_what_samples_allow():
    """By hand, with Wilson's formula and z = 1.645."""
    assert found_share([saving(25)], 0, "save", "io.py") is None  # 40 looks are too few
    # but for the upper end, if 5 are in the function: (0.25 + 0.03382 + 1.645 x sqrt(0.004688 + 0.000423)) / 1.06765
    assert found_share([saving(25)], 0, "save", "io.py", few=True) == (0.25, pytest.approx(0.3760, abs=1e-3))
    assert found_share([saving(25)], 0, "load", "io.py", few=True) is None
    many = saving(25)
    many.windows[0].sampled[1].looks = 90
    # 10 of 100: (0.1 + 0.01353 + 1.645 x sqrt(0.0009 + 0.0000676)) / 1.02706
    assert found_share([many], 0, "save", "io.py") == (0.1, pytest.approx(0.1604, abs=1e-3))
    # None of 100: 2 x 0.01353 / 1.02706
    assert found_share([many], 0, "load", "io.py") == (0, pytest.approx(0.0263, abs=1e-3))


def test_at_most_what_samples_allow_of_a_library_function_that_the_line_itself_calls():
    """6 of 100 looks are in `unwrap_model`, called by `main`; 4 in one that `main` calls through another function."""
    facts = [saving(25)]
    facts[0].windows[0].sampled = [
        SampledFacts(["main (train.py:12)"], "optimizer", looks=90, steps=[0], spent_ns=[900]),
        SampledFacts(["main (train.py:14)"], "", "accelerate.Accelerator.unwrap_model", looks=6, spent_ns=[60]),
        SampledFacts(
            ["main (train.py:15)", "save (io.py:3)"], "", "accelerate.Accelerator.unwrap_model", looks=4, spent_ns=[40]
        ),
    ]
    assert found_share(facts, 0, "main", "train.py")[0] == 1.0
    part, most = found_share(facts, 0, "main", "train.py", calling="unwrap_model")
    assert (part, most) == (0.06, pytest.approx(0.1118, abs=1e-4))  # (0.06 + 0.01353 + 0.04134) / 1.02706


def steps_of(*shares, step_ms=100, looks=10):
    """A function with these shares of steps of that length, of which each has as many looks."""
    ns = [round(share * step_ms * 1e6) for share in shares]
    counted = round(sum(shares) * looks)
    ours = SampledFacts(["save (io.py:3)"], "", looks=counted, steps=list(range(len(ns))), spent_ns=ns)
    rest = SampledFacts(["main (train.py:12)"], "backward", looks=len(ns) * looks - counted)
    return Facts(0, windows=[Window("untraced", 3, [step_ms * 1_000_000] * len(ns), sampled=[ours, rest])])


def test_steps_that_do_the_same_tell_more_than_independent_samples():
    """16 steps with 0.2 or 0.4: 1.753 (Student, 15) x 0.1033 / 4 = 0.0453; 160 independent looks have 0.0596."""
    found = sampled_share([steps_of(*[0.2, 0.4] * 8)], "save", "io.py").by_rank[0]
    assert found == (pytest.approx(0.3 - 0.0453, abs=1e-4), pytest.approx(0.3), pytest.approx(0.3 + 0.0453, abs=1e-4))


def test_work_of_every_fifth_step_is_as_sure_as_independent_samples():
    """By steps it would be 0.2 +- 0.157, though nothing but its phase varies: 1.645 x sqrt(0.16 / 200) = 0.0465."""
    found = sampled_share([steps_of(*[1.0, 0, 0, 0, 0] * 4)], "save", "io.py").by_rank[0]
    assert found == (pytest.approx(0.1535, abs=1e-4), pytest.approx(0.2), pytest.approx(0.2465, abs=1e-4))


def test_no_share_is_known_better_than_half_a_sample_in_all():
    """All steps are found alike, with 80 looks."""
    found = sampled_share([steps_of(*[0.3] * 8)], "save", "io.py").by_rank[0]
    assert found == (pytest.approx(0.3 - 1 / 160), pytest.approx(0.3), pytest.approx(0.3 + 1 / 160))


def test_few_steps_do_not_tell_their_variation():
    """Seven steps alike: 1.645 x sqrt(0.21 / 70) = 0.0901."""
    found = sampled_share([steps_of(*[0.3] * 7)], "save", "io.py").by_rank[0]
    assert found.most == pytest.approx(0.3 + 0.0901, abs=1e-4)


def forwards(*, firsts):
    """Two methods of one name in a file, that begin at lines 20 and 30: of the first there are more samples."""
    places = [("Encoder.forward (net.py:24)", 20, 60), ("Decoder.forward (net.py:36)", 30, 40)]
    sampled = [
        SampledFacts(
            ["main (train.py:9)", path], looks=looks, steps=[0], spent_ns=[looks], firsts=[1, first] if firsts else []
        )
        for path, first, looks in places
    ]
    return [Facts(0, windows=[Window("untraced", 3, durations_ns=[100], sampled=sampled)])]


def test_of_methods_of_one_name_the_one_that_begins_at_the_line():
    run = forwards(firsts=True)
    assert hottest_line(run, "forward", "net.py:30") == "net.py:36"
    assert hottest_line(run, "forward", "net.py:20") == "net.py:24"
    assert found_share(run, 0, "forward", "net.py:30")[0] == 0.4
    assert sampled_share(run, "forward", "net.py:30").by_rank[0].likely == 0.4
    assert found_share(run, 0, "main", "train.py:1", without=[("forward", "net.py:20")])[0] == 0.4


def test_a_line_within_a_function_or_older_samples_do_not_distinguish_it():
    assert hottest_line(forwards(firsts=True), "forward", "net.py:36") == "net.py:24"
    assert hottest_line(forwards(firsts=False), "forward", "net.py:30") == "net.py:24"
