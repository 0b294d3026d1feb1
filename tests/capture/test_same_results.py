"""Operators that compute the same in every step: real ones, in steps of plain torch."""

from __future__ import annotations

import functools
import os
import random
import threading

import pytest
import torch
from torch import nn, overrides

from dptune.capture.injected.observe import same_results
from dptune.capture.injected.observe.module_calls import ModuleCalls
from dptune.capture.injected.observe.places import OURS
from dptune.capture.injected.observe.same_results import SameResults
from dptune.capture.injected.observe.value_numbers import ValueNumbers

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of a process with threads


class Uncompiled:
    compiled = ()


FIXED = torch.rand(64, 64)
DATA = torch.rand(32, 64)


@pytest.fixture(autouse=True)
def every_call_counts(monkeypatch):
    """However fast the machine is."""
    monkeypatch.setattr(same_results, "_LEAST_NS", 0)


def found(step, steps=4, observer=None, fused=None):
    """What is found in steps of a model of one layer."""
    model, observer = nn.Linear(64, 64), observer or SameResults(Uncompiled())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    observer.begin()
    for _ in range(steps):
        loss = step(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        observer.ticked()
    observer.end()
    assert overrides._get_current_function_mode_stack() == []
    return observer.facts()


def normalized(matrix):
    scale = torch.diag(matrix.sum(1).pow(-0.5))
    return scale @ matrix @ scale


def test_a_function_of_a_tensor_that_stays():
    (facts,) = found(lambda model: (normalized(FIXED) @ model(torch.rand(64, 64))).mean())
    assert facts.function.startswith("normalized (tests/capture/test_same_results.py:")
    assert set(facts.operators) <= {"sum", "pow", "diag", "matmul"}
    assert (facts.calls, facts.size) == (5, [64, 64])
    assert len(facts.step_ns) == len(facts.again_ns) == 2
    assert all(
        0 < again <= forward <= step
        for again, forward, step in zip(facts.again_ns, facts.forward_ns, facts.step_ns, strict=True)
    )
    assert 0 < facts.step_share < facts.forward_part < 1


def test_results_of_results_and_of_plain_arguments():
    def positions():
        rates = torch.pow(1e4, torch.arange(64) / -64)
        return torch.outer(torch.arange(64.0), rates).sin()

    (facts,) = found(lambda model: model(torch.rand(64, 64) + positions()).mean())
    assert facts.function.startswith("test_results_of_results_and_of_plain_arguments.<locals>.positions (") or (
        facts.function.startswith("positions (")
    )
    assert set(facts.operators) <= {"pow", "truediv", "div", "outer", "sin"}
    assert facts.calls == 4


def frozen(layer):
    return lambda model: model(layer(torch.rand(8, 64))).mean()


def dropped(model):
    return model(nn.functional.dropout(FIXED)).mean()


def undropped(model):
    return (nn.functional.dropout(FIXED.exp(), 0.5, training=False) @ FIXED @ model(torch.rand(64, 64))).mean()


def noisy(model):
    return (model(torch.rand(64, 64)) * (torch.rand(64, 64) > 0.5)).mean()


def sliced():
    at = iter(range(8))
    return lambda model: model(DATA[4 * (start := next(at)) : 4 * start + 4].exp()).mean()


def changed_in_place(model):
    state = changed_in_place.state
    state.add_(1)
    return (model(torch.rand(64, 64)) * state.exp().reciprocal()).mean()


changed_in_place.state = torch.zeros(64, 64)


def changed_unseen(model):
    """Through `.data`, which leaves the version as it was."""
    changed_unseen.state.data.add_(1)
    return (model(torch.rand(64, 64)) * changed_unseen.state.exp().reciprocal()).mean()


changed_unseen.state = torch.zeros(64, 64)


def made_and_filled(model):
    """Zeros are the same each time, but what they are filled with is not."""
    return torch.zeros(64, 64).index_add(0, torch.randint(0, 64, (8,)), model(torch.rand(8, 64))).mean()


@pytest.mark.parametrize(
    "step",
    [
        frozen(nn.Linear(64, 64).requires_grad_(False)),
        dropped,
        noisy,
        sliced(),
        changed_in_place,
        changed_unseen,
        made_and_filled,
        lambda model: (model.weight @ model.weight.T).mean(),  # what is trained
    ],
)
def test_nothing_where_inputs_or_values_change(step):
    assert found(step) == []


def test_dropout_in_evaluation_mode_draws_nothing():
    (facts,) = found(undropped)
    assert facts.calls == 2
    layers = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 64)).requires_grad_(False)
    (facts,) = found(lambda model: (model(torch.rand(64, 64)) * layers(FIXED)).mean())
    assert facts.calls == 1  # the first layer alone
    layers.eval()
    (facts,) = found(lambda model: (model(torch.rand(64, 64)) * layers(FIXED)).mean())
    assert facts.calls == 2


