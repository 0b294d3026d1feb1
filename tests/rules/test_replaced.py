"""What a step saves if shorter work replaces operators of a function; rules that know how much shorter it is."""

from dataclasses import replace

import pytest

from dptune.measured import (
    BroadcastReduction,
    DoubleFunction,
    EagerAttention,
    FullSort,
    FunctionOperators,
    LongConvolution,
    MemoryBoundFunction,
    OneHotProduct,
    OperatorCost,
    OutputLoss,
    SliceGradients,
    UpsampledConvolution,
    UserCodeFigures,
)
from dptune.rule import RunView
from dptune.runfile.facts import Facts, OptimizerFacts
from dptune.runfile.ignored_targets import IgnoredTargetFacts
from dptune.runfile.weight_penalties import WeightPenaltyFacts
from dptune.runfile.window import SampledFacts, Window
from dptune.testing import account, facts_of, measured_run

from .conftest import RULES

PART = (0.5, 0.8, 0.9)  # of the time of the operators, that goes away
LEAST, MOST = 0.8, 1.1  # of that: the interval of work that was timed
PLACE = {"name": "score", "at": "train.py:20", "calls": 1.0, "rank": 0, "cost_ns": 6_000_000, "backward_ns": 4_000_000}


def operators(share=0.4, least_share=0.3, **others):
    return FunctionOperators(**{**PLACE, "share": share, "least_share": least_share, **others})


def facts(rank=0, *, inside=0, **others) -> Facts:
    """Of a rank with 20 samples in each of 20 steps, `inside` of them in the function."""
    looks = {"score (train.py:24)": inside, "main (train.py:9)": 20 - inside}
    samples = [
        SampledFacts(["main (train.py:9)", name], "forward", "", "", 20 * each, list(range(20)), [each] * 20)
        for name, each in looks.items()
        if each
    ]
    return facts_of(rank=rank, windows=[Window("untraced", 3, [20] * 20, sampled=samples)], **others)


def run_of(code, *ranks, hidden=0.0, device="cpu", times_hold=True):
    ranks = ranks or (facts(),)
    made = measured_run(world=len(ranks), device=device, spent=[account(0.0, hidden, 0.0)], user_code=code)
    return RunView(made, [*ranks], times_hold=times_hold)


def code_of(*ranks, **found):
    return UserCodeFigures(ranks=list(ranks or (0,)), steps=2, basis="untraced", sites=[], **found)


def shares(saves):
    return pytest.approx((saves.low_share, saves.predicted_share, saves.high_share))


def test_the_interval_is_that_of_the_measured_part():
    saves = run_of(code_of()).replaced(operators(least_share=0.4), PART, "one call takes half")
    assert shares(saves) == (LEAST * 0.5 * 0.4, 0.8 * 0.4, MOST * 0.9 * 0.4)
    assert (saves.basis, saves.how) == (
        "timed",
        "the time of these operators and their backward pass; one call takes half",
    )
    half = run_of(code_of()).replaced(operators(least_share=0.4), PART, "", of_all=0.5)
    assert shares(half) == (LEAST * 0.5 * 0.2, 0.8 * 0.2, MOST * 0.9 * 0.2)


def test_the_lower_end_is_that_of_the_rank_where_they_take_least():
    saves = run_of(code_of(0, 1), facts(0), facts(1)).replaced(operators(), PART, "")
    assert shares(saves) == (LEAST * 0.5 * 0.3, 0.8 * 0.35, MOST * 0.9 * 0.4)
    alone = operators(least_share=0.0)  # the other rank calls none, and may set the pace
    assert run_of(code_of(0, 1), facts(0), facts(1)).replaced(alone, PART, "") is None


