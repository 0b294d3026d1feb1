"""The blocks of a model: the largest list of modules of one class, also between a first and a last layer."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptune.capture.injected.observe.tensors import _blocks  # noqa: E402


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)


class Layers(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)


SIZE = 2 * 8 * 8 * 4  # bytes of a block of width 8 in fp32


@pytest.mark.parametrize(
    ("model", "block", "sizes"),
    [
        (nn.Sequential(*(Block(8) for _ in range(3))), "Block", [SIZE] * 3),
        (nn.Sequential(nn.Linear(4, 8), *(Block(8) for _ in range(3)), nn.Linear(8, 900)), "Block", [SIZE] * 3),
        (Layers(Block(8), Block(8)), "Block", [SIZE] * 2),
        (Layers(nn.Embedding(9, 8), Block(8), Block(8)), "Block", [SIZE] * 2),
        # single layers are blocks where the list has nothing else
        (nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)), "Linear", [SIZE // 2] * 2),
        (nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), "", []),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.Linear(8, 8), nn.Linear(8, 8)), "", []),
        (nn.Sequential(Block(8)), "", []),
        # of two lists the larger one
        (nn.Sequential(Layers(Block(8), Block(8)), nn.Sequential(Block(16), Block(16))), "Block", [4 * SIZE] * 2),
    ],
)
def test_blocks_of_a_model(model, block, sizes):
    assert _blocks(model.modules()) == (block, sizes)
