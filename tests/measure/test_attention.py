"""Attention operator by operator, by hand: times in microseconds, steps of 1000."""

import pytest

from dptune.measure.host.attention import attention_spans, eager_attention
from dptune.measure.views import view

from .handmade import US, kernel, launch, load_events, operator, python, step

STEPS = 3
NODE = "autograd::engine::evaluate_function: "
SCORES = [2, 4, 600, 600]
BASE = {
    "product": "aten::bmm",
    "keys": 600,
    "softmax": SCORES,
    "dimension": "-1",
    "between": "aten::mul",
    "after": "aten::view",
}


def sized(name, start, end, number, *shapes, **more):
    return operator(name, start, end, **{"Sequence number": number, "Input Dims": [*shapes], **more})


def attention(at, number, **differs):
    """Both products take 100 and 80, scaling 40, softmax 60, backward 50, 30, 70 and 90 (the products 50 and 90)."""
    parts = {**BASE, **differs}
    return [
        sized("aten::matmul", at + 10, at + 110, number, [2, 4, 600, 16], [2, 4, 16, 600]),
        sized(parts["product"], at + 10, at + 110, number, [8, 600, 16], [8, 16, parts["keys"]]),
        sized(parts["between"], at + 120, at + 160, number + 1, SCORES, []),
        sized("aten::softmax", at + 170, at + 230, number + 2, parts["softmax"], [], **_dimension(parts)),
        sized("aten::_softmax", at + 171, at + 229, number + 2, parts["softmax"], [], **_dimension(parts)),
        sized(parts["after"], at + 235, at + 236, number + 3, SCORES),
        sized("aten::matmul", at + 240, at + 320, number + 4, SCORES, [2, 4, 600, 16]),
        sized("aten::bmm", at + 240, at + 320, number + 4, [8, 600, 600], [8, 600, 16]),
        sized("aten::linear", at + 330, at + 340, number + 5, [2, 600, 64], [64, 64]),
        python("torch/_tensor.py(500): backward", at + 400, at + 800),
        operator(NODE + "BmmBackward0", at + 410, at + 460, **{"Sequence number": number + 4}),
        operator(NODE + "SoftmaxBackward0", at + 470, at + 500, **{"Sequence number": number + 2}),
        operator(NODE + "MulBackward0", at + 510, at + 580, **{"Sequence number": number + 1}),
        operator(NODE + "BmmBackward0", at + 590, at + 680, **{"Sequence number": number}),
    ]


def _dimension(parts):
    return {"Concrete Inputs": ["", parts["dimension"], ""]}


def steps_of(part, *, stacks=("net.py(8): attend",)):
    events = [python("net.py(90): main", 0, 1000 * STEPS)] if stacks else []
    for n in range(STEPS):
        events += [step(n, 1000 * n, 1000 * n + 1000), *part(1000 * n, 10 * n)]
        events += [python(frame, 1000 * n + 1 + at, 1000 * n + 399 - at) for at, frame in enumerate(stacks)]
    return events


def found_in(folder, events):
    return eager_attention([view(0, load_events(folder, events).ranks[0].light)], {})


def test_the_operators_of_a_function_with_their_backward_pass(tmp_path):
    (found,) = found_in(tmp_path, steps_of(attention))
    assert (found.name, found.at, found.library, found.calls) == ("attend", "net.py:8", "", 1)
    assert (found.cost_ns, found.backward_ns) == ((100 + 40 + 60 + 1 + 80) * US, (50 + 30 + 70 + 90) * US)
    assert found.share == pytest.approx(0.281 + 0.24)
    assert found.other_share == pytest.approx(0.101 + 0.1)
    assert (found.keys, found.head, found.dropout) == (600, 16, False)


def test_of_a_library_the_module_and_the_line_of_the_script(tmp_path):
    stacks = (
        "net.py(30): train",
        "nn.Module: BertSelfAttention_0",
        "transformers/models/bert/modeling_bert.py(111): eager_attention_forward",
    )
    (found,) = found_in(tmp_path, steps_of(attention, stacks=stacks))
    assert (found.module, found.library, found.name) == ("BertSelfAttention", "transformers", "eager_attention_forward")
    assert (found.caller, found.caller_at) == ("train", "net.py:30")


