"""Steps of traces that mark none: from the optimizer's ranges, else from what repeats. Times in microseconds."""

import random
from dataclasses import replace

import numpy as np
import pytest

from dptune.measure.figures import measure
from dptune.measure.steps.optimizing import optimizer_ends
from dptune.measure.steps.repeating import Repetition, repetition
from dptune.measure.steps.sequence import sequence
from dptune.measure.steps.sources import stepping
from dptune.measure.steps.windows import host_steps
from dptune.measure.views import view
from dptune.trace import load

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import BACKWARD as NODE
from .handmade import US, event, launch, load_events, on_device, operator

ADAM = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>"
COPY = "Memcpy HtoD (Pinned -> Device)"
FORWARD = ["gemm", "norm", "gemm", "relu"] * 3
BACKWARD = ["gemm_dgrad", "gemm_wgrad", "norm_backward"] * 3


class Script:
    """A made-up run: each operation is launched 10 after the one before, for 4, and runs 20 later, for 5."""

    def __init__(self):
        self.now = 0
        self.events = []

    def pause(self, length):
        self.now += length
        return self

    def launch(self, *names):
        for name in names:
            number = len(self.events) + 1
            category = "gpu_memcpy" if name.startswith("Mem") else "kernel"
            self.events += [
                launch(number, self.now, self.now + 4),
                on_device(category, name, self.now + 20, self.now + 25, number),
            ]
            self.now += 10
        return self

    def around(self, name, *names, category="cpu_op", thread=1):
        begun = self.now
        self.launch(*names)
        self.events.append(event(category, name, begun, self.now - 2, thread))
        return self

    def optimizer(self, name, *names):
        return self.around(f"Optimizer.step#{name}.step", *names, category="user_annotation")

    def trace(self, tmp_path):
        return load_events(tmp_path, self.events).ranks[0].light


