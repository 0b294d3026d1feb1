"""Calls of chosen modules are seen, and nothing is wrapped without any."""

from torch import nn

from dptune.capture.injected.observe.module_calls import ModuleCalls


def test_without_a_chosen_module_torch_is_left_alone():
    call = nn.Module.__call__
    calls = ModuleCalls()
    calls.begin()
    assert calls.watching
    assert nn.Module.__call__ is call
    module, seen = nn.Identity(), []
    calls.after(module, lambda this, output: seen.append((this, output)))
    assert nn.Module.__call__ is not call
    module(3)
    assert seen == [(module, 3)]
    calls.end()
    assert not calls.watching
    assert nn.Module.__call__ is call
