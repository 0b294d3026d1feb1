"""Calls of `torch.save` that the source of a training loop shows."""

import ast
import sys
import textwrap
from pathlib import PurePath

import pytest
import torch

from dptune.capture.injected.observe import validation
from dptune.capture.injected.observe.save_calls import save_calls

FRAME = """
    import os
    from pathlib import Path
    import torch
    import torch.distributed as dist

    class Trainer:
        def __init__(self, rank):
            self.rank, self.folder, self.is_main = rank, Path("runs"), rank == 0
            self.path = self.folder / "last.pt"
            self.own = f"runs/{rank}.pt"
            self.step, self.every, self.state = 0, 100, {}

        def save(self):
            # save

        def train(self):
            for epoch in range(3):
                for batch in range(2):
                    look()
                    self.step += 1
                    if self.step % self.every == 0:
                        self.save()
                # epoch
            # after

    def only_main(function):
        return function

    @only_main
    def save_decorated(state, path):
        torch.save(state, path)

    def write(state, path):
        torch.save(state, path)

    def main(rank):
        Trainer(rank).train()
"""


@pytest.fixture
def found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch, "save", torch.save)

    def run(rank=0, **parts):
        """With these parts in place of the comments."""
        source = textwrap.dedent(FRAME)
        for name, indent in (("save", 8), ("epoch", 12), ("after", 8)):
            marked = f"{' ' * indent}# {name}\n"
            assert marked in source
            source = source.replace(marked, textwrap.indent(f"{parts.get(name, 'pass')}\n", " " * indent))
        script = tmp_path / f"{len(list(tmp_path.iterdir()))}" / "train.py"
        script.parent.mkdir()
        script.write_text(source)
        seen = []

        def look():
            seen.append(save_calls(sys._getframe(1)))
            raise StopIteration

        scope = {"look": look, "__name__": "__main__"}
        exec(compile(source, str(script), "exec"), scope)
        with pytest.raises(StopIteration):
            scope["main"](rank)
        names = {path.removeprefix(f"{tmp_path.resolve()}/"): line for path, line in seen[0].items()}
        return {name: PurePath(line.rpartition(":")[0]).name for name, line in names.items()}

    return run


EVERY = {
    "an attribute": ("torch.save(self.state, self.path)", "runs/last.pt"),
    "parts": ('torch.save(self.state, os.path.join("runs", "best.pt"))', "runs/best.pt"),
    "a keyword": ('torch.save(self.state, f=str(self.folder / "best.pt"))', "runs/best.pt"),
    "a variable": ('path = self.folder / "best.pt"\ntorch.save(self.state, path)', "runs/best.pt"),
    "a function": ("write(self.state, self.path)", "runs/last.pt"),
    "a condition": ("if self.step % 100 == 0:\n    torch.save(self.state, self.path)", "runs/last.pt"),
    "one that holds": ("if self.every:\n    torch.save(self.state, self.path)", "runs/last.pt"),
    "not decided": ("if self.rank and False:\n    return\ntorch.save(self.state, self.path)", "runs/last.pt"),
    "a case": ("match self.every:\n    case 100:\n        torch.save(self.state, self.path)", "runs/last.pt"),
    "in try": ("try:\n    torch.save(self.state, self.path)\nexcept OSError:\n    pass", "runs/last.pt"),
}
ONE = {
    "of rank 0": "if self.rank == 0:\n    torch.save(self.state, self.path)",
    "unless": "if self.rank:\n    return\ntorch.save(self.state, self.path)",
    "an attribute": "if self.is_main:\n    torch.save(self.state, self.path)",
    "not": "if not self.is_main:\n    return\ntorch.save(self.state, self.path)",
}
NONE = {
    "a call": "if is_main_process():\n    torch.save(self.state, self.path)",
    "leaves": "if not is_main_process():\n    return\ntorch.save(self.state, self.path)",
    "one line": "is_main_process() and torch.save(self.state, self.path)",
    "decorated": "save_decorated(self.state, self.path)",
    "a file": 'with open(self.own, "wb") as file:\n    torch.save(self.state, file)',
    "computed": "torch.save(self.state, make_path())",
    "changed": 'path = "a.pt"\nif self.step:\n    path = make_path()\ntorch.save(self.state, path)',
    "both": "if self.step % 2 == 0 and self.rank == 0:\n    torch.save(self.state, self.path)",
    "a method": "if self.keeper.is_due(self.step):\n    torch.save(self.state, self.path)",
    "a case": (
        "match self.every:\n    case 100:\n        if is_main_process():\n            torch.save(self.state, self.path)"
    ),
    "a case of a rank": "match self.rank:\n    case 0:\n        torch.save(self.state, self.path)",
    "a guard": "match self.every:\n    case 100 if is_main():\n        torch.save(self.state, self.path)",
    "names": (
        'if self.rank == 0:\n    name = "first"\nelse:\n    name = "other"\ntorch.save(self.state, f"runs/{name}.pt")'
    ),
    "around": "with first_rank():\n    torch.save(self.state, self.path)",
}


@pytest.mark.parametrize("how", EVERY)
def test_what_each_rank_saves(found, how):
    text, path = EVERY[how]
    assert found(0, save=text) == found(1, save=text) == {path: "train.py"}


@pytest.mark.parametrize("how", ONE)
def test_what_one_rank_saves(found, how):
    assert found(0, save=ONE[how]) == {"runs/last.pt": "train.py"}
    assert found(1, save=ONE[how]) == {}


@pytest.mark.parametrize("how", NONE)
def test_what_cannot_be_decided(found, how):
    assert found(0, save=NONE[how]) == found(1, save=NONE[how]) == {}


def test_files_of_each_rank_and_of_each_epoch(found):
    saves = "torch.save(self.state, self.own)"
    assert [found(rank, save=saves) for rank in (0, 1)] == [{f"runs/{rank}.pt": "train.py"} for rank in (0, 1)]
    assert found(1, epoch='torch.save(self.state, f"runs/{epoch}.pt")') == {"runs/{epoch}.pt": "train.py"}
    assert found(1, after='torch.save(self.state, "runs/end.pt")') == {"runs/end.pt": "train.py"}


def test_a_file_is_searched_once_for_all_its_functions(monkeypatch):
    tree = ast.parse("\n".join(f"@made\ndef f{number}():\n    pass" for number in range(40)))
    walked = []
    walk = validation.ast.walk
    monkeypatch.setattr(validation.ast, "walk", lambda node: walked.append(node) or walk(node))
    found = [validation.definition(tree, f"f{number}", 3 * number + 1) for number in range(40)]
    assert [each.name for each in found] == [f"f{number}" for number in range(40)]
    assert validation.definition(tree, "f1", 2) is None
    assert len(walked) == 1