def test_communication_that_the_backward_pass_hides_is_not_saved():
    """Two fifths of the time are backward: 6 % of the step at least, of which communication may take 4 %."""
    saves = run_of(code_of(0, 1), facts(0), facts(1), hidden=0.04).replaced(operators(), PART, "")
    assert shares(saves) == (LEAST * (0.5 * 0.3 - 0.04), 0.8 * 0.35 - 0.02, MOST * 0.9 * 0.4)
    much = run_of(code_of(0, 1), facts(0), facts(1), hidden=0.3).replaced(operators(), PART, "")
    assert much.low_share == pytest.approx(LEAST * 0.6 * 0.5 * 0.3)  # the forward part


def test_stack_samples_of_the_function_limit_the_time_of_its_operators():
    """Forward they take 24 % of the step by the trace, the whole function 15 % by 60 of 400 samples."""
    free = run_of(code_of()).replaced(operators(least_share=0.4), PART, "")
    saves = run_of(code_of(), facts(inside=3)).replaced(operators(least_share=0.4), PART, "")
    assert saves.low_share == pytest.approx(15 / 24 * free.low_share)
    assert saves.predicted_share == pytest.approx(15 / 24 * free.predicted_share)
    assert 15 / 24 * free.high_share < saves.high_share < free.high_share
    assert shares(run_of(code_of(), facts(inside=9)).replaced(operators(least_share=0.4), PART, "")) == (
        free.low_share,
        free.predicted_share,
        free.high_share,
    )


def test_nothing_is_predicted_where_the_time_is_not_known():
    found = operators(least_share=0.4)
    assert run_of(code_of(), device="cuda").replaced(found, PART, "") is None
    assert run_of(code_of(), times_hold=False).replaced(found, PART, "") is None
    assert run_of(None).replaced(found, PART, "") is None
    assert run_of(code_of(0), facts(0), facts(1)).replaced(found, PART, "") is None  # a rank without stacks


SORT = {**PLACE, "share": 0.4, "least_share": 0.4, "length": 5000, "rows": 64}
PAIRS = {**PLACE, "share": 0.4, "least_share": 0.4, "left": [512, 1, 48], "right": [1, 512, 48]}
HOT = {**PLACE, "share": 0.4, "least_share": 0.4, "rows": 448, "sums": False}
RULED = {
    "topk": ("DP618", "full_sorts", FullSort(**SORT, read=20), (0.65, 0.98)),
    "kthvalue": ("DP618", "full_sorts", FullSort(**SORT, read=2, inner=True), (0.3, 0.9)),
    "what is read is not known": ("DP618", "full_sorts", FullSort(**SORT, read=None), None),
    "few values": ("DP618", "full_sorts", FullSort(**{**SORT, "length": 256, "rows": 1}, read=1), None),
    "many classes": ("DP617", "one_hot_products", OneHotProduct(**HOT, classes=5000), (0.65, 0.98)),
    "few classes": ("DP617", "one_hot_products", OneHotProduct(**HOT, classes=40), (0.2, 0.95)),
    "squared": (
        "DP621",
        "broadcast_reductions",
        BroadcastReduction(**PAIRS, kind="squared", whole=[512, 512, 48]),
        (0.5, 0.99),
    ),
    "few features": (
        "DP621",
        "broadcast_reductions",
        BroadcastReduction(**PAIRS, kind="squared", whole=[512, 512, 3]),
        (0.29, 0.82),
    ),
    "attention": (
        "DP619",
        "attention",
        EagerAttention(**PLACE, share=0.4, least_share=0.4, other_share=0.3, keys=768, head=64),
        (0.06, 1.0),
    ),
    "slices": (
        "DP622",
        "slice_gradients",
        SliceGradients(**PLACE, share=0.4, least_share=0.4, size=[64, 96], through="", saved_share=0.4),
        (0.25, 0.95),
    ),
    "slices in a function of torch": (
        "DP622",
        "slice_gradients",
        SliceGradients(**PLACE, share=0.4, least_share=0.4, size=[64, 96], through="jacobian", saved_share=0.4),
        None,
    ),
    "upsampled": (
        "DP624",
        "upsampled_convolutions",
        UpsampledConvolution(
            **PLACE,
            share=0.5,
            least_share=0.5,
            before=[4, 64, 8, 8],
            after=[4, 64, 32, 32],
            channels=4,
            saved_share=0.4,
        ),
        (0.75, 1.05),
    ),
    "doubles": (
        "DP402",
        "double_functions",
        DoubleFunction(**PLACE, share=0.4, least_share=0.4, operator="aten::mul"),
        (0.1, 0.75),
    ),
    "fft": (
        "DP615",
        "long_convolutions",
        LongConvolution(**PLACE, share=0.4, least_share=0.4, taps=2048, length=9000),
        (0.75, 0.99),
    ),
}


