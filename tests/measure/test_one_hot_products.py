"""Products of one-hot rows with their backward pass, by hand; times in microseconds, steps of 1000."""

import pytest

from dptune.measure.host.one_hot_products import one_hot_products
from dptune.measure.views import view

from .handmade import US, load_events, operator, python, step

STEPS = 3
NODE = "autograd::engine::evaluate_function: "


def called(name, start, end, *shapes, values=(), number=None):
    args = {"Input Dims": list(shapes), "Concrete Inputs": list(values)}
    return operator(name, start, end, **args, **({} if number is None else {"Sequence number": number}))


def one_hot(at, classes="500"):
    """64 ids in 40."""
    return [
        called("aten::one_hot", at, at + 40, [8, 8], [], values=["", classes]),
        called("aten::zeros", at + 5, at + 10, [], values=["[8, 8, 500]"]),
        called("aten::scatter_", at + 20, at + 38, [8, 8, 500], [], [8, 8, 1], [], values=["", "-1", "", "1"]),
    ]


def cast(at):
    return [
        called("aten::to", at, at + 30, [8, 8, 500], []),
        called("aten::_to_copy", at + 2, at + 28, [8, 8, 500], []),
    ]


def product(at, number=0):
    return [
        called("aten::matmul", at, at + 50, [8, 8, 500], [500, 32], number=number),
        called("aten::mm", at + 5, at + 45, [64, 500], [500, 32], number=number),
    ]


def found_in(folder, make):
    events = []
    for n in range(STEPS):
        at, number = 1000 * n, 10 * n
        events += [
            step(n, at, at + 1000),
            python("songs.py(21): look_up", at + 1, at + 399),
            *make(at + 10, number),
            called("aten::add", at + 390, at + 395, [1], [1], number=number + 1),
            python("torch/_tensor.py(500): backward", at + 500, at + 700),
            operator(NODE + "MmBackward0", at + 510, at + 570, **{"Sequence number": number}),
            operator(NODE + "AddBackward0", at + 580, at + 590, **{"Sequence number": number + 1}),
        ]
    loop = python("songs.py(90): main", 0, 1000 * STEPS)
    return one_hot_products([view(0, load_events(folder, [loop, *events]).ranks[0].light)], {})


def test_rows_cast_and_product_with_its_node(tmp_path):
    (found,) = found_in(tmp_path, lambda at, number: [*one_hot(at), *cast(at + 50), *product(at + 100, number)])
    assert (found.name, found.at, found.classes, found.rows) == ("look_up", "songs.py:21", 500, 64)
    assert (found.sums, found.calls) == (False, 1)
    assert (found.cost_ns, found.backward_ns) == ((40 + 30 + 50) * US, 60 * US)
    assert found.share == pytest.approx(0.18)


SCATTERED = [
    called("aten::zeros", 12, 20, [], values=["[64, 500]"]),
    called("aten::scatter_", 30, 60, [64, 500], [], [64, 1], [], values=["", "1", "", "1"]),
]


def shifted(events, by):
    return [event | {"ts": event["ts"] + by} for event in events]


def test_rows_that_a_scatter_makes_and_a_sum_by_class(tmp_path):
    def make(at, number):
        transposed = called("aten::t", at + 60, at + 61, [64, 500])
        mm = called("aten::mm", at + 70, at + 100, [500, 64], [64, 32], number=number)
        return [*shifted(SCATTERED, at - 10), transposed, mm]

    (found,) = found_in(tmp_path, make)
    assert (found.classes, found.rows, found.sums, found.cost_ns) == (500, 64, True, 60 * US)


def test_rows_of_an_identity_matrix(tmp_path):
    def make(at, number):
        return [
            called("aten::eye", at, at + 10, [], values=["500"]),
            called("aten::index", at + 20, at + 40, [500, 500], [[64]]),
            called("aten::addmm", at + 50, at + 80, [32], [64, 500], [500, 32], [], [], number=number),
        ]

    (found,) = found_in(tmp_path, make)
    assert (found.classes, found.rows, found.sums, found.cost_ns) == (500, 64, False, 50 * US)


@pytest.mark.parametrize(
    "between",
    [
        [called("aten::rsub", 55, 65, [8, 8, 500], [8, 8, 500])],  # straight through a Gumbel softmax
        [called("aten::softmax", 55, 65, [8, 8, 500], [], [])],  # a product of other rows of that size
        [called("aten::mul", 55, 65, [64, 500], [64, 1])],
    ],
)
def test_rows_that_something_changes_before_are_none(tmp_path, between):
    def make(at, number):
        return [*one_hot(at), *shifted(between, at - 10), *product(at + 100, number)]

    assert found_in(tmp_path, make) == []


def test_the_function_that_multiplies_them_though_another_one_makes_them(tmp_path):
    """`encode` makes the rows in 40; only `look_up`, whose product takes 50 and its node 60, is one to change."""

    def make(at, number):
        return [python("songs.py(70): encode", at, at + 45), *one_hot(at), *product(at + 100, number)]

    (found,) = found_in(tmp_path, make)
    assert (found.name, found.at) == ("look_up", "songs.py:21")
    assert (found.cost_ns, found.backward_ns) == (50 * US, 60 * US)


def test_a_copy_after_the_product_is_no_part_of_it(tmp_path):
    """The rows take 40 and the product 50; a copy of 30 after it is for something else."""
    (found,) = found_in(tmp_path, lambda at, number: [*one_hot(at), *product(at + 100, number), *cast(at + 160)])
    assert found.cost_ns == (40 + 50) * US


@pytest.mark.parametrize(
    "made",
    [
        [  # rows of another tensor: no identity matrix is indexed
            called("aten::eye", 12, 20, [], values=["500"]),
            called("aten::index", 30, 60, [90, 500], [[64]]),
        ],
        [SCATTERED[0], called("aten::scatter_", 30, 60, [64, 500], [], [64, 1], [64, 1], values=["", "1", "", ""])],
        [SCATTERED[0], called("aten::scatter_", 30, 60, [64, 500], [], [64, 2], [], values=["", "1", "", "1"])],
    ],
    ids=["rows of a table", "values of another tensor", "two ones in a row"],
)
def test_what_makes_other_rows(tmp_path, made):
    def make(at, number):
        mm = called("aten::mm", at + 70, at + 100, [64, 500], [500, 32], number=number)
        return [*shifted(made, at - 10), mm]

    assert found_in(tmp_path, make) == []


def test_targets_of_a_loss_are_none(tmp_path):
    def make(at, number):
        others = called("aten::mm", at + 60, at + 90, [64, 32], [32, 500], number=number)
        return [*one_hot(at), others, called("aten::mul", at + 100, at + 110, [8, 8, 500], [8, 8, 500])]

    assert found_in(tmp_path, make) == []


def test_a_scatter_into_other_values_is_none(tmp_path):
    def make(at, number):
        scatter = called("aten::scatter_", at, at + 30, [8, 8, 500], [], [8, 8, 1], [], values=["", "-1", "", "1"])
        return [scatter, *product(at + 60, number)]

    assert found_in(tmp_path, make) == []


def test_few_classes_are_none(tmp_path):
    def make(at, number):
        return [
            called("aten::one_hot", at, at + 40, [64], [], values=["", "31"]),
            called("aten::mm", at + 60, at + 90, [64, 31], [31, 32], number=number),
        ]

    assert found_in(tmp_path, make) == []


def test_without_sizes_nothing_is_known(tmp_path):
    def make(at, number):
        return [operator("aten::one_hot", at, at + 40), operator("aten::mm", at + 60, at + 90)]

    assert found_in(tmp_path, make) == []