def test_modules_whose_calls_are_shown_to_observers():
    layer, calls = nn.Linear(64, 64).requires_grad_(False), ModuleCalls()
    calls.before(layer, lambda *_: None)
    calls.begin()
    try:
        (facts,) = found(lambda model: (model(torch.rand(64, 64)) * layer(FIXED)).mean())
    finally:
        calls.end()
    assert facts.operators == ["linear"]


def table(width):
    """Filled with numbers, each in a call too short to compare."""
    bank = torch.zeros(width, 64)
    for row in range(width):
        for column in range(64):
            bank[row, column] = row / (1 + column)
    return bank


def drawn_table(width):
    bank = torch.zeros(width, 64)
    for row in range(width):
        bank[row, 0] = random.random()
    return bank


def scaled_table(width, model):
    bank = torch.zeros(width, 64)
    for row in range(width):
        bank[row, 0] = row
    return bank * model.weight[:width]


@pytest.fixture
def short_calls(monkeypatch):
    monkeypatch.setattr(same_results, "_LEAST_NS", 10**12)
    monkeypatch.setattr(same_results, "_LEAST_OF_CONSTANTS_NS", 1)


@pytest.mark.usefixtures("short_calls")
def test_a_table_that_a_loop_fills_with_the_same_numbers():
    (facts,) = found(lambda model: (model(torch.rand(8, 64)) @ table(16).T).mean())
    assert facts.function.startswith("table (tests/capture/test_same_results.py:")
    assert (facts.operators, facts.calls, facts.whole) == (["setitem"], 16 * 64, True)


@pytest.mark.usefixtures("short_calls")
def test_numbers_that_differ_are_no_constants():
    assert found(lambda model: (model(torch.rand(8, 64)) @ drawn_table(16).T).mean()) == []


@pytest.mark.usefixtures("short_calls")
def test_a_function_that_computes_something_else_as_well_is_not_whole():
    (facts,) = found(lambda model: (model(torch.rand(8, 64)) @ scaled_table(16, model).T).mean())
    assert (facts.operators, facts.calls, facts.whole) == (["setitem"], 16, False)


def test_tests_of_weights_that_a_fused_optimizer_changes_are_not_the_same():
    """Their version stays, and each result is False again."""

    def step(model):
        for parameter in model.parameters():
            assert not torch.isnan(parameter).any()
        return model(DATA).square().mean()

    assert found(step, fused=True) == []


def test_a_mask_of_fixed_tensors_is_the_same():
    def step(model):
        mask = FIXED > FIXED.T
        return model(DATA)[:, mask[0]].square().mean()

    (facts,) = found(step)
    assert "gt" in facts.operators


def test_a_cast_of_a_tensor_that_stays_counts_unless_the_copy_is_changed():
    clips = torch.ones(64, 64, dtype=torch.int16)

    def changes_a_row(model):
        signal = clips.float()
        signal[0] += 1
        return model(signal).mean()

    def operators(step):
        return {operator for facts in found(step) for operator in facts.operators}

    (facts,) = found(lambda model: model(clips.float()).mean())
    assert (facts.operators, facts.calls, facts.size) == (["float"], 1, [64, 64])
    assert "float" not in operators(changes_a_row)
    assert operators(lambda model: model(clips.float().relu_()).mean()) == set()
    assert "to" not in operators(lambda model: model(torch.relu(clips.to(torch.float32)[1:].add_(1))).mean())
    assert operators(lambda model: model(DATA.float()).mean()) == set()  # it is float already
    assert operators(lambda model: model(DATA.to(torch.float32, copy=True)).mean()) == set()


def test_what_is_kept_is_not_computed_again():
    kept = normalized(FIXED)
    assert found(lambda model: (kept @ model(torch.rand(64, 64))).mean()) == []
    cached = functools.cache(lambda: normalized(FIXED))
    assert found(lambda model: (cached() @ model(torch.rand(64, 64))).mean()) == []


