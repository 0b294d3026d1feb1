"""Whose code a line is of: the script's own, or a package's, wherever that was installed."""

import sys

import pytest

from dptune.capture.injected.observe.call_source import lines_of
from dptune.capture.injected.observe.places import OURS, Places, library, users_code, users_line


def frame_of(file):
    """A frame of code that lies in a file of that name."""
    found = {"sys": sys}
    exec(compile("frame = sys._getframe()", file, "exec"), found)
    return found["frame"]


@pytest.mark.parametrize(
    ("file", "package"),
    [
        ("/usr/lib/python3/dist-packages/lightning/pytorch/loops/epoch.py", "lightning"),
        ("/opt/other/lib/python3.11/site-packages/lightning/epoch.py", "lightning"),
        ("C:\\envs\\a\\Lib\\site-packages\\single.py", "single"),
        ("/home/ada/site-packages-of-mine/train.py", ""),
        ("/home/ada/train.py", ""),
    ],
)
def test_a_line_is_of_a_package_wherever_it_was_installed(file, package):
    """Not only in the environment that runs, which may take packages from another one."""
    frame = frame_of(file)
    assert library(frame) == package
    assert (users_code(frame.f_code) is None) == bool(package)
    assert str(users_line(frame)).startswith(file) == (not package)


def test_torch_is_told_from_other_packages():
    import torch

    assert library(frame_of(torch.__file__)) == "torch"


LIBRARY = """
def prepare(loader, kind):
    return kind(loader.dataset, batch_size=loader.batch_size)

def construct(kind, data):
    return kind(data)

def wrap(begin):
    def wrapper(*args, **kwargs):
        begin(*args, **kwargs)
    return wrapper
"""


def test_a_loader_that_a_library_copies_has_the_line_of_the_scripts(monkeypatch):
    """Lightning and Accelerate make loaders of their own from those of the script."""
    torch = pytest.importorskip("torch", reason="loaders are torch's")
    from torch.utils.data import DataLoader

    monkeypatch.setattr(DataLoader, "__init__", DataLoader.__init__)
    places, library = Places(), {}
    exec(compile(LIBRARY, "/venv/lib/python3/site-packages/accelerate/data_loader.py", "exec"), library)
    places.watch(DataLoader)
    DataLoader.__init__ = library["wrap"](DataLoader.__init__)
    data, line = torch.zeros(8, 2), sys._getframe().f_lineno
    first = DataLoader(data, batch_size=2)
    second = DataLoader(data, batch_size=4)  # the script's own, whatever it shares with another
    copied = library["prepare"](second, DataLoader)
    other = library["construct"](DataLoader, torch.ones(8, 2))  # of a data set that no loader of the script has
    lines = [int(places.line(one).rpartition(":")[2]) - line for one in (first, second, copied, other)]
    assert lines == [1, 2, 2, 4]


def test_each_argument_of_a_call_has_its_line_by_name(monkeypatch):
    """Also those passed by position; none where a library makes the object."""
    torch = pytest.importorskip("torch", reason="loaders are torch's")
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.data import DataLoader

    for kind in (DataLoader, Optimizer, LRScheduler):
        monkeypatch.setattr(kind, "__init__", kind.__init__)
    monkeypatch.setattr(LRScheduler, "step", LRScheduler.step)
    places, library = Places(), {}
    exec(compile(LIBRARY, "/venv/lib/python3/site-packages/accelerate/data_loader.py", "exec"), library)
    for kind in (DataLoader, Optimizer, LRScheduler):
        places.watch(kind)
    places._watch_schedulers()
    first = sys._getframe().f_lineno + 1
    loader = DataLoader(
        torch.zeros(8, 2),
        4,
        num_workers=0,
    )
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer,
        T_max=7,
    )
    copied = library["prepare"](loader, DataLoader)
    alone = library["construct"](DataLoader, torch.ones(8, 2))

    def lines(thing):
        return {name: int(place.rpartition(":")[2]) - first for name, place in lines_of(places, thing).items()}

    assert lines(loader) == lines(copied) == {"dataset": 1, "batch_size": 2, "num_workers": 3}
    assert lines(optimizer) == {"params": 5, "lr": 5}
    assert lines(schedule) == {"optimizer": 7, "T_max": 8}
    assert lines(alone) == {}
    assert places.stepped_at(schedule) is None  # the constructor steps it, too
    optimizer.step()
    stepped = sys._getframe().f_lineno + 1
    schedule.step()
    assert int(places.stepped_at(schedule).rpartition(":")[2]) == stepped


OBSERVER = """
import functools

def observe(begin):
    @functools.wraps(begin)
    def constructed(*args, **kwargs):
        begin(*args, **kwargs)
    return constructed
"""


def test_a_constructor_that_another_observer_wraps_has_the_lines_of_its_arguments(monkeypatch):
    """As that of DistributedDataParallel."""
    torch = pytest.importorskip("torch", reason="loaders are torch's")
    from torch.utils.data import DataLoader

    monkeypatch.setattr(DataLoader, "__init__", DataLoader.__init__)
    places, observer = Places(), {}
    exec(compile(OBSERVER, f"{OURS}observe/unaveraged.py", "exec"), observer)
    places.watch(DataLoader)
    DataLoader.__init__ = observer["observe"](DataLoader.__init__)
    first = sys._getframe().f_lineno + 1
    loader = DataLoader(
        torch.zeros(8, 2),
        num_workers=0,
    )
    lines = {name: int(place.rpartition(":")[2]) - first for name, place in lines_of(places, loader).items()}
    assert lines == {"dataset": 1, "num_workers": 2}


def test_code_that_torch_fx_generates_is_not_the_scripts():
    torch = pytest.importorskip("torch")

    class Looks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.look = Look()

        def forward(self, x):
            return self.look(x)

    class Look(torch.nn.Module):
        where = None

        def forward(self, x):
            self.where = users_line(sys._getframe(1))
            return x

    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return isinstance(m, Look)

    model = Looks()
    traced = torch.fx.GraphModule(model, Tracer().trace(model))
    traced(torch.ones(1))
    assert "test_places.py:" in traced.look.where
    assert "eval_with_key" not in traced.look.where