def found(trace):
    own = view(0, trace)
    return own.basis, [(step.start_ns // US, step.end_ns // US) for step in own.steps], own.no_steps


def trained(script, steps, optimizer=True, ranged=False):
    for _ in range(steps):
        script.pause(100).launch(COPY, COPY, *FORWARD).around(NODE, *BACKWARD, thread=2)
        if ranged:
            script.optimizer("AdamW", ADAM, ADAM)
        elif optimizer:
            script.launch(ADAM, ADAM)
        else:
            script.launch("add", "add", "add")
    return script


def test_the_optimizer_ends_the_steps(tmp_path):
    """By hand: a step is a pause of 100 and 25 launches of 10; the optimizer's range ends 2 before the next pause."""
    basis, steps, why = found(trained(Script(), 5, ranged=True).trace(tmp_path))
    assert (basis, why) == ("optimizer", "")
    assert steps == [(350 * n - 2, 350 * (n + 1) - 2) for n in (1, 2, 3, 4)]


def test_a_window_begins_with_its_first_operation_and_the_last_is_open_ended(tmp_path):
    """By hand: the copy is launched 100 after the step began, and begins 20 later."""
    (device,) = view(0, trained(Script(), 5, ranged=True).trace(tmp_path)).devices
    begins = [350 * n + 120 for n in (1, 2, 3, 4)]
    assert [window.start_ns // US for window in device.windows] == begins
    assert [window.end_ns // US for window in device.windows] == [*begins[1:], 350 * 5 + 15]
    assert [window.open_ended for window in device.windows] == [False, False, False, True]


def test_the_first_of_several_optimizers_is_the_clock(tmp_path):
    script = Script()
    for _ in range(5):
        script.pause(100).launch(*FORWARD).around(NODE, *BACKWARD)
        script.optimizer("NorMuon", ADAM).optimizer("Adam", ADAM)
    basis, steps, _ = found(script.trace(tmp_path))
    assert basis == "optimizer"
    assert steps == [(330 * n + 318, 330 * (n + 1) + 318) for n in range(4)]


def test_an_optimizer_inside_another_is_none(tmp_path):
    script = trained(Script(), 5, ranged=True)
    outer = [one for one in script.events if one["name"].startswith("Optimizer")]
    script.events += [{**one, "ts": one["ts"] + 1, "dur": 3} for one in outer]
    assert len(optimizer_ends(script.trace(tmp_path).columns)) == 5


def test_two_optimizers_of_one_class_are_told_apart_by_what_they_follow(tmp_path):
    """A generator and a discriminator: every second end of Adam ends a step."""
    script = Script()
    for _ in range(5):
        script.pause(100).launch(COPY, *["conv", "leaky"] * 5).around(NODE, *["conv_wgrad"] * 5).optimizer("Adam", ADAM)
        script.launch(*FORWARD).around(NODE, *BACKWARD).optimizer("Adam", ADAM)
    basis, steps, _ = found(script.trace(tmp_path))
    assert (basis, len(steps)) == ("optimizer", 4)
    assert {end - start for start, end in steps} == {100 + 17 * 10 + 22 * 10}


def test_an_optimizer_inside_the_backward_pass_marks_nothing(tmp_path):
    script = Script()
    for _ in range(4):
        script.pause(100).launch(COPY, *FORWARD)
        for _ in range(3):
            begun = script.now
            script.launch(*BACKWARD[:3]).optimizer("SGD", ADAM)
            script.events.append(operator(NODE, begun, script.now))
    trace = script.trace(tmp_path)
    assert len(optimizer_ends(trace.columns)) == 0
    basis, steps, _ = found(trace)
    assert basis == "repeating"
    assert len(steps) == 4


def test_the_optimizer_s_kernels_end_the_steps_where_nothing_is_marked(tmp_path):
    """By hand: the last launch of a step returns 6 before the pause of 100; the head begins with its first launch."""
    basis, steps, _ = found(trained(Script(), 5).trace(tmp_path))
    assert basis == "repeating"
    assert steps == [(100, 344), *((350 * n - 6, 350 * (n + 1) - 6) for n in (1, 2, 3, 4))]


def test_kernels_of_an_optimizer_elsewhere_in_the_step_do_not_end_it(tmp_path):
    """Setting gradients to zero before the backward pass, say."""
    script = Script()
    for _ in range(5):
        script.pause(100).launch(*FORWARD, ADAM).around(NODE, *BACKWARD).launch(ADAM, ADAM, ADAM)
    _, steps, _ = found(script.trace(tmp_path))
    assert [end for _, end in steps] == [350 * (n + 1) - 6 for n in range(5)]


def test_without_known_kernels_a_step_begins_after_the_longest_pause(tmp_path):
    basis, steps, _ = found(trained(Script(), 5, optimizer=False).trace(tmp_path))
    assert basis == "repeating"
    assert steps == [(100, 354), *((360 * n - 6, 360 * (n + 1) - 6) for n in (1, 2, 3, 4))]


def test_pieces_at_the_ends_are_no_steps(tmp_path):
    script = Script().launch(*FORWARD[5:]).around(NODE, *BACKWARD).launch(ADAM, ADAM)
    begun = script.now
    trained(script, 3).pause(100).launch(COPY, COPY, *FORWARD[:7])
    _, steps, _ = found(script.trace(tmp_path))
    assert steps == [(begun + 350 * n - 6, begun + 350 * (n + 1) - 6) for n in range(3)]


def test_micro_batches_are_no_steps(tmp_path):
    """Four backward passes to an optimizer step: two steps in twelve micro-batches' time are too few to be sure of."""

    def accumulated(steps):
        script = Script()
        for _ in range(steps):
            for _ in range(4):
                script.pause(50).launch(COPY, *FORWARD * 2).around(NODE, *BACKWARD * 2)
            script.launch(ADAM)
        return found(script.trace(tmp_path))

    basis, steps, _ = accumulated(4)
    assert (basis, len(steps)) == ("repeating", 4)
    assert {end - start for start, end in steps[1:]} == {4 * (50 + 43 * 10) + 10}
    assert accumulated(1)[1] == []


@pytest.mark.parametrize("steps", [1, 2])
def test_too_few_repetitions_yield_none(tmp_path, steps):
    _, steps, why = found(trained(Script(), steps).trace(tmp_path))
    assert steps == []
    assert "no sequence of operations repeats 3 times" in why


def test_one_backward_pass_among_layers_that_repeat_makes_no_steps_of_them(tmp_path):
    """Which is no reason to say that it holds none."""
    script = Script()
    for _ in range(6):
        script.pause(100).launch(COPY, *FORWARD, "Memcpy DtoH (Device -> Pinned)")
    script.around(NODE, *BACKWARD)
    _, steps, why = found(script.trace(tmp_path))
    assert steps == []
    assert "some repetitions contain no backward pass" in why


def test_layers_and_requests_of_a_model_that_only_runs_forward_yield_none(tmp_path):
    script = Script()
    for _ in range(6):
        script.pause(100).launch(COPY, *FORWARD, "Memcpy DtoH (Device -> Pinned)")
    _, steps, why = found(script.trace(tmp_path))
    assert steps == []
    assert "the host's operators, which would show a backward pass, were not recorded" in why
    assert "no ProfilerStep marks" in why
    script.around("aten::linear", *FORWARD)
    _, steps, why = found(script.trace(tmp_path))
    assert steps == []
    assert "no backward pass (this looks like inference)" in why


def test_a_shuffled_run_yields_none(tmp_path):
    script = trained(Script(), 6)
    kernels = [one for one in script.events if one["cat"] in ("kernel", "gpu_memcpy")]
    names = [one["name"] for one in kernels]
    random.Random(7).shuffle(names)
    for one, name in zip(kernels, names, strict=True):
        one["name"] = name
    assert found(script.trace(tmp_path))[1] == []


def test_without_launches_nothing_is_told(tmp_path):
    script = trained(Script(), 5)
    script.events = [one for one in script.events if one["cat"] != "cuda_runtime"]
    _, steps, why = found(script.trace(tmp_path))
    assert steps == []
    assert "calls that launched most operations were not recorded" in why


def test_operators_of_a_cpu(tmp_path):
    """Nested operators do not count; the pieces before the first and after the last optimizer are no steps."""
    events, now = [], 0
    for _ in range(5):
        now += 50
        for name in ["aten::linear", "aten::relu"] * 4 + [NODE] * 6 + ["aten::_foreach_add_"]:
            events += [operator(name, now, now + 9), operator("aten::inner", now + 1, now + 5)]
            now += 10
    basis, steps, _ = found(load_events(tmp_path, events).ranks[0].light)
    assert basis == "repeating"
    assert steps == [(200 * n - 1, 200 * (n + 1) - 1) for n in (1, 2, 3, 4)]


# Public traces without marks: what their names say they are, and the steps that are to be found.
TRAINING = {
    "single_gpu_mi300/941dea2": ("optimizer", 4),  # five steps of a ResNet-18
    "single_gpu/29571b7": ("optimizer", 29),  # thirty of a ResNet
    "hta_small/b2a719b": ("optimizer", 4),  # five of a small classifier
    "kineto_resnet50_loader/4a9c9ae": ("optimizer", 5),  # six of a ResNet-50
}
NO_STEPS = (  # graphs, benchmarks and models that only run forward; one of kernels alone
    *("inference_graphs/3e1be69", "inference_graphs/b6a467c", "gpu_only_mi210/d1472ed", "single_gpu/7cb8af7"),
    *("sam_a100_series/2909280", "sam_a100_series/3b766a9", "sam_a100_series/8028538", "sam_a100_series/ec94180"),
    *("large_single/a73da0d", "small_vit/0aa04e1", "small_vit/1f5f03b", "handmade/ac8c383", "single_gpu/5b7b13c"),
    *("hta_small/25e7be6", "hta_small/4bcd84b", "hta_small/55a1628", "hta_small/8fb4fb8", "hta_small/eac4fdc"),
    *("cpu_only/3b2ac16", "cpu_only/84dcf76"),
)


def test_every_public_trace_without_marks(real_traces, manifest_entry):
    trace = load([real_traces / manifest_entry["file"]]).ranks[0].light
    known = next((key for key in (*TRAINING, *NO_STEPS) if manifest_entry["file"].startswith(key)), None)
    if host_steps(trace):
        assert known is None
        return
    assert known is not None
    own = view(0, trace)
    if known in NO_STEPS:
        assert own.steps == []
        assert own.no_steps
    else:
        assert (own.basis, len(own.steps)) == TRAINING[known]
        assert own.similarity > 0.95


# Public traces with marks, which are then hidden: how far from a mark a step may begin, as a share of the median step.
# torchrec's and two of HTA's end their steps with the optimizer; HTA's first has a tenth of a step after it, and
# nanoGPT's kernels do not tell the optimizer, so that the longest pause decides, somewhere in the step.
HIDDEN = {
    "torchrec_4xv100/": 0.002,
    "torchrec_qcomm_a_4xv100/": 0.003,
    "torchrec_qcomm_b_4xv100/": 0.003,
    "hta_training/b4b6dce": 0.005,
    "hta_training/e8fe4d1": 0.005,
    "hta_training/b1ceb4c": 0.12,
    "kineto_resnet50_loader/234cf25": 0.005,
    "kineto_resnet50_loader/2d19c63": 0.005,
    "single_gpu/d4c3f21": 0.01,
    "single_gpu/1eeffb3": 0.17,
    "nanogpt_8xh100/42f4e74": 0.4,
    "nanogpt_8xh100/": 0.4,
    "nanogpt_adam_hook_h100/3608dcf": 0.01,
    "cpu_only/05cd72f": 0.03,
}


def hidden(trace):
    names = tuple(name.replace("ProfilerStep#", "Hidden#") for name in trace.columns.names)
    return replace(trace, columns=replace(trace.columns, names=names))


# Read each time: one of each training, and of one run all ranks.
SOME = {"torchrec_4xv100/", *("hta_training/b4b6dce", "hta_training/b1ceb4c", "kineto_resnet50_loader/234cf25")}
SOME |= {*("single_gpu/d4c3f21", "single_gpu/1eeffb3", "nanogpt_8xh100/42f4e74", "cpu_only/05cd72f")}
SOME |= {"nanogpt_adam_hook_h100/3608dcf"}


@pytest.mark.parametrize(
    "key", [pytest.param(key, marks=() if key in SOME else pytest.mark.thorough) for key in HIDDEN]
)
def test_hidden_marks_are_found_again(real_traces, key):
    files = [path for path in real_traces.glob("*/*.gz") if str(path.relative_to(real_traces)).startswith(key)]
    assert files
    for path in files:
        trace = load([path]).ranks[0].light
        marked = host_steps(trace)
        (device,) = view(0, trace).devices
        marks = np.array([step.start_ns for step in marked] + [marked[-1].end_ns])
        usual = float(np.median([step.length_ns for step in marked]))
        blind = hidden(trace)
        own = view(0, blind)
        assert own.basis in ("optimizer", "repeating")
        repeated = repetition(blind.columns, sequence(blind.columns, [device.operations]))
        assert isinstance(repeated, Repetition)
        assert repeated.similarity > 0.95
        for boundaries in ([step.start_ns for step in own.steps][1:], repeated.boundaries_ns[1:-1].tolist()):
            apart = [boundary - marks[np.abs(marks - boundary).argmin()] for boundary in boundaries]
            nearest = [int(np.abs(marks - boundary).argmin()) for boundary in boundaries]
            assert np.abs(apart).max() <= HIDDEN[key] * usual, path.name
            assert np.diff(nearest).tolist() == [1] * (len(nearest) - 1)  # none skipped, none twice
        for steps in (len(own.steps), len(repeated.boundaries_ns) - 1):
            assert steps in (len(marked), len(marked) - 1)  # cut at another place, one step is in two pieces


def test_marks_go_before_all_else(real_traces):
    (path,) = real_traces.glob("torchrec_4xv100/0752d91*")
    trace = load([path]).ranks[0].light
    assert stepping(trace, [device.operations for device in view(0, trace).devices]).basis == "profiler_step"


@pytest.mark.parametrize("name", ["torchrec_4xv100", pytest.param("nanogpt_8xh100", marks=pytest.mark.thorough)])
def test_the_figures_of_a_run_are_those_of_its_marks(real_traces, name):
    """With marks hidden: nearly the same time goes to each class, and the same collectives are matched.

    nanoGPT's optimizer tells three of its four steps, those from the second on; the first holds 8 of 56 collectives.
    """
    run = load([real_traces / name])
    marked = reading.measured(real_traces / name)
    blind = measure(replace(run, ranks=[replace(rank, light=hidden(rank.light)) for rank in run.ranks]))
    assert (marked.steps.basis, blind.steps.basis) == (
        "profiler_step",
        "repeating" if name.startswith("torchrec") else "optimizer",
    )
    lost = 0 if name.startswith("torchrec") else 1
    for own, other in zip(marked.ranks, blind.ranks, strict=True):
        assert len(other.devices[0].steps) == len(own.devices[0].steps) - lost
        total = own.devices[0].steps[lost].account
        for step in own.devices[0].steps[lost + 1 :]:
            total = total + step.account
        for kind in ("compute_ns", "exposed_communication_ns", "copy_ns", "idle_ns"):
            assert other.devices[0].total.share(kind) == pytest.approx(total.share(kind), abs=0.02), (own.rank, kind)
        assert other.arrival.collectives == own.arrival.collectives - 8 * lost
