"""Weights that are kept without a copy."""

from __future__ import annotations

import copy
import textwrap

import pytest
import torch
from torch import nn

from dptune.capture.injected.observe import kept_weights
from dptune.capture.injected.observe.kept_weights import KeptWeights
from dptune.capture.injected.observe.kept_weights_source import assignment_at, best_weights

SCRIPT = """
    import torch
    from torch import nn

    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    lowest = 100.0
    for step in range(20):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == REACHED and loss.item() < lowest:
            lowest = loss.item()
            best = model.state_dict()
    model.load_state_dict(best)
"""
WINDOWS = ("--warmup", "4", "--untraced", "3", "--light", "0", "--detailed", "0", "--continue")


@pytest.mark.records
@pytest.mark.parametrize("reached", [2, pytest.param(15, marks=pytest.mark.thorough)])
def test_a_recording_names_the_line_that_keeps_and_the_one_that_reads(profile, reached):
    """One that the recording reaches, and one that is only in the source."""
    done = profile(SCRIPT.replace("REACHED", str(reached)), *WINDOWS)
    assert done.status == 0, done.err
    (found,) = done.facts().kept_weights
    assert (found.where, found.held_by, found.used_where) == ("train.py:15", "best", "train.py:16")
    if reached == 2:
        assert (found.module, found.tensors) == ("Linear", 2)
        assert found.steps >= 2
    else:
        assert found.steps == 0


class Run:
    """A model that trains, with what a script keeps of it."""

    def __init__(self, observer):
        self.observer = observer
        self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, fused=True)  # leaves versions as they are
        self.kept = None

    def step(self):
        self.model(torch.randn(8, 4)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.observer.stepped(self.optimizer)


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(nn.Module, "state_dict", nn.Module.state_dict)
    monkeypatch.setattr(torch, "save", torch.save)
    monkeypatch.setattr(kept_weights, "script_files", dict)
    observer = KeptWeights()
    observer.install()
    made = Run(observer)
    made.step()
    return made


def facts(run, steps=3):
    for _ in range(steps):
        run.step()
    return run.observer.facts()


def test_an_attribute_that_keeps_weights(run):
    run.kept = run.model.state_dict()
    (found,) = facts(run)
    assert (found.module, found.held_by, found.steps) == ("Sequential", "run.kept", 3)
    assert found.tensors == 6
    assert found.where.startswith("tests/capture/test_kept_weights.py:")
    assert torch.equal(run.kept["0.weight"], run.model[0].weight)


@pytest.mark.parametrize(
    "shallow",
    [
        dict,
        copy.copy,
        lambda state: {name: tensor.cpu() for name, tensor in state.items()},
        lambda state: {"model": state, "step": 3},
    ],
)
def test_a_shallow_copy_is_no_copy(run, shallow):
    run.kept = shallow(run.model.state_dict())
    assert len(facts(run)) == 1


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda state: {name: tensor.clone() for name, tensor in state.items()},
        lambda state: {name: tensor.half() for name, tensor in state.items()},
        lambda state: list(state),
        lambda state: list(state.values())[-1],
    ],
)
def test_quiet_where_tensors_are_copied_or_let_go(run, copied):
    run.kept = copied(run.model.state_dict())
    assert facts(run) == []


def test_quiet_where_they_are_saved_or_loaded_at_once(run, tmp_path):
    run.kept = {"step": 1, "model": run.model.state_dict()}
    torch.save(run.kept, tmp_path / "weights.pt")
    other = copy.deepcopy(run.model)
    other.load_state_dict(run.model.state_dict())
    assert facts(run) == []


def test_quiet_for_a_local_variable_that_is_not_read_any_more(run):
    state = run.model.state_dict()
    assert facts(run) == []
    assert len(state) == 9


def test_quiet_before_the_first_step_and_for_what_is_let_go_before_the_second(run):
    observer = KeptWeights()
    observer.install()
    kept = run.model.state_dict()
    assert not observer._results
    run.kept = run.model.state_dict()
    run.step()
    run.kept = None
    assert facts(run) == []
    assert kept is not None


