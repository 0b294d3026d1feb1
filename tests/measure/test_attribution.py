"""Where compute comes from, by hand; times in microseconds."""

import pytest

from dptune.measured import Missing

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import BACKWARD, US, annotation, launched, measure_events, operator, python, step

FRAMES = [
    step(3, 0, 200),
    python("train.py(90): <module>", 0, 200),
    python("nn.Module: Net_0", 10, 80),
    python("torch/nn/modules/module.py(1782): _call_impl", 11, 80),
    python("model.py(12): forward", 12, 79),
    python("nn.Module: Linear_0", 20, 30),
    python("nn.Module: Linear_1", 40, 50),
    python("/venv/lib/python3.11/site-packages/wise/act.py(3): relu", 60, 70),
    python("random.py(5): random", 71, 75),
    annotation("my loss", 82, 90),
    annotation("DistributedDataParallel.forward", 9, 81),
    annotation("Optimizer.step#SGD.step", 150, 180),
    annotation("my update", 145, 185),
    operator(BACKWARD, 100, 120, thread=2),
    python("nn.Module: Loss_0", 82, 90),
]
GPU = [
    *FRAMES,
    *launched("gemm", 22, 50, 60, 1),  # Linear_0
    *launched("gemm", 45, 60, 67, 2),  # Linear_1
    *launched("gemm", 62, 70, 75, 3),  # of a library in the Net
    *launched("gemm", 72, 75, 79, 4),  # of the Net, in random.py
    *launched("gemm", 85, 90, 93, 5),  # Loss_0, in my loss
    *launched("gemm", 105, 110, 130, 6, thread=2),  # autograd's: the script waits for it in train.py
    *launched("gemm", 160, 170, 171, 7),  # my update
]


def attribution_of(tmp_path, events):
    return measure_events(tmp_path, events).attribution


def told(sources):
    return {one.name: (one.compute_ns / US, one.instances) for one in sources.top}


def test_a_gpu_by_hand(tmp_path):
    """The window is [50,171), of which 50 us are compute."""
    found = attribution_of(tmp_path, GPU)
    assert (found.window, found.steps, found.compute_ns) == ("light", 1, 50 * US)
    assert found.compute_share == pytest.approx(50 / 121)
    assert told(found.modules) == {"Linear": (17, 2), "Net": (9, 1), "Loss": (3, 1)}
    assert found.modules.covered_share == pytest.approx(29 / 50)
    assert told(found.functions) == {"model.py(12): forward": (26, 1), "train.py(90): <module>": (24, 1)}
    assert found.functions.covered_share == 1
    assert told(found.annotations) == {"my loss": (3, 1), "my update": (1, 1)}
    assert found.modules.top[0].step_share == pytest.approx(17 / 121)


def test_two_threads_of_the_script_leave_autograds_work_to_neither(tmp_path):
    other = [python("serve.py(1): poll", 0, 200, thread=3)]
    found = attribution_of(tmp_path, [*GPU, *other])
    assert told(found.functions)["train.py(90): <module>"] == (4, 1)
    assert found.functions.covered_share == pytest.approx(30 / 50)


def test_kernels_that_run_at_once_count_once(tmp_path):
    """Linear_0 in [50,60), Linear_1 on another stream in [55,70): the first begun has its time."""
    first, second = launched("gemm", 22, 50, 60, 1), launched("gemm", 62, 55, 70, 2, stream=8)
    found = attribution_of(tmp_path, [*FRAMES, *first, *second])
    assert found.compute_ns == 20 * US
    assert told(found.modules) == {"Linear": (10, 2), "Net": (10, 1)}


def test_a_cpu_by_its_own_time(tmp_path):
    """One operator around a module and its own: each moment goes to the module it lies in."""
    events = [
        step(3, 0, 100),
        python("train.py(90): step", 0, 100),
        operator("aten::checkpoint", 10, 60),
        python("nn.Module: Linear_0", 20, 30),
        python("nn.Module: ReLU_0", 40, 45),
        operator("aten::mm", 22, 28),
        operator("aten::add", 70, 75),
        python("nn.Module: Norm_0", 65, 72),
    ]
    found = attribution_of(tmp_path, events)
    assert found.compute_ns == 55 * US
    assert told(found.modules) == {"Linear": (10, 1), "ReLU": (5, 1), "Norm": (2, 1)}
    assert found.modules.covered_share == pytest.approx(17 / 55)
    assert told(found.functions) == {"train.py(90): step": (55, 1)}


def test_without_stacks_and_names_it_is_missing_with_the_reason(tmp_path):
    bare = [event for event in GPU if event["cat"] != "python_function" and not event["name"].startswith("my ")]
    with pytest.raises(Missing, match="record_function"):
        attribution_of(tmp_path, bare)
    named = [event for event in GPU if event["cat"] != "python_function"]
    found = attribution_of(tmp_path, named)
    assert told(found.annotations) == {"my loss": (3, 1), "my update": (1, 1)}
    for sort in ("modules", "functions"):
        with pytest.raises(Missing, match="recorded without stacks"):
            getattr(found, sort)


def test_more_than_ten_places(tmp_path):
    events = [step(3, 0, 300)]
    for number in range(12):
        events.append(annotation(f"part {number}", 10 * number, 10 * number + 5))
        events += launched("gemm", 10 * number, 10 * number + 2, 10 * number + 4 + number % 5, number)
    found = attribution_of(tmp_path, events).annotations
    assert (len(found.top), found.places, found.covered_share) == (10, 12, 1)
    assert [one.name for one in found.top[:2]] == ["part 4", "part 9"]


@pytest.mark.long
def test_a_detailed_window_tells_of_a_recorded_run(request):
    samples = request.config.rootpath / "sample_traces"
    found = reading.measured(samples / "tiny_buckets").attribution
    assert (found.window, found.rank) == ("detailed", 0)
    modules = {one.name: one for one in found.modules.top}
    assert modules["Linear"].instances == 25  # --layers 24 and the head
    assert modules["LayerNorm"].instances == modules["ReLU"].instances == 24
    assert not any("dptune" in one.name for one in found.functions.top)
    assert 0 < found.modules.covered_share < 1


def test_backward_of_a_real_trace_is_what_the_script_calls_so(real_traces):
    """This script names its phases itself: two ways to the same time."""
    path = real_traces / "hta_training" / "e8fe4d1_rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"
    measured = reading.measured(path)
    phases = {one.phase: one.compute_ns for one in measured.phases}
    named = {one.name: one.compute_ns for one in measured.attribution.annotations.top}
    assert named["## backward ##"] == pytest.approx(phases["backward"], rel=0.01)
    assert named["## forward ##"] == pytest.approx(phases["forward"], rel=0.02)
    assert named["## optimizer ##"] == pytest.approx(phases["optimizer"], rel=0.1)
