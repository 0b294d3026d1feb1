"""The last line of every script: one hash over all parameters, to tell whether two runs trained the same numbers."""

import hashlib

import torch


def show(tensors):
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().clone().reshape(-1).view(torch.uint8).numpy().tobytes())
    print("parameters", total.hexdigest(), flush=True)
