"""Lines of a data set of a known costly form."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from dptune.capture.injected.observe.costly_lines import costly_lines
from dptune.capture.injected.observe.places import relative


class Samples(Dataset):
    def __init__(self, rows, names, path):
        self.rows, self.names, self.path = rows, names, path
        self.first = names.index("first")
        self.known, self.unique = [*names, "last"], set(names)

    def __getitem__(self, at):
        rows = self.rows[self.rows["session"] == at]  # mask
        rows = self.rows.loc[self.rows.session == at, "item"]  # mask
        archive = zipfile.ZipFile(self.path)  # archive  # noqa: F821
        place = self.names.index(at)  # index
        taken = self.names.pop(at)  # pop
        kept = [name for name in rows if name not in self.known]  # search
        held = at in self.unique, at in rows, at in self.options
        last = self.names.pop(), self.names.pop(-1), self.options.pop("name"), self.options.pop(at, None)
        whole = rows[at], rows[self.others["session"] == at], rows[rows["session"] > at]
        return archive, place, taken, kept, held, last, whole


class Files(Samples):
    def __getitem__(self, at):
        every = np.load(self.path)[at]  # file
        table = pd.read_csv(os.path.join(self.folder, "all.csv"), usecols=["x"]).iloc[at]  # file  # noqa: F821
        whole = json.load(open(self.path))  # file  # noqa: F821, SIM115
        own = np.load(self.files[at]), np.load(f"{self.path}/{at}.npy")
        name = self.names[at]
        image = torch.load(os.path.join(self.folder, name))  # noqa: F821
        return every, table, whole, own, image


class Inherits(Samples):
    pass


class Sensors(Dataset):
    """Five samples of three values."""

    def __init__(self):
        self.x, self.y, self.scale = torch.randn(5, 3), np.ones(5), torch.ones(3)
        self.frame = np.zeros(5, dtype=[("speed", float)])
        self.mean = self.x.mean(0)

    def __len__(self):
        return 5

    def __getitem__(self, at):
        row = self.x[at] - self.x.mean(0)  # statistics
        row = row / torch.std(self.x, dim=0)  # statistics
        speed = self.frame["speed"].max()  # statistics
        label = self.y[at] / np.max(self.y)  # statistics
        return row, speed, label, self.x[at].mean(), self.x[at : at + 2].std(0), self.scale.sum(), row.max(), self.mean


class Stream(Sensors):
    """Without a length, so that it is not known what holds all samples."""

    def __len__(self):
        raise TypeError


def test_statistics_of_all_samples_computed_for_each():
    lines, first = inspect.getsourcelines(Sensors)
    file = relative(inspect.getsourcefile(Sensors) or "")
    marked = {f"{file}:{first + at}": "statistics" for at, line in enumerate(lines) if line.endswith("# statistics\n")}
    assert len(marked) == 4
    assert costly_lines(Sensors()) == marked
    assert costly_lines(Stream()) == {}


@pytest.mark.parametrize("data", [Samples([], ["first"], ""), Inherits([], ["first"], "")])
def test_each_form_with_its_line(data):
    lines, first = inspect.getsourcelines(Samples)
    file = relative(inspect.getsourcefile(Samples) or "")
    marked = {f"{file}:{first + at}": line.split("# ")[1].strip() for at, line in enumerate(lines) if "  # " in line}
    assert len(marked) == 6
    assert costly_lines(data) == costly_lines(Subset(data, [0])) == marked


def test_the_same_file_read_for_each_sample():
    lines, first = inspect.getsourcelines(Files)
    file = relative(inspect.getsourcefile(Files) or "")
    marked = {f"{file}:{first + at}": "file" for at, line in enumerate(lines) if "  # file" in line}
    assert len(marked) == 3
    found = costly_lines(Files([], ["first"], ""))
    assert {line: form for line, form in found.items() if line in marked or form == "file"} == marked
