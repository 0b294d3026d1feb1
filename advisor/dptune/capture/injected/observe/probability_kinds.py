"""Functions of the autograd graph that return probabilities, that compute layers, and that change the layout only."""

from __future__ import annotations

APPLIED = {"SoftmaxBackward0": "softmax", "SigmoidBackward0": "sigmoid"}
LAYERS = ("AddmmBackward0", "MmBackward0", "BmmBackward0", "LinearBackward0", "ConvolutionBackward0")
SAME = ("CloneBackward0", "ToCopyBackward0", "AliasBackward0", "SliceBackward0", "_DDPSinkBackward")
RESHAPED = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "IndexBackward0", "SelectBackward0")
_RANKED = ("SqueezeBackward0", "SqueezeBackward1", "UnsqueezeBackward0")


def is_layout(name: str) -> bool:
    """Whether a function of the autograd graph changes no value, only where it is."""
    return name in (*SAME, *RESHAPED, *_RANKED, "TransposeBackward0", "TBackward0", "PermuteBackward0")
