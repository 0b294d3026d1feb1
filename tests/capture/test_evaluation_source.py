"""Evaluations that the source of a training loop shows, and nothing puts the model into evaluation mode for."""

import sys
import textwrap
import threading
from functools import partial
from pathlib import PurePath

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from dptune.capture.injected.observe.evaluation_source import evaluation_without_mode

FRAME = """
    import copy
    import torch

    class Evaluating:
        def __init__(self, model):
            pass

        def __enter__(self):
            pass

        def __exit__(self, *raised):
            pass

    @torch.no_grad()
    def validate(model, loader):
        # start
        total = 0.0
        for rows in loader:
            total += model(rows).sum()  # HERE
        return total

    @torch.no_grad()
    def update_bn(model, loader):
        for rows in loader:
            model(rows)

    def without(model, loader):
        with torch.inference_mode():
            for at, rows in enumerate(loader):
                model(rows)  # HERE

    def trained_again(model, loader):
        for rows in loader:
            model(rows).sum().backward()

    @torch.no_grad()
    def average(model, averages):
        for name in averages:
            model(name)

    def train(model, loader, held_out, look):
        for epoch in range(3):
            for rows in loader:
                look()
            # epoch
"""


@pytest.fixture
def found(tmp_path):
    def run(epoch, start="pass"):
        """The marked line, and what is found, of a script with these lines."""
        source = textwrap.dedent(FRAME).replace("# epoch", epoch).replace("# start", start)
        script = tmp_path / "train.py"
        script.write_text(source)
        model, seen = nn.Linear(2, 1), []

        def look():
            around = frozenset({id(model)})
            seen.append(evaluation_without_mode(sys._getframe(1), around, lambda name: name == "update_bn"))

        scope = {"__name__": "train"}
        exec(compile(source, str(script), "exec"), scope)
        loader = DataLoader(torch.ones(1, 2))
        given = (model, loader, DataLoader(torch.ones(1, 2)), partial(look))  # no function of this file
        thread = threading.Thread(target=scope["train"], args=given)  # whose stack has nothing of this file
        thread.start()
        thread.join()
        lines = [at for at, text in enumerate(source.splitlines(), 1) if "# HERE" in text]
        return lines, seen[0]

    return run


@pytest.mark.parametrize(("call", "at"), [("validate(model, held_out)", 0), ("without(model, loader=held_out)", 1)])
def test_the_line_that_calls_the_model(found, call, at):
    lines, where = found(call)
    assert (PurePath(where.rpartition(":")[0]).name, int(where.rpartition(":")[2])) == ("train.py", lines[at])


@pytest.mark.parametrize(
    ("call", "start"),
    [
        ("validate(model, held_out)", "model.eval()"),
        ("validate(model, held_out)", "copy.copy(model)"),
        ("with Evaluating(model): validate(model, held_out)", "pass"),
        ("validate(model, held_out)", "model.train(False)"),
        ("validate(model, held_out)", "model.training = False"),
        ("update_bn(model, held_out)", "pass"),
        ("trained_again(model, held_out)", "pass"),
        ("average(model, [])", "pass"),
        ("pass", "pass"),
    ],
)
def test_no_evaluation_or_a_script_that_changes_the_mode(found, call, start):
    assert found(call, start)[1] is None
