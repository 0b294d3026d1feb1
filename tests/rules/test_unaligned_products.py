import pytest

from dptune.measured import MatmulFigures, UnalignedProduct


def product(sizes, lengths, part, dtype="bf16", multiple=8, operator="aten::mm"):
    return UnalignedProduct(
        operator=operator, dtype=dtype, multiple=multiple, sizes=sizes, lengths=lengths, calls_per_step=1.0, part=part
    )


VOCABULARY = product([[8192, 768], [768, 50257]], [50257], 0.7)
OUTPUTS = product([[8192, 768], [768, 30]], [30], 0.2)
ALIGNED = product([[64, 64], [64, 64]], [], 0.1)


def run(make_measured, hand_made, share, *products, sized=None, **changed):
    figures = hand_made.figures(
        MatmulFigures, fp32_share=0.0, unaligned_share=share, unaligned_sized_share=sized, unaligned=list(products)
    )
    return make_measured(matmul=figures, **changed)


def test_it_names_the_lengths_and_what_they_become(ask, make_measured, hand_made):
    measured = run(make_measured, hand_made, 0.2, ALIGNED, VOCABULARY, OUTPUTS, sized=0.18)
    (advice,) = ask("DP409", measured)
    assert advice.title == (
        "18 % of a step is bf16 matrix products of unaligned sizes: pad 50257 to 50264 and 30 to 32"
    )
    assert (advice.saves.basis, advice.saves.high_share, advice.confidence) == ("bound", 0.18, "medium")
    assert [each.label for each in advice.evidence[1:]] == [
        "aten::mm of 8192 x 768 and 768 x 50257",
        "aten::mm of 8192 x 768 and 768 x 30",
    ]
    assert advice.changes == []
    assert "scaled_dot_product_attention" not in advice.watch


def test_tf32_needs_multiples_of_four(ask, make_measured, hand_made):
    odd = product([[64, 9375], [9375, 512]], [9375], 1.0, dtype="tf32", multiple=4)
    (advice,) = ask("DP409", run(make_measured, hand_made, 0.1, odd, sized=0.1))
    assert "10 % of a step is TF32 matrix products of unaligned sizes: pad 9375 to 9376" in advice.title


def test_without_sizes_it_is_less_sure(ask, make_measured, hand_made):
    unknown = product([], [], 1.0)
    (advice,) = ask("DP409", run(make_measured, hand_made, 0.1, unknown))
    assert advice.title == (
        "10 % of a step is bf16 matrix products in kernels for unaligned operands: make their sizes multiples of 8"
    )
    assert advice.confidence == "low"
    assert "record_shapes=True" in advice.watch


@pytest.mark.parametrize(
    ("share", "sized", "device"), [(0.04, 0.04, "cuda"), (0.2, 0.0, "cuda"), (0.2, 0.03, "cuda"), (0.2, 0.2, "cpu")]
)
def test_quiet(ask, make_measured, hand_made, share, sized, device):
    assert ask("DP409", run(make_measured, hand_made, share, VOCABULARY, sized=sized, device=device)) == []