def test_of_torch_itself(tmp_path):
    stacks = ("net.py(30): train", "torch/nn/functional.py(6205): multi_head_attention_forward")
    (found,) = found_in(tmp_path, steps_of(attention, stacks=stacks))
    assert (found.name, found.of_torch) == ("train", True)


def test_dropout_between_softmax_and_the_second_product(tmp_path):
    (found,) = found_in(tmp_path, steps_of(lambda at, n: attention(at, n, after="aten::native_dropout")))
    assert found.dropout


def test_a_trace_without_stacks_and_sizes(tmp_path):
    def bare(at, number):
        for event in attention(at, number):
            if event["cat"] == "cpu_op":
                yield operator(
                    event["name"],
                    event["ts"],
                    event["ts"] + event["dur"],
                    **{"Sequence number": event["args"]["Sequence number"]},
                )

    (found,) = found_in(tmp_path, steps_of(bare, stacks=()))
    assert (found.name, found.at, found.module, found.keys) == ("", "", "", None)
    assert found.share == pytest.approx(0.281 + 0.24)


def test_on_a_gpu_kernels_count(tmp_path):
    """One of 200 launched in the first product, of 90 in softmax, of 300 by the softmax's node."""
    more = []
    for n in range(STEPS):
        for at, name, called, took in ((1, "gemm", 20, 200), (2, "softmax", 180, 90), (3, "back", 480, 300)):
            more += [launch(10 * n + at, 1000 * n + called, 1000 * n + called + 5)]
            more += [kernel(name, 1000 * n + called + 5, 1000 * n + called + 5 + took, 10 * n + at, stream=6 + at)]
    (found,) = found_in(tmp_path, steps_of(attention) + more)
    assert (found.cost_ns, found.backward_ns) == ((200 + 50) * US, 300 * US)  # 40 of softmax overlap the gemm
    assert found.other_share == pytest.approx(0.05 + 0.3)


@pytest.mark.parametrize(
    "differs",
    [
        {"dimension": "1"},  # over the queries, as slots compete for positions
        {"softmax": [2, 4, 600, 50]},  # of something else
        {"softmax": [2, 600]},
        {"keys": 500},  # no product of that size: the scores were padded
        {"between": "aten::linear"},  # another layer lies between
        {"between": "aten::layer_norm"},
        {"after": "aten::topk"},  # experts are chosen
        {"after": "aten::linear"},
        {"product": "aten::mm"},  # no batched product: a layer without bias
    ],
)
def test_what_is_no_attention(tmp_path, differs):
    assert found_in(tmp_path, steps_of(lambda at, n: attention(at, n, **differs))) == []


def test_what_a_fused_operator_calls_is_its_own(tmp_path):
    def fused(at, number):
        whole = operator("aten::scaled_dot_product_attention", at + 5, at + 325, **{"Sequence number": number})
        return [whole, *attention(at, number)]

    assert found_in(tmp_path, steps_of(fused)) == []


def test_when_it_runs_with_its_backward_pass(tmp_path):
    spans = attention_spans(view(0, load_events(tmp_path, steps_of(attention)).ranks[0].light))
    assert spans.total_ns == STEPS * (100 + 40 + 60 + 1 + 80 + 50 + 30 + 70 + 90) * US
    assert (spans.start_ns[0], spans.end_ns[-1]) == (10 * US, (1000 * (STEPS - 1) + 680) * US)


@pytest.mark.parametrize("differs", [{"dimension": "1"}, {"product": "aten::mm"}])
def test_what_is_no_attention_runs_at_no_time(tmp_path, differs):
    events = steps_of(lambda at, n: attention(at, n, **differs))
    assert attention_spans(view(0, load_events(tmp_path, events).ranks[0].light)).total_ns == 0
