import pytest

from dptune.measured import CodeSite, Missing, OperatorLoop, UserCodeFigures
from dptune.rule import RunView
from dptune.runfile.clipping import ClippingFacts
from dptune.runfile.facts import OptimizerFacts
from dptune.runfile.window import SampledFacts, Window


def looping(measured, operator="aten::lerp_", calls=160.0, share=0.12, loops=(), device="cuda", **changed):
    site = CodeSite(
        **{
            "name": "update_average",
            "at": "ema.py:20",
            "phase": "loop",
            "part": False,
            "mostly": "tensor operators",
            "rank": 0,
            "ranks": [0, 1],
            "cost_ns": 1_200_000,
            "share": share,
            "operator": operator,
            "operator_calls": calls,
            **changed,
        }
    )
    code = UserCodeFigures(ranks=[0, 1], steps=2, basis="untraced", sites=[site], loops=list(loops))
    return measured(user_code=code, device=device)


@pytest.fixture
def facts(make_facts):
    return [make_facts(optimizers=[OptimizerFacts("AdamW", parameter_tensors=160)])]


def test_the_function_the_calls_and_the_foreach_text(ask, make_measured, facts):
    (advice,) = ask("DP608", looping(make_measured), facts)
    assert advice.title == (
        "`update_average` (ema.py:20) loops over parameters for 12 % of the step, in 160 calls of aten::lerp_: use "
        "torch._foreach_lerp_(averages, parameters, 1 - decay)"
    )
    assert advice.saves.high_share == pytest.approx(0.12)


def test_the_operator_of_the_loop_counts_where_another_call_repeats_a_cheaper_one(ask, make_measured, facts):
    """`copy.deepcopy` of the weights calls `set_` more often than the average that is written out calls `mul`."""
    of_loop = OperatorLoop(
        name="update_average",
        at="ema.py:20",
        phase="loop",
        operator="aten::mul",
        repeats=100.0,
        rank=0,
        cost_ns=1_000_000,
        share=0.1,
    )
    assert ask("DP608", looping(make_measured, "aten::set_", 200.0, runs=1.0), facts) == []
    (advice,) = ask("DP608", looping(make_measured, "aten::set_", 200.0, runs=1.0, loops=[of_loop]), facts)
    assert (
        "in 100 calls of aten::mul: use torch._foreach_mul(tensors, factor), or torch._foreach_lerp_ for"
        in advice.title
    )
    few = of_loop.model_copy(update={"repeats": 40.0})
    assert ask("DP608", looping(make_measured, "aten::set_", 200.0, runs=1.0, loops=[few]), facts) == []


def test_what_torch_loops_over_for_the_script(ask, make_measured, facts):
    measured = looping(make_measured, "aten::linalg_vector_norm", part=True, mostly="clip_grad_norm_", name="main")
    (advice,) = ask("DP608", measured, facts)
    assert advice.title.startswith("`clip_grad_norm_` in `main` (ema.py:20) loops over parameters")
    assert advice.title.endswith("clip_grad_norm_(parameters, max_norm, foreach=True)")


@pytest.mark.parametrize(
    ("changed", "remedy"),
    [
        ({}, "torch._foreach_norm(tensors) for the norms and torch._foreach_mul_(tensors, factors) for the scaling"),
        ({"combined_norms": 160, "scales": True}, "torch.nn.utils.clip_grad_norm_(parameters, max_norm, foreach=True)"),
        ({"combined_norms": 160}, "torch._foreach_norm(tensors) and one norm of their stack"),
    ],
)
def test_norms_by_what_becomes_of_them(ask, make_measured, facts, changed, remedy):
    (advice,) = ask("DP608", looping(make_measured, "aten::linalg_vector_norm", **changed), facts)
    assert advice.title.endswith(f"in 160 calls of aten::linalg_vector_norm: use {remedy}")
    assert ("clip_grad_norm_ is no replacement" in advice.watch) == (not changed)


def test_norms_of_a_few_tensors_each_are_not_one_norm_of_all(ask, make_measured, facts):
    """Each of 80 layers is clipped by the norm of its weight and bias."""
    layers = looping(make_measured, "aten::linalg_vector_norm", combined_norms=2, scales=True)
    (advice,) = ask("DP608", layers, facts)
    assert "clip_grad_norm_" not in advice.title


@pytest.mark.parametrize(
    "changed",
    [{"calls": 60.0}, {"share": 0.01}, {"operator": "aten::mm"}, {"operator": None}, {"phase": "forward"}],
)
def test_quiet(ask, make_measured, facts, changed):
    assert ask("DP608", looping(make_measured, **changed), facts) == []


