"""The lines that pad, read from the source of classes and functions of this file."""

import functools
import inspect

import pytest

pytest.importorskip("torch", reason="the module that is tested imports it")
import torch
from torch.utils.data import DataLoader, Dataset

from dptune.capture.injected.observe import padding_lines as padding


class Collator:
    def __init__(self, longest):
        self.longest = longest

    def __call__(self, rows):
        width = self.longest
        ids = torch.full((len(rows), width), 0)
        for at, row in enumerate(rows):
            ids[at, : len(row)] = row
        return ids


def to_longest(rows, value):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)


class Padded(Dataset):
    """Pads each sample by itself."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        ids = [index] * 3
        return torch.tensor(ids + [0] * (16 - len(ids)))


class Plain(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.zeros((2, 2)) + index


def words(texts, tokenizer):
    return tokenizer(
        texts,
        padding="max_length",
        max_length=512,
    )


def text_of(place):
    """The source of a place in this file."""
    file, _, line = place.rpartition(":")
    assert file.endswith("test_padding_lines.py")
    return inspect.getsource(inspect.getmodule(text_of)).splitlines()[int(line) - 1].strip()


def found(dataset, collate=None):
    return [text_of(place) for place in padding.padding_lines(DataLoader(dataset, 2, collate_fn=collate))]


def test_the_width_of_a_collator_comes_before_what_it_fills():
    assert found(Plain(), Collator(16)) == ["width = self.longest", "ids = torch.full((len(rows), width), 0)"]


def test_a_function_with_arguments_and_a_sample_that_is_padded_by_itself(monkeypatch):
    line = "return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)"
    assert found(Plain(), functools.partial(to_longest, value=0)) == [line]
    assert found(Padded()) == ["return torch.tensor(ids + [0] * (16 - len(ids)))"]


def test_a_call_of_a_tokenizer_before_the_loader(monkeypatch):
    """Where what reads and collates does not pad: the line of the limit, in the files of the script."""
    monkeypatch.setattr(padding, "script_files", lambda: {__file__: {}})
    assert found(Plain()) == ["max_length=512,"]
    monkeypatch.setattr(padding, "script_files", dict)
    assert found(Plain()) == []  # a fixed shape is no padding
