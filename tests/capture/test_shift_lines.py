"""The lines that shift labels, read from the source of classes and functions of this file."""

import inspect
import linecache

import pytest

pytest.importorskip("torch", reason="the module that is tested imports it")
import torch
from torch.utils.data import DataLoader, Dataset

from dptune.capture.injected.observe import shift_lines as source_of_losses
from dptune.capture.injected.observe.shift_lines import loss_shift_lines, shift_lines


class Blocks(Dataset):
    def __init__(self, block=8):
        self.stream, self.block = torch.arange(100), block

    def __len__(self):
        return 4

    def __getitem__(self, index):
        at = index * self.block
        inputs = self.stream[at : at + self.block]
        labels = self.stream[at + 1 : at + self.block + 1]
        return inputs, labels


class Whole(Blocks):
    def __getitem__(self, index):
        return self.stream[index * self.block : (index + 1) * self.block], self.stream[1]


def shifting(rows):
    ids = torch.stack([ids for ids, _ in rows])
    return ids[:, :-1], ids[:, 1:]


def rolling(rows):
    ids = torch.stack([ids for ids, _ in rows])
    return ids, torch.roll(ids, -1, 1)


def text_of(place):
    """The source of a place in this file."""
    return inspect.getsource(inspect.getmodule(text_of)).splitlines()[int(place.rpartition(":")[2]) - 1].strip()


@pytest.mark.parametrize(
    ("dataset", "collate", "expected"),
    [
        (Blocks(), None, ["labels = self.stream[at + 1 : at + self.block + 1]"]),
        (Whole(), shifting, ["return ids[:, :-1], ids[:, 1:]"]),
        (Whole(), rolling, ["return ids, torch.roll(ids, -1, 1)"]),
        (Whole(), None, []),  # neither one element nor a block from an offset on
    ],
)
def test_lines_that_slice_from_the_second_position(dataset, collate, expected):
    assert [text_of(place) for place in shift_lines(DataLoader(dataset, 2, collate_fn=collate))] == expected


MODEL = """\
import torch.nn.functional as F

class Model:
    def cut(self, moves):
        return moves[:, 1:]

    def forward(self, moves, labels=None):
        logits = self.head(moves)
        if labels is None:
            return logits
        shifted = labels[..., 1:]
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), shifted.flatten())
"""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (MODEL, ["model.py:11"]),
        (MODEL.replace("[..., 1:]", ""), []),
        (MODEL.replace("cross_entropy", "mse_loss"), []),
    ],
)
def test_lines_that_slice_in_functions_that_compute_a_cross_entropy(tmp_path, monkeypatch, source, expected):
    file = tmp_path / "model.py"
    file.write_text(source)
    monkeypatch.setattr(source_of_losses, "script_files", lambda: {str(file): {}})  # not those of other tests
    linecache.checkcache()
    found = [place.rpartition("/")[2] for place in loss_shift_lines() if "model.py" in place]
    assert found == expected
