import pytest

from dptune import testing
from dptune.measured import EagerAttention, KernelFigures, KernelTime, Missing
from dptune.rule import RunView
from dptune.testing import measured_run

from .conftest import RULES


def attention(share=0.5, other=0.3, *, keys=600, head=64, backward_ns=3_000_000, **more):
    place = {"name": "attend", "at": "net.py:8", **more}
    times = {"cost_ns": round(share * 10_000_000) - backward_ns, "backward_ns": backward_ns}
    return EagerAttention(**place, **times, calls=12.0, rank=1, share=share, other_share=other, keys=keys, head=head)


def ask(*found, device="cpu"):
    return list(RULES["DP619"].check(RunView(measured_run(attention=list(found), device=device), [])))


def test_a_function_of_the_script():
    (advice,) = ask(attention())
    assert advice.title == (
        "`attend` (net.py:8) computes attention in separate operators, 50 % of the step: use "
        "F.scaled_dot_product_attention"
    )
    assert (advice.impact, advice.confidence, advice.numerics) == ("high", "medium", "same")
    assert (advice.saves.basis, advice.saves.low_share, advice.saves.high_share) == ("bound", 0, 0.5)
    assert "Unless the training reads the attention weights" in advice.watch
    assert [(one.label, one.value) for one in advice.evidence] == [
        ("attend at net.py:8", 2.0),
        ("their backward pass", 3.0),
        ("outside the two matrix products", 0.3),
        ("calls of attention", 12.0),
        ("keys of a query", 600),
    ]


def test_a_model_of_transformers_is_named_with_the_line_that_runs_it():
    library = {"name": "eager_attention_forward", "at": "transformers/models/bert/modeling_bert.py:111"}
    library |= {"module": "BertSelfAttention", "library": "transformers", "caller": "main", "caller_at": "tune.py:69"}
    (advice,) = ask(attention(**library))
    assert advice.title == (
        "`BertSelfAttention` of transformers, called from `main` (tune.py:69), computes attention in separate "
        'operators, 50 % of the step: load the model with attn_implementation="sdpa"'
    )
    assert advice.fingerprint == "DP619:BertSelfAttention"


def test_torchs_own_attention_computes_weights_that_are_asked_for():
    (advice,) = ask(attention(of_torch=True, module="MultiheadAttention"))
    assert advice.title.endswith("pass need_weights=False to nn.MultiheadAttention")


def test_a_gpu_trace_without_stacks_and_sizes_has_low_confidence():
    (advice,) = ask(attention(name="", at="", keys=None, head=None), device="cuda")
    assert advice.title.startswith("The model computes attention in separate operators, 50 % of the step")
    assert advice.confidence == "low"


@pytest.mark.parametrize(
    ("keys", "head", "dropout", "speaks"),
    [
        (512, 64, False, True),
        (511, 64, False, False),
        (256, 17, False, True),
        (255, 17, False, False),
        (192, 16, False, True),
        (191, 12, False, False),
        (288, 32, False, True),
        (255, 32, False, False),
        (511, 33, False, False),
        (900, 16, True, False),
    ],
)
def test_on_a_cpu_it_speaks_where_the_fused_kernel_was_faster(keys, head, dropout, speaks):
    found = attention(keys=keys, head=head, dropout=dropout)
    assert bool(ask(found)) == speaks
    assert len(ask(found, device="cuda")) == 1


def test_on_a_cpu_without_sizes_it_is_not_known():
    with pytest.raises(Missing, match="operator sizes"):
        ask(attention(keys=None, head=None))


def test_quiet_where_little_lies_outside_the_products():
    assert ask(attention(other=0.049)) == []
    assert [one.impact for one in ask(attention(other=0.05))] == ["medium"]
    assert ask() == []


@pytest.mark.parametrize(("name", "asks"), [("softmax_warp_forward", True), ("aten::linear", False)])
def test_without_steps_it_is_skipped_only_where_a_softmax_is_seen(name, asks):
    top = [KernelTime(name=name, kind="other", calls_per_step=1, total_ns=9, median_ns=9, step_share=0.9)]
    known = {"short_share": 0.0, "launch_bound_share": 0.0, "kinds_ns": {}}
    kernels = testing.figures(KernelFigures, counted="kernels", per_step=1, median_ns=1, total_ns=9, top=top, **known)
    view = RunView(measured_run(kernels=kernels), [])
    if asks:
        with pytest.raises(Missing):
            list(RULES["DP619"].check(view))
    else:
        assert list(RULES["DP619"].check(view)) == []
