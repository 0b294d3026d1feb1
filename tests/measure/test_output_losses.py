"""Cross entropies with their projection and backward pass, by hand; times in microseconds, steps of 1000."""

import pytest

from dptune.measure.host.output_losses import output_losses
from dptune.measure.views import view

from .handmade import US, kernel, launch, load_events, operator, python, step

STEPS = 3
NODE = "autograd::engine::evaluate_function: "


def dims(*shapes, number=None):
    return {"Input Dims": list(shapes), **({} if number is None else {"Sequence number": number})}


def events_of(at, number):
    """A layer to 30; logits of 80 x 500 from 40 to 100, cast to 120, lost from 130 to 170; and their nodes."""
    return [
        step(at // 1000, at, at + 1000),
        python("nn.Module: Bert_0", at, at + 200),
        python("bert.py(54): forward", at + 1, at + 199),
        operator("aten::addmm", at + 10, at + 30, **dims([64], [80, 64], [64, 64], [], [], number=number)),
        operator("aten::linear", at + 38, at + 101, **dims([4, 20, 64], [500, 64], [500], number=number + 1)),
        operator("aten::addmm", at + 40, at + 100, **dims([500], [80, 64], [64, 500], [], [], number=number + 1)),
        operator("aten::_to_copy", at + 105, at + 120, **dims([4, 20, 500], [], number=number + 2)),
        operator("aten::add", at + 122, at + 128, **dims([1], [1], number=number + 3)),
        operator("aten::cross_entropy_loss", at + 130, at + 170, **dims([80, 500], [80], number=number + 4)),
        operator("aten::log_softmax", at + 132, at + 150, **dims([80, 500], [], number=number + 4)),
        operator("aten::nll_loss_nd", at + 152, at + 168, **dims([80, 500], [80], number=number + 5)),
        python("torch/_tensor.py(500): backward", at + 400, at + 700),
        operator(NODE + "NllLossBackward0", at + 410, at + 420, **{"Sequence number": number + 5}),
        operator(NODE + "LogSoftmaxBackward0", at + 420, at + 450, **{"Sequence number": number + 4}),
        operator(NODE + "AddBackward0", at + 450, at + 452, **{"Sequence number": number + 3}),
        operator(NODE + "ToCopyBackward0", at + 455, at + 465, **{"Sequence number": number + 2}),
        operator(NODE + "AddmmBackward0", at + 470, at + 570, **{"Sequence number": number + 1}),
        operator("aten::mm", at + 475, at + 560, **dims([80, 500], [500, 64])),
        operator(NODE + "AddmmBackward0", at + 580, at + 620, **{"Sequence number": number}),
    ]


def rank_view(folder, *more, events=events_of):
    events = [one for n in range(STEPS) for one in events(1000 * n, 10 * n)]
    loop = python("bert.py(90): main", 0, 1000 * STEPS)
    return view(0, load_events(folder, [loop, *events, *more]).ranks[0].light)


def test_projection_cast_loss_and_their_nodes(tmp_path):
    """60 + 15 + 40, and back 10 + 30 + 10 + 100: neither the layer below, nor what does not read the logits."""
    (found,) = output_losses([rank_view(tmp_path)], {})
    assert (found.name, found.at, found.classes, found.rows, found.calls) == ("forward", "bert.py:54", 500, 80, 1)
    assert (found.cost_ns, found.backward_ns) == (115 * US, 150 * US)
    assert found.share == pytest.approx(0.265)
    (found,) = output_losses([rank_view(tmp_path)], {0: 530 * US})
    assert found.share == pytest.approx(0.5)


def test_on_a_gpu_the_kernels_count(tmp_path):
    more = []
    for n in range(STEPS):
        at = 1000 * n
        more += [launch(10 * n + 1, at + 50, at + 52), kernel("gemm", at + 60, at + 360, 10 * n + 1)]
        more += [launch(10 * n + 2, at + 20, at + 22), kernel("gemm", at + 25, at + 45, 10 * n + 2)]  # the layer's
        more += [launch(10 * n + 3, at + 480, at + 482), kernel("gemm", at + 490, at + 690, 10 * n + 3)]
    (found,) = output_losses([rank_view(tmp_path, *more)], {})
    assert (found.cost_ns, found.backward_ns) == (300 * US, 200 * US)


def test_a_loss_without_a_projection_of_its_width_is_none(tmp_path):
    def events(at, number):
        return [event for event in events_of(at, number) if event["name"] != "aten::addmm"]

    assert output_losses([rank_view(tmp_path, events=events)], {}) == []


@pytest.mark.parametrize(
    "product",
    [
        dims([40, 64], [64, 500], number=1),  # of half of the rows
        dims([80, 64], number=1),
        {"Sequence number": 1},
    ],
)
def test_a_product_of_other_or_unknown_size_is_no_projection(tmp_path, product):
    def events(at, number):
        return [
            step(at // 1000, at, at + 1000),
            python("bert.py(54): forward", at + 1, at + 199),
            operator("aten::mm", at + 10, at + 30, **product),
            operator("aten::cross_entropy_loss", at + 40, at + 60, **dims([80, 500], [80], number=2)),
        ]

    assert output_losses([rank_view(tmp_path, events=events)], {}) == []


def test_a_projection_of_the_step_before_is_none(tmp_path):
    def events(at, number):
        logits = operator("aten::mm", at + 10, at + 30, **dims([80, 64], [64, 500], number=number))
        loss = operator("aten::cross_entropy_loss", at + 40, at + 60, **dims([80, 500], [80], number=number + 1))
        function = python("bert.py(54): forward", at + 1, at + 199)
        return [step(at // 1000, at, at + 1000), function, loss if at else logits]

    assert output_losses([rank_view(tmp_path, events=events)], {}) == []


def test_without_a_function_of_the_script_it_is_not_listed(tmp_path):
    """Only torch's own functions are around it."""
    events = [event for n in range(STEPS) for event in events_of(1000 * n, 10 * n)]
    scripts = [event for event in events if event["name"].startswith("bert.py")]
    whole = view(0, load_events(tmp_path, events).ranks[0].light)
    assert len(output_losses([whole], {})) == 1
    bare = view(0, load_events(tmp_path, [event for event in events if event not in scripts]).ranks[0].light)
    assert output_losses([bare], {}) == []


def test_a_loss_without_a_graph_is_of_a_validation(tmp_path):
    def events(at, number):
        return [
            event | {"args": {name: value for name, value in event["args"].items() if name != "Sequence number"}}
            for event in events_of(at, number)
        ]

    assert output_losses([rank_view(tmp_path, events=events)], {}) == []


def test_chunks_are_one_head(tmp_path):
    """Two projections of 40 rows with their losses, 20 and 10 each."""

    def events(at, number):
        chunks = []
        for chunk in range(2):
            start, first = at + 10 + 50 * chunk, number + 2 * chunk
            chunks += [
                operator("aten::mm", start, start + 20, **dims([40, 64], [64, 500], number=first)),
                operator("aten::cross_entropy_loss", start + 25, start + 35, **dims([40, 500], [40], number=first + 1)),
            ]
        return [step(at // 1000, at, at + 1000), python("bert.py(54): chunked", at + 1, at + 199), *chunks]

    (found,) = output_losses([rank_view(tmp_path, events=events)], {})
    assert (found.name, found.rows, found.calls, found.cost_ns, found.backward_ns) == ("chunked", 80, 2, 60 * US, 0)
