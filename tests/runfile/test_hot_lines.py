"""Lines in which a function was found most, of made-up samples."""

from dptune.runfile.facts import Facts, SampledFacts, Window
from dptune.runfile.hot_lines import hottest_line


def ranks(*samples):
    """One rank for each list of (path, what the last line calls, looks, ns)."""
    return [
        Facts(
            rank,
            windows=[
                Window(
                    "unprofiled",
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
