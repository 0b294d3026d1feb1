"""Activation checkpointing taken out of scripts, as diffs, and what is refused."""

import pytest

from dptune.advice import Change, Location
from dptune.patch.diff import patched, patches

FUNCTION = "from torch.utils.checkpoint import checkpoint\n"
WRAPPERS = (
    "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (\n"
    "    apply_activation_checkpointing,\n    checkpoint_wrapper,\n)\n"
)


def removed(tmp_path, text):
    """The script without checkpoints, or why it still has them."""
    (tmp_path / "model.py").write_text(text)
    change = Change(knob="memory.checkpointing", now=True, then=False, at=Location(file="model.py", line=1))
    left = patches([change], tmp_path).left_out
    return left[0].why if left else patched([change], tmp_path)[0]["model.py"].decode()


@pytest.mark.parametrize(
    ("head", "before", "after"),
    [
        (
            FUNCTION,
            "for b in bs:\n    x = checkpoint(b, x, mask, scale=s, use_reentrant=False)  # less memory\n",
            "for b in bs:\n    x = b(x, mask, scale=s)  # less memory\n",
        ),
        (
            FUNCTION,
            "x, y = checkpoint(lambda a: f(a), *xs, preserve_rng_state=True)\n",
            "x, y = (lambda a: f(a))(*xs)\n",
        ),
        (
            "import torch.utils.checkpoint as cp\n",
            "if cp and t:\n    y = [cp.checkpoint(self.f, x)]\nelse:\n    y = [self.f(x)]\n",
            "if cp and t:\n    y = [self.f(x)]\nelse:\n    y = [self.f(x)]\n",
        ),
        (WRAPPERS, "m.block = checkpoint_wrapper(m.block)\n", "m.block = m.block\n"),
        (
            WRAPPERS,
            "if a:\n    apply_activation_checkpointing(m, check_fn=f)\nx = 1\n",
            "if a:\n    pass\nx = 1\n",
        ),
        ("", "model.gradient_checkpointing_enable()\nx = 1\n", "x = 1\n"),
    ],
)
def test_blocks_are_called(tmp_path, head, before, after):
    assert removed(tmp_path, head + before) == head + after


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"{FUNCTION}x = checkpoint(*fs)\n", "line 2 calls checkpoint in a form that is not understood"),
        (f"{FUNCTION}x = checkpoint(f, x, **options)\n", "line 2 calls checkpoint in a form that is not understood"),
        (f"{FUNCTION}x = checkpoint(f, checkpoint(g, x))\n", "line 2 checkpoints in a checkpoint"),
        (
            f"{WRAPPERS}x = apply_activation_checkpointing(m)\n",
            "line 5 uses what apply_activation_checkpointing returns",
        ),
        ("from torch.utils.checkpoint import checkpoint_sequential as s\ns(f, 2, x)\n", "calls checkpoint_sequential"),
        ("TrainingArguments(gradient_checkpointing=True)\n", "line 1 passes gradient_checkpointing: set it to False"),
        ("from mine import checkpoint\nx = checkpoint(f, x)\n", "the file calls no function of torch that checkpoints"),
    ],
)
def test_what_is_not_understood_stays(tmp_path, text, why):
    assert why in removed(tmp_path, text)
    assert (tmp_path / "model.py").read_text() == text
