"""Which functions of the user take host time, by hand; times in microseconds.

A step of 1000 on a CPU: data is prepared from 0 to 200 (`augment`), the forward pass runs to 400, the loss to 420, the
backward pass to 600, the optimizer from 620 to 700; then `save` writes a file until 900, and the loop itself sleeps for
60.
"""

import re
from pathlib import Path

import pytest

from dptune import capture
from dptune.measure.host import stacks
from dptune.measure.host.user_code import MOST_EVENT_NS, user_code
from dptune.measure.views import view
from dptune.measured import Account

from .handmade import BACKWARD, US, annotation, launched, load_events, measure_events, operator, python, step

STEPS = 3


def step_events(at, saves=True, inside=()):
    events = [
        step(at // 1000, at, at + 1000),
        python("train.py(20): augment", at + 1, at + 200),
        operator("aten::roll", at + 10, at + 150),
        python("nn.Module: Net_0", at + 200, at + 400),
        python("model.py(12): forward", at + 202, at + 398),
        operator("aten::mm", at + 210, at + 300),
        operator("aten::mse_loss", at + 402, at + 418),
        python("torch/_tensor.py(500): backward", at + 420, at + 600),
        operator(BACKWARD, at + 425, at + 595),
        python("torch/optim/optimizer.py(500): wrapper", at + 620, at + 700),
        annotation("Optimizer.step#SGD.step", at + 620, at + 700),
        operator("aten::add_", at + 625, at + 690),
        python("<built-in function sleep>", at + 920, at + 980),
    ]
    if saves:
        events += [
            python("train.py(30): save", at + 700, at + 900),
            python("json/__init__.py(120): dump", at + 710, at + 890),
            python("train.py(40): encode", at + 720, at + 760),
        ]
    return [*events, *inside]


def rank_view(folder, number=0, **how):
    extra = how.pop("inside", lambda at: ())
    loop = python("train.py(90): main", 0, 1000 * STEPS)
    events = [loop, *(one for n in range(STEPS) for one in step_events(1000 * n, inside=extra(1000 * n), **how))]
    return viewed(folder, events, number)


def viewed(folder, events, number=0):
    return view(number, load_events(folder, events).ranks[0].light)


def sites(views, untraced=None):
    found = user_code(views, untraced or {})
    return {(one.name, one.phase, one.mostly): one.cost_ns / US for one in found.sites}


def test_functions_beside_the_training_computation(tmp_path):
    assert sites([rank_view(tmp_path)]) == {
        ("augment", "loop", "tensor operators"): 199,
        ("save", "loop", "dump"): 200,
        ("main", "loop", "sleep"): 60,
        ("main", "loop", "Python code"): 61,  # [0,1), [600,620), [900,920) and [980,1000)
        ("forward", "forward", "Python code"): 106,  # its operator is the training itself
    }


@pytest.mark.parametrize(
    "between",
    [
        lambda at: annotation("Optimizer.zero_grad#SGD.zero_grad", at + 419, at + 420),
        lambda at: python("torch/amp/grad_scaler.py(160): scale", at + 419, at + 420),
    ],
    ids=["zeroed before backward", "scaled"],
)
def test_a_loss_is_training_whatever_lies_between_it_and_backward(tmp_path, between):
    def inside(at):
        return [python("torch/nn/functional.py(3400): cross_entropy", at + 401, at + 419), between(at)]

    assert not [name for _, _, name in sites([rank_view(tmp_path, inside=inside)]) if name == "cross_entropy"]


def test_a_decorated_function_is_named_rather_than_its_decorator(tmp_path):
    def inside(at):
        return [
            python("torch/nn/utils/clip_grad.py(33): _no_grad_wrapper", at + 900, at + 920),
            python("torch/nn/utils/clip_grad.py(186): clip_grad_norm_", at + 902, at + 920),
        ]

    found = {name: cost for (_, _, name), cost in sites([rank_view(tmp_path, inside=inside)]).items()}
    assert found["clip_grad_norm_"] == 18
    assert "_no_grad_wrapper" not in found


def test_the_rank_that_does_it_alone_is_named(tmp_path):
    found = user_code([rank_view(tmp_path, 0), rank_view(tmp_path, 1, saves=False)], {})
    (save,) = [one for one in found.sites if one.name == "save"]
    assert (save.at, save.rank, save.ranks, save.share) == ("train.py:30", 0, [0], pytest.approx(0.2))
    assert next(one for one in found.sites if one.name == "augment").ranks == [0, 1]


def test_what_recording_events_takes_is_taken_off(tmp_path):
    """Of 1000 us 48 are the profiler's: 3 for each of the 16 events that begin in pieces of a step."""
    plain, scaled = (sites([rank_view(tmp_path)], known) for known in ({}, {0: 952_000}))
    key = ("main", "loop", "sleep")
    assert plain[key] - scaled[key] <= MOST_EVENT_NS / US
    assert scaled[key] > 54
    assert sum(scaled.values()) < sum(plain.values())
    found = user_code([rank_view(tmp_path)], {0: 952_000})
    assert found.basis == "untraced"
    assert next(one for one in found.sites if one.mostly == "sleep").share == pytest.approx(scaled[key] / 952)


def test_operators_that_a_function_calls_are_counted(tmp_path):
    def loop(at):
        calls = [operator("aten::lerp_", at + 902 + n, at + 902.5 + n) for n in range(10)]
        return [python("train.py(50): average", at + 901, at + 915), *calls]

    found = user_code([rank_view(tmp_path, inside=loop)], {})
    (average,) = [one for one in found.sites if one.name == "average"]
    assert (average.operator, average.operator_calls, average.cost_ns) == ("aten::lerp_", 10, 14 * US)


def test_operators_that_the_recorder_calls_are_none_of_the_functions(tmp_path):
    def watched(at):
        return [
            python("train.py(50): average", at + 901, at + 919),
            operator("aten::lerp_", at + 902, at + 904),
            python("dptune/capture/injected/observe/meters.py(40): counts", at + 905, at + 913),
            *(operator("aten::item", at + 906 + n, at + 906.5 + n) for n in range(7)),
        ]

    found = user_code([rank_view(tmp_path, inside=watched)], {})
    (average,) = [one for one in found.sites if one.name == "average"]
    assert (average.operator, average.operator_calls, average.cost_ns) == ("aten::lerp_", 1, (18 - 8) * US)


def test_a_frame_without_a_name_changes_nothing(tmp_path):
    def unnamed(at):
        return [python("train.py(50): ", at + 721, at + 721)]

    assert sites([rank_view(tmp_path, inside=unnamed)]) == sites([rank_view(tmp_path)])


def test_the_part_of_a_function_in_operators(tmp_path):
    shares = {(one.name, one.mostly): one.operator_share for one in user_code([rank_view(tmp_path)], {}).sites}
    assert shares["augment", "tensor operators"] == pytest.approx(140 / 199)
    assert shares["save", "dump"] == shares["forward", "Python code"] == 0


def test_time_in_which_a_gpu_computes_is_not_counted(tmp_path):
    """The GPU computes until 800 of each 1000 us, so of `save` only what comes after holds anything up."""
    kernels = [one for n in range(STEPS) for one in launched("gemm", 1000 * n + 205, 1000 * n + 210, 1000 * n + 800, n)]
    loop = python("train.py(90): main", 0, 1000 * STEPS)
    events = [loop, *kernels, *(one for n in range(STEPS) for one in step_events(1000 * n))]
    found = sites([viewed(tmp_path, events)])
    assert found[("save", "loop", "dump")] == 100
    assert found[("main", "loop", "sleep")] == 60


def test_without_stacks_nothing_is_known(tmp_path):
    assert user_code([viewed(tmp_path, [step(0, 0, 100), operator("aten::mm", 10, 50)])], {}) is None


def test_compiling_is_no_compute(tmp_path):
    """Of a step of 1000 torch.compile works for 600, in which it traces operators; 100 are computed."""
    events = []
    for at in range(0, 3000, 1000):
        events += [
            step(at // 1000, at, at + 1000),
            operator("_compile.compile_inner (dynamo_timed)", at + 100, at + 700),
        ]
        events += [operator("aten::mm", at + 200, at + 650), operator("aten::mm", at + 800, at + 900)]
    account: Account = measure_events(tmp_path, events).account
    assert (account.compute_ns, account.host_idle_ns) == (300 * US, 2700 * US)


def test_of_a_librarys_loop_what_it_calls_is_named(tmp_path):
    """transformers runs the loop: its callback, which takes 100 us, is named, and not `train`, which runs all steps."""
    events = [python("train.py(90): main", 0, 3000), python("transformers/trainer.py(2000): train", 0.5, 3000)]
    for at in range(0, 3000, 1000):
        events += [
            step(at // 1000, at, at + 1000),
            python("nn.Module: Net_0", at + 200, at + 400),
            operator("aten::mm", at + 210, at + 390),
            python("transformers/trainer.py(2500): log", at + 800, at + 900),
        ]
    view = viewed(tmp_path, events)
    assert sites([view])[("main", "loop", "log")] == 100
    libraries = {one.mostly: one.library for one in user_code([view], {}).sites}
    assert libraries["log"] == "transformers"


def test_what_the_script_calls_in_a_library_is_no_librarys_loop(tmp_path):
    """The script runs the loop and calls `log` of transformers in each step, and `sleep`."""

    def inside(at):
        return [python("transformers/trainer.py(2500): log", at + 901, at + 919)]

    found = {one.mostly: one.library for one in user_code([rank_view(tmp_path, inside=inside)], {}).sites}
    assert (found["log"], found["sleep"]) == ("", "")


def test_steps_in_which_nothing_is_known_of_the_host(tmp_path):
    found = user_code(
        [viewed(tmp_path, [step(0, 0, 100), python("a.py(1): f", 200, 300), operator("aten::mm", 1, 99)])], {}
    )
    assert found.sites == []


def test_what_an_optimizer_calls_as_its_closure_is_not_the_optimizers(tmp_path):
    """Lightning runs forward, backward and its callbacks in a closure of each step."""

    def closing(at):
        return [
            python("torch/optim/sgd.py(100): step", at + 622, at + 698),
            python("lightning/pytorch/precision.py(90): _wrap_closure", at + 624, at + 664),
            python("train.py(25): histograms", at + 630, at + 660),
        ]

    found = sites([rank_view(tmp_path, inside=closing)])
    assert found["histograms", "loop", "Python code"] == pytest.approx(30, abs=2)


def test_what_a_collective_of_objects_spends_is_named_though_its_call_is_timed(tmp_path):
    """Its time passes through the recorder's frame, which is not counted itself."""

    def inside(at):
        observe = "dptune/capture/injected/observe/collectives.py"
        return [
            python("train.py(50): add", at + 700, at + 780),
            python("accelerate/utils/operations.py(430): gather_object", at + 701, at + 779),
            python(f"{observe}(89): metered", at + 702, at + 778),
            python("torch/distributed/distributed_c10d.py(3000): all_gather_object", at + 705, at + 770),
            python(f"{observe}(120): _note", at + 771, at + 777),
        ]

    found = sites([rank_view(tmp_path, saves=False, inside=inside)])
    assert found["add", "loop", "gather_object"] == 80 - 6  # without the recorder's own work


def test_what_a_function_does_after_the_step_that_ends_in_it_is_its_own(tmp_path):
    """The marker of the next step begins inside `train_step`, and ends after it."""
    events = [python("train.py(90): main", 0, 1000 * STEPS + 400)]
    for at in range(0, 1000 * STEPS, 1000):
        events += [
            step(at // 1000, at, at + 1000),
            python("train.py(60): train_step", at + 300, at + 1290),
            python("nn.Module: Net_0", at + 310, at + 400),
            operator("aten::mm", at + 320, at + 390),
            python("torch/_tensor.py(500): backward", at + 420, at + 600),
            operator(BACKWARD, at + 425, at + 595),
            python("torch/optim/optimizer.py(500): wrapper", at + 620, at + 999),
            annotation("Optimizer.step#SGD.step", at + 620, at + 999),
            operator("aten::add_", at + 625, at + 990),
            python("json/__init__.py(120): dump", at + 1020, at + 1280),
        ]
    found = sites([viewed(tmp_path, events)])
    assert found["train_step", "loop", "dump"] == 260
    assert ("main", "loop", "dump") not in found


def test_a_function_of_torch_that_is_watched_twice_is_named(tmp_path):
    """As clipping, in place of which two observers stand; what they do themselves is not counted."""

    def inside(at):
        observe = "dptune/capture/injected/observe"
        return [
            python("train.py(30): clip", at + 700, at + 780),
            python(f"{observe}/scaled_clipping.py(54): watched", at + 701, at + 779),
            python(f"{observe}/scaled_clipping.py(70): _note", at + 702, at + 706),
            python(f"{observe}/clipping.py(84): watched", at + 707, at + 778),
            python("torch/nn/utils/clip_grad.py(184): clip_grad_norm_", at + 710, at + 770),
            python(f"{observe}/clipping.py(100): _note", at + 771, at + 777),
        ]

    found = sites([rank_view(tmp_path, saves=False, inside=inside)])
    assert found["clip", "loop", "clip_grad_norm_"] == 80 - 4 - 6


def test_all_observers_that_stand_for_functions_of_the_script_pass_their_time_on():
    observe = Path(capture.__file__).parent / "injected" / "observe"
    of_phases = ("meters.py", "batch_preparation.py", "iterators.py")
    wrapping = re.compile(r"@functools\.wraps\(.*\)\n(?:\s*@.*\n)*\s*(?:async )?def (\w+)\(")
    files = [file for file in observe.glob("*.py") if file.name not in of_phases]
    names = {name for file in files for name in wrapping.findall(file.read_text())}
    assert {"metered", "watched"} < names
    others = {name for name in names if not stacks._passes_on(f"dptune/capture/injected/observe/x.py(1): {name}")}
    assert others == set()
    assert not stacks._passes_on("dptune/capture/injected/observe/clipping.py(100): _note")
    assert not any(stacks._passes_on(f"dptune/capture/injected/observe/{file}(9): metered") for file in of_phases)


@pytest.mark.parametrize("seen", [False, True])
def test_clipping_and_packing_are_seen(tmp_path, seen):
    def inside(at):
        return (
            python("torch/nn/utils/clip_grad.py(200): clip_grad_norm_", at + 602, at + 610),
            operator("aten::_pack_padded_sequence", at + 405, at + 410),
        )

    found = user_code([rank_view(tmp_path, inside=inside if seen else lambda at: ())], {})
    assert (found.clips, found.packs) == (seen, seen)


def test_a_comprehension_is_part_of_the_function_around_it(tmp_path):
    """The loop calls `augment` for each of 20 samples in a comprehension: the function is named, and how often."""
    each = [
        one
        for n in range(STEPS)
        for one in (
            step(n, 1000 * n, 1000 * n + 1000),
            operator(BACKWARD, 1000 * n + 850, 1000 * n + 950),
            python("train.py(92): <listcomp>", 1000 * n + 10, 1000 * n + 810),
            *(python("train.py(20): augment", 1000 * n + 10 + 40 * k, 1000 * n + 49 + 40 * k) for k in range(20)),
        )
    ]
    found = user_code([viewed(tmp_path, [python("train.py(90): main", 0, 1000 * STEPS), *each])], {})
    assert {(site.name, site.runs) for site in found.sites} == {("augment", 20), ("main", 0)}


def test_methods_of_one_name_in_a_file_are_functions_of_their_own(tmp_path):
    def inside(at):
        yield from (python("train.py(50): read", at + 700, at + 800), python("train.py(60): read", at + 800, at + 850))

    found = user_code([rank_view(tmp_path, saves=False, inside=inside)], {}).sites
    assert {(one.at, one.cost_ns / US) for one in found if one.name == "read"} == {
        ("train.py:50", 100),
        ("train.py:60", 50),
    }


def test_a_function_that_ran_as_recording_began_is_the_one_that_begins_before_its_line(tmp_path):
    events = [python("train.py(57): read", 0, 150), python("train.py(90): main", 0, 1000 * STEPS)]
    for at in range(0, 1000 * STEPS, 1000):
        events += [step(at // 1000, at, at + 1000), python("train.py(70): read", at + 500, at + 600)]
        if at:
            events.append(python("train.py(50): read", at + 10, at + 110))
    found = user_code([viewed(tmp_path, events)], {}).sites
    assert {one.at for one in found if one.name == "read"} == {"train.py:50", "train.py:70"}


def test_rows_with_the_same_names_around_them_are_looked_at_once(tmp_path, monkeypatch):
    looked_at = []
    one = stacks.Stacks._site

    def counted(self, place, phase):
        looked_at.append(place)
        return one(self, place, phase)

    monkeypatch.setattr(stacks.Stacks, "_site", counted)
    found = user_code([rank_view(tmp_path)], {})
    names = {event["name"] for event in step_events(0)}
    assert len(found.sites) > 2
    assert 0 < len(looked_at) < 2 * len(names)
