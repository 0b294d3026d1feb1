"""The line that unfreezes parameters one by one is found in the source of the script where there is only one."""

from __future__ import annotations

import sys
import types

import pytest

from dptune.capture.injected.observe import script_files, unfreezing

ATTRIBUTE = """
def freeze(model):
    for one in model.parameters():
        one.requires_grad = False

class Trainer:
    def unfreeze(self):
        for one in self.model.parameters():
            one.requires_grad = True
"""
FLAG = """
def switch(model, flag):
    for one in model.parameters():
        one.requires_grad_(flag)
    model.head.requires_grad_(False)
"""
SEVERAL = ATTRIBUTE + "x.requires_grad = True\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (ATTRIBUTE, "Trainer.unfreeze ({}:9)"),
        (FLAG, "switch ({}:4)"),
        ("model.requires_grad_()\n", "{}:1"),
        (SEVERAL, None),
        ("model.requires_grad_(requires_grad=False)\n", None),
    ],
)
def test_the_line(tmp_path, monkeypatch, text, found):
    file = tmp_path / "helpers_of_a_script.py"
    file.write_text(text)
    module = types.ModuleType("helpers_of_a_script")
    module.__file__ = str(file)
    monkeypatch.setattr(script_files, "is_the_users", lambda name: name == str(file))
    monkeypatch.setattr(unfreezing, "users_place", lambda name, line: f"{name}:{line}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert unfreezing.unfreezing_line() == (found and found.format(file))
