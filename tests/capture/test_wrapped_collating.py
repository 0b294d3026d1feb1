"""Functions of the script inside objects of libraries."""

import functools
import sysconfig

import pytest
import torch

from dptune.capture.injected.observe.batch_preparation import called_code, named

LIBRARY = """
class Drops:
    def __init__(self, collator, **more):
        self.collator, self.kept = collator, ["ids"]
        vars(self).update(more)

    def __call__(self, rows):
        return self.collator(rows)

def stacks(rows):
    return rows
"""
library: dict = {}
exec(compile(LIBRARY, f"{sysconfig.get_path('purelib')}/library.py", "exec"), library)
Drops, stacks = library["Drops"], library["stacks"]


def pads(rows):
    return rows


class Pads:
    def __call__(self, rows):
        return rows

    def method(self, rows):
        return rows


PADS, OBJECT = (
    "pads (tests/capture/test_wrapped_collating.py:",
    "Pads.__call__ (tests/capture/test_wrapped_collating.py:",
)
METHOD = "Pads.method (tests/capture/test_wrapped_collating.py:"


@pytest.mark.parametrize(
    ("collates", "name"),
    [
        (pads, PADS),
        (Pads(), OBJECT),
        (Drops(pads), PADS),
        (Drops(Pads()), OBJECT),
        (Drops(Pads().method), METHOD),
        (Drops(functools.partial(pads)), PADS),
        (Drops(Drops(pads)), PADS),
        (functools.partial(Drops(pads)), PADS),
        (Drops(stacks, model=torch.nn.Linear(2, 2)), "Drops.__call__"),
        (Drops(pads, model=torch.nn.Linear(2, 2)), PADS),
        (Drops(pads, key=Pads()), "Drops.__call__"),  # either may take the time
        (Drops(Drops(Drops(pads))), "Drops.__call__"),
    ],
)
def test_the_scripts_function_is_named(collates, name):
    assert (named(collates) or "").startswith(name)
    assert called_code(collates) is not None


def test_an_object_that_holds_itself():
    drops = Drops(None)
    drops.collator = drops
    assert named(drops) == "Drops.__call__"