def test_weights_that_are_replaced_after_some_steps(run):
    for _ in range(4):
        run.kept = run.model.state_dict()
        for _ in range(3):
            run.step()
    run.kept = None
    (found,) = facts(run)
    assert found.steps >= 2


def test_quiet_where_the_parameters_got_new_memory(run):
    run.kept = run.model.state_dict()
    for parameter in run.model.parameters():
        parameter.data = parameter.data.clone()
    assert facts(run) == []


def test_quiet_for_a_module_that_is_not_trained(run):
    run.other = nn.Linear(4, 4)
    run.kept = run.other.state_dict()
    assert facts(run) == []


def test_a_module_with_a_state_dict_of_its_own(run):
    class Odd(nn.Linear):
        def state_dict(self, *args, **kwargs):
            return {"weight": "text", "number": 3}

    assert Odd(2, 2).state_dict() == {"weight": "text", "number": 3}
    assert list(nn.Sequential(nn.Linear(2, 2)).state_dict(prefix="a.")) == ["a.0.weight", "a.0.bias"]
    assert facts(run) == []


def source(tmp_path, text):
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(text))
    return str(file)


KEEPS = """
    FLAG = False

    class Trainer:
        def consider(self, loss):
            if loss < self.lowest:
                self.weights = {value}
            return self.weights

        def finish(self):
            self.model.load_state_dict(self.weights)
"""


@pytest.mark.parametrize(
    "value",
    [
        "self.model.state_dict()",
        "dict(self.model.state_dict())",
        "self.model.state_dict().copy()",
        "copy.copy(self.model.state_dict())",
        "{k: v for k, v in self.model.state_dict().items()}",
        "copy.deepcopy(self.model.state_dict()) if FLAG else self.model.state_dict()",
    ],
)
def test_the_source_shows_best_weights_that_are_no_copy(tmp_path, value):
    (found,) = best_weights(source(tmp_path, KEEPS.format(value=value)), {"FLAG": False})
    assert (found.line, found.name, found.used_line) == (7, "self.weights", 11)


@pytest.mark.parametrize(
    "value",
    [
        "copy.deepcopy(self.model.state_dict())",
        "{k: v.clone() for k, v in self.model.state_dict().items()}",
        "{k: v.cpu() for k, v in self.model.state_dict().items()}",
        "clone(self.model.state_dict())",
        "copy.deepcopy(self.model.state_dict()) if FLAG else None",
        "copy.deepcopy(self.model.state_dict()) if self.copies else self.model.state_dict()",
        "self.other.state_dict()",
    ],
)
def test_the_source_is_quiet_for_copies_and_what_it_does_not_show(tmp_path, value):
    assert best_weights(source(tmp_path, KEEPS.format(value=value)), {"FLAG": False}) == []


@pytest.mark.parametrize(
    "text",
    [
        """
        def initialise(model, pretrained):
            if len(pretrained) > 3:
                state = model.state_dict()
                state.update(pretrained)
                model.load_state_dict(state)
        """,
        """
        def keep(optimizer, best, loss):
            if loss < best:
                state = optimizer.state_dict()
            optimizer.load_state_dict(state)
        """,
        """
        def average(model, worker):
            state = model.state_dict()
            for step in range(3):
                pass
            model.load_state_dict(state)
        """,
        "def broken(:\n    x.state_dict()",
    ],
)
def test_the_source_is_quiet_for_weights_that_are_read_at_once(tmp_path, text):
    try:
        found = best_weights(source(tmp_path, text), {})
    except SyntaxError:
        return
    assert found == []


def test_what_is_assigned_on_a_line_and_what_reads_it_later(tmp_path):
    text = """
    def train(model, path):
        for step in range(9):
            checkpoint = {
                "model": model.state_dict(),
            }
            save(checkpoint)
        torch.save(checkpoint, path)
        other = model.state_dict()
        torch.save({"model": other}, path)
    """
    file = source(tmp_path, text)
    first, second = assignment_at(file, 5), assignment_at(file, 9)
    assert (first.name, first.is_shared, first.used_line) == ("checkpoint", False, 8)
    assert (second.name, second.used_line) == ("other", None)
    assert assignment_at(file, 2) is None
