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
    many = saving(25)
    many.windows[0].sampled[1].looks = 90
    # 10 of 100: (0.1 + 0.01353 + 1.645 x sqrt(0.0009 + 0.0000676)) / 1.02706
    assert found_share([many], 0, "save", "io.py") == (0.1, pytest.approx(0.1604, abs=1e-3))
    # None of 100: 2 x 0.01353 / 1.02706
    assert found_share([many], 0, "load", "io.py") == (0, pytest.approx(0.0263, abs=1e-3))