def with_figure(found, *ranks, device="cpu"):
    """A run with a figure of the script's code, or with one of its own."""
    of_code = {name: figure for name, figure in found.items() if name in UserCodeFigures.model_fields}
    run = run_of(code_of(**of_code), *ranks, device=device)
    others = {name: figure for name, figure in found.items() if name not in of_code}
    return replace(run, measured=run.measured.model_copy(update=others))


@pytest.mark.parametrize(("code", "figure", "found", "part"), RULED.values(), ids=RULED)
def test_rules_give_the_part_that_their_remedy_saved_where_it_was_measured(code, figure, found, part):
    made, narrow = {figure: [found]}, facts(optimizers=[OptimizerFacts("SGD", dtypes=["float32"])])
    (advice,) = RULES[code].check(with_figure(made, narrow))
    if part is None:
        assert (advice.saves.basis, advice.saves.low_share, advice.saves.high_share) == ("bound", 0, 0.4)
        return
    assert advice.saves.basis == "timed"
    assert (advice.saves.low_share, advice.saves.high_share) == pytest.approx(
        (LEAST * part[0] * 0.4, MOST * part[1] * 0.4)
    )
    (on_gpu,) = RULES[code].check(with_figure(made, narrow, device="cuda"))
    assert (on_gpu.saves.basis, on_gpu.saves.high_share) == ("bound", 0.4)


@pytest.mark.parametrize(("rows", "basis"), [(4096.0, "timed"), (256.0, "bound")])
def test_rows_without_a_label(rows, basis):
    """80 % of the rows; of few, or of few logits, selecting takes as long as they do."""
    head = OutputLoss(**PLACE, share=0.4, least_share=0.4, classes=500, rows=rows)
    ignored = IgnoredTargetFacts(500, "train.py:24", rows=[1000], labelled=[200], padding=[0])
    (advice,) = RULES["DP616"].check(run_of(code_of(output_losses=[head]), facts(ignored_targets=[ignored])))
    assert advice.saves.basis == basis
    if basis == "timed":
        assert advice.saves.low_share == pytest.approx(LEAST * 0.85 * 0.8 * 0.4)


@pytest.mark.parametrize(("optimizer", "basis"), [("SGD", "timed"), ("Adam", "bound")])
def test_a_penalty_that_weight_decay_replaces(optimizer, basis):
    """Half of the function's time; the weight decay of Adam may take as long as the penalty."""
    squares = [OperatorCost(name="aten::pow", calls=10, size=[], share=0.2)]
    function = MemoryBoundFunction(**PLACE, share=0.4, least_share=0.4, runs=1, operators=squares, calls_backward=False)
    penalty = WeightPenaltyFacts("score (train.py:20)", tensors=10, elements=2_000_000, passes=3, passes_seen=3)
    rank = facts(optimizers=[OptimizerFacts(optimizer)], weight_penalty=penalty)
    (advice,) = RULES["DP623"].check(run_of(code_of(memory_bound=[function]), rank))
    assert advice.saves.basis == basis
    if basis == "timed":
        assert (advice.saves.low_share, advice.saves.high_share) == pytest.approx(
            (LEAST * 0.65 * 0.2, MOST * 0.95 * 0.2)
        )
