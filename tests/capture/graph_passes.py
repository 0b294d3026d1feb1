"""Observers of the graphs of backward passes, in the process of a test."""

from __future__ import annotations

import torch


class Places:
    """Of a script that compiles nothing."""

    compiled = ()


def facts_of(observer, loss_of, passes=3):
    """What an observer finds in passes of this loss."""
    torch.manual_seed(0)
    observer.begin()
    for _ in range(passes):
        loss = loss_of()
        observer.before_pass(loss)
        loss.backward()
        observer.after_pass()
    observer.end()
    assert not torch.is_anomaly_enabled()
    return observer.facts()
