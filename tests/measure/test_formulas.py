"""FLOPs of single operators: by hand, and none of inputs that fit no formula."""

import pytest

from dptune.measure.efficiency.formulas import FORMULAS, Arguments, Flops

FLASH, VARLEN = "aten::_scaled_dot_product_flash_attention", "flash_attn::_flash_attn_varlen_forward"


def flops(name, *shapes, values=(), lists=None):
    return FORMULAS[name].flops(Arguments(shapes, (), values, lists or {}))


def packed(query, key, bounds, longest):
    """Packed sequences: queries, keys and values, the bounds of both, and the longest."""
    return flops(VARLEN, query, key, key, *bounds, values=("",) * 5 + tuple(map(str, longest)))


@pytest.mark.parametrize(
    ("name", "shapes", "total"),
    [
        ("aten::_grouped_mm", ((6, 4), (3, 4, 5)), 2 * 6 * 4 * 5),
        ("aten::mkldnn_rnn_layer", ((7, 2, 4), (12, 4), (12, 3)), 2 * 7 * 2 * (12 * 4 + 12 * 3)),
        ("aten::mkldnn_rnn_layer_backward", ((7, 2, 4), (12, 4), (12, 3)), 4 * 7 * 2 * (12 * 4 + 12 * 3)),
        (FLASH, ((2, 3, 8, 4), (2, 3, 6, 4), (2, 3, 6, 5)), 2 * 2 * 3 * 8 * 6 * (4 + 5)),
    ],
)
def test_by_hand(name, shapes, total):
    assert flops(name, *shapes) == Flops(total)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        *(("aten::_grouped_mm", given) for given in (((6, 4),), ((4,), (3, 4, 5)), ((6, 4), (3, 5, 5)))),
        ("aten::mkldnn_rnn_layer", ((7, 2, 4), (12,), None)),  # no matrix
        ("aten::mkldnn_rnn_layer", ((7,), (12, 4), (12, 3))),
        ("aten::_cudnn_rnn", ((7, 2, 4),)),  # no list of weights
        (FLASH, ((2, 3, 8, 4), (2, 3, 6, 4))),
        (FLASH, ((2, 3, 8, 4), (2, 3, 6, 5), (2, 3, 6, 5))),  # queries and keys of different widths
        (FLASH, ((2, 3, 8, 4), (1, 3, 6, 4), (1, 3, 6, 5))),  # and of different numbers of sequences
        (FLASH, ((2, 3, 8, 4), (2, 3, 6, 4), (2, 3, 7, 5))),  # as many keys as values
        (FLASH, ((6, 8, 4), (6, 6, 4), (6, 6, 5))),
    ],
)
def test_inputs_that_fit_no_formula(name, shapes):
    assert flops(name, *shapes) is None


def test_packed_sequences():
    """24 tokens of two heads in three sequences: of 8 each, or of unknown lengths, at least as if of 8 each."""
    of_eight = 2 * 2 * 3 * 8 * 8 * (4 + 4)
    assert packed((24, 2, 4), (24, 2, 4), ((4,), (4,)), (8, 8)) == Flops(of_eight)
    assert packed((24, 2, 4), (24, 2, 4), ((4,), (4,)), (16, 16)) == Flops(of_eight, least=True)


def test_packed_sequences_of_other_queries_than_keys():
    """Three queries of 2, over keys of 8 each; the least is not known where they are not equally long."""
    assert packed((6, 2, 4), (24, 2, 4), ((4,), (4,)), (2, 8)) == Flops(2 * 2 * 3 * 2 * 8 * (4 + 4))
    assert packed((6, 2, 4), (24, 2, 4), ((4,), (4,)), (4, 16)) is None
    assert packed((24, 2, 4), (24, 2, 4), ((4,), (3,)), (8, 8)) is None