def test_quiet_for_few_tensors(ask, make_measured, make_facts):
    few = [make_facts(optimizers=[OptimizerFacts("AdamW", parameter_tensors=6)])]
    assert ask("DP608", looping(make_measured), few) == []


def test_it_needs_stacks(ask, make_measured, facts):
    with pytest.raises(Missing, match="user_code"):
        ask("DP608", make_measured(), facts)


def test_the_line_that_takes_most_and_the_share_of_samples(ask, make_measured, make_facts):
    """Of 100 samples 8 are in the function: the trace shows 12 %, and at most 13.6 % fit the samples."""
    loop = ["main (train.py:50)", "update_average (ema.py:24)"]
    samples = [
        SampledFacts(loop, looks=8, steps=[0], spent_ns=[8_000_000], loops=[48, 22]),
        SampledFacts(["main (train.py:52)"], "backward", looks=92, steps=[0], spent_ns=[92_000_000]),
    ]
    window = Window("untraced", 3, [100_000_000], sampled=samples)
    facts = [make_facts(optimizers=[OptimizerFacts("AdamW", parameter_tensors=160)], windows=[window])]
    (advice,) = ask("DP608", looping(make_measured), facts)
    assert advice.title.startswith("`update_average` (ema.py:24) loops over parameters for 8 % of the step")
    assert advice.saves.high_share == 0.12
    shown = {one.label: one.value for one in advice.evidence}
    assert (shown["called at"], shown["loops around them"]) == ("train.py:50", "ema.py:22 (100 %)")
    (advice,) = ask("DP608", looping(make_measured, share=0.3), facts)
    assert advice.saves.high_share == pytest.approx(0.1365, abs=1e-3)


@pytest.mark.parametrize("operator", ["aten::linalg_vector_norm", "aten::mul"])
def test_clipping_of_each_parameter_by_its_own_norm(ask, make_measured, facts, operator):
    measured = looping(make_measured, operator, mostly="clip_grad_norm_")
    facts[0].clipping = [ClippingFacts("train.py:33", "train.py:20", calls=1600, steps=10)]
    (advice,) = ask("DP608", measured, facts)
    assert advice.title.endswith("use one call of torch.nn.utils.clip_grad_norm_(parameters, max_norm)")
    assert (advice.numerics, "needs a larger max_norm" in advice.watch) == ("changes", True)
    facts[0].clipping = [
        ClippingFacts("train.py:33", "train.py:20", calls=10, steps=10)
    ]  # one call for all, without foreach
    (advice,) = ask("DP608", measured, facts)
    assert ("one call of" in advice.title, advice.numerics) == (False, "same")


def averaging(make_facts, parameters, looks=12):
    """Two ranks: 12 of 100 samples are in the average."""
    inside = SampledFacts(["main (train.py:9)", "update_average (ema.py:22)"], looks=looks, spent_ns=[looks])
    others = SampledFacts(["main (train.py:12)"], "backward", looks=100 - looks, spent_ns=[100 - looks])
    window = Window("untraced", 3, [20] * 5, sampled=[inside, others])
    optimizer = OptimizerFacts("AdamW", parameter_tensors=160, parameters=parameters)
    return [make_facts(rank=rank, optimizers=[optimizer], windows=[window]) for rank in (0, 1)]


def test_of_small_tensors_the_part_that_one_call_saved_is_predicted(ask, make_measured, make_facts):
    """Stack samples find 12 % of the step there, half of it in operators; the interval has their error."""
    run = looping(make_measured, device="cpu", operator_share=0.5)
    found = averaging(make_facts, 160 * 4096)
    (advice,) = ask("DP608", run, found)
    (whole,) = [RunView(run, found).sampled_share("update_average", "ema.py:20").by_rank[0]]
    assert advice.saves.basis == "sampled"
    assert advice.saves.low_share == pytest.approx(0.8 * 0.4 * 0.5 * whole.least)
    assert advice.saves.predicted_share == pytest.approx(0.6 * 0.12)
    assert advice.saves.high_share == pytest.approx(1.1 * 0.7 * whole.most)
    for others in (
        ask("DP608", run, averaging(make_facts, 160 * 4097)),  # larger tensors take as long in one call
        ask("DP608", looping(make_measured, "aten::clamp_", device="cpu", operator_share=0.5), found),  # not measured
        ask("DP608", run, found, times_hold=False),
    ):
        assert [(other.saves.basis, other.saves.low_share) for other in others] == [("bound", 0)]