def test_results_are_what_they_are_without_it():
    def losses(watch):
        torch.manual_seed(0)
        seen, model = [], nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1))
        observer = SameResults(Uncompiled())
        if watch:
            observer.begin()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(5):
            loss = (normalized(FIXED) @ model(torch.rand(64, 64))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
            observer.ticked()
        observer.end()
        return seen

    assert losses(True) == losses(False)


def test_steps_that_take_turns_are_compared_over_one_between():
    turns = iter(range(8))
    (facts,) = found(
        lambda model: (model(torch.rand(64, 64)) @ (normalized(FIXED) if next(turns) % 2 else DATA.T)).mean(), steps=5
    )
    assert [again > 0 for again in facts.again_ns] == [False, True]


def test_what_ends_one_step_and_begins_the_next_is_not_the_same_in_every_step():
    """A step may end between two evaluations of one batch: the optimizer that marks steps is not the last to step."""
    batches = [torch.rand(32, 64) for _ in range(6)]

    def step(model):
        del batches[0]
        first, second = torch.matmul(batches[0], FIXED), torch.matmul(batches[1], FIXED)
        return model(first + second).mean()

    assert found(step) == []
    batches[:] = [torch.rand(32, 64)] * 6
    assert [facts.operators[0] for facts in found(step) if not facts.within_step] == ["matmul"]


def test_a_forked_child_ends_it_and_is_free_of_it():
    observer = SameResults(Uncompiled())
    observer.begin()
    observer.ticked()
    child = os.fork()
    if child == 0:
        observer.end()
        os._exit(len(overrides._get_current_function_mode_stack()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(overrides._get_current_function_mode_stack()) == 1
    observer.end()


def test_not_under_a_mode_of_the_script():
    observer = SameResults(Uncompiled())
    with torch.device("cpu"):
        observer.begin()
        observer.ticked()
        assert len(overrides._get_current_function_mode_stack()) == 1
        observer.end()
    assert observer.facts() == []


def test_modes_of_the_script_stay_when_it_ends():
    observer = SameResults(Uncompiled())
    observer.begin()
    observer.ticked()
    with overrides.TorchFunctionMode() as theirs:
        observer.end()
        assert overrides._get_current_function_mode_stack() == [theirs]
    assert overrides._get_current_function_mode_stack() == []


def test_neither_other_threads_nor_code_that_is_compiled():
    observer = SameResults(Uncompiled())
    observer.begin()
    thread = threading.Thread(target=observer.ticked)
    thread.start()
    thread.join()
    assert overrides._get_current_function_mode_stack() == []

    class Compiled:
        compiled = ("model",)

    assert (
        found(lambda model: (normalized(FIXED) @ model(torch.rand(64, 64))).mean(), observer=SameResults(Compiled()))
        == []
    )


def test_errors_of_the_script_are_the_same():
    observer = SameResults(Uncompiled())
    observer.begin()
    observer.ticked()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.rand(2, 3) @ torch.rand(2, 3)
    observer.end()


def test_numbers_by_hand():
    numbers, a, b = ValueNumbers(), torch.ones(2), torch.ones(2)
    assert numbers.of(a) == numbers.of(a) != numbers.of(b)
    assert numbers.number("add", (a, 1), {}) == numbers.number("add", (a, 1), {})
    different = [
        ("add", (a, 1), {}),
        ("add", (a, 1.0), {}),
        ("add", (a, True), {}),
        ("add", (b, 1), {}),
        ("mul", (a, 1), {}),
        ("add", (a,), {"other": 1}),
        ("add", ([a], 1), {}),
        ("add", (a, slice(1)), {}),
    ]
    assert len({numbers.number(*call) for call in different}) == len(different)
    before = numbers.of(a)
    a.add_(1)
    assert numbers.of(a) != before
    assert numbers.number("rand", (2,), {}) != numbers.number("rand", (2,), {})
    assert numbers.number("f", (object(),), {}) != numbers.number("f", (object(),), {})
    del b, different
    numbers.forget_dead()
    assert len(numbers._known) == 1


def mask_of(tokens):
    """A bias for each pair of positions."""
    same = tokens[:, :, None] == tokens[:, None, :]
    return torch.where(same, 0.0, -1.0).float() * 0.5


def test_what_each_layer_makes_of_the_same_batch():
    def step(model):
        tokens, x = torch.randint(0, 3, (4, 64)), torch.rand(4, 64, 64)
        for _ in range(4):
            x = model(x) + mask_of(tokens)
        return x.mean()

    (facts,) = found(step)
    assert facts.function.startswith("mask_of (tests/capture/test_same_results.py:")
    assert facts.within_step
    assert facts.calls == 3 * facts.results
    assert facts.times == 4
    assert all(0 < again <= forward for again, forward in zip(facts.again_ns, facts.forward_ns, strict=True))


def test_other_batches_and_what_is_trained_are_not_the_same_within_a_step():
    def step(model):
        first, second = torch.randint(0, 3, (4, 64)), torch.randint(0, 3, (4, 64))
        x = model(model(torch.rand(4, 64, 64)) + mask_of(first)) + mask_of(second)
        first.add_(1)
        return (x + mask_of(first)).mean() + (model.weight * 2).sum() + (model.weight * 2).sum()

    assert found(step) == []


OBSERVER = """
import functools

def compute(tensor):
    return tensor @ tensor

def around(call):
    @functools.wraps(call)
    def watched(*args):
        return call(*args)
    return watched
"""


def observed(**names):
    """The functions of a module of observers."""
    exec(compile(OBSERVER, f"{OURS}observe/of_a_test.py", "exec"), names)
    return names


def test_what_an_observer_computes_for_itself_is_not_the_scripts():
    compute = observed()["compute"]

    def step(model):
        compute(FIXED)
        return model(torch.rand(64, 64)).mean()

    assert found(step) == []


def test_what_the_script_calls_through_an_observer_is_its_own():
    product = observed()["around"](torch.matmul)

    def step(model):
        return model(product(FIXED, FIXED) + torch.rand(64, 64)).mean()

    (facts,) = found(step)
    assert facts.operators == ["matmul"]
    assert "step (tests/capture/test_same_results.py:" in facts.function
