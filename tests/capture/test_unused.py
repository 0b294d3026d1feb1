"""Gradients that no optimizer uses: which pass computes them, and whose they are; and none where all are used."""

import pytest

pytestmark = pytest.mark.records

HEAD = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    body, head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)), nn.Linear(32, 1)
"""
PASS_NS = 5_000_000  # that a backward pass through `head` takes at least
SLOW = "    import time\n    head.weight.register_hook(lambda _: time.sleep(0.005))\n"
ONE_OPTIMIZER = """
    trained = [*{trained}]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    for step in range(14):
        loss = head(body(torch.randn(64, 32))).square().mean()
        loss.backward()
        {each_step}
        optimizer.step()
        nn.ModuleList((body, head)).zero_grad()
"""
GAN = """
    of_body = torch.optim.SGD(body.parameters(), lr=0.1)
    of_head = torch.optim.SGD(head.parameters(), lr=0.1)

    def update(loss, optimizer):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for step in range(14):
        update(head(body(torch.randn(64, 32)).detach()).square().mean(), of_head)
        head.requires_grad_({frozen})
        update(head(body(torch.randn(64, 32))).mean(), of_body)
        head.requires_grad_(True)
"""
WINDOWS = ("--warmup", "3", "--untraced", "5", "--light", "0", "--detailed", "0", "--continue")


def unused(profile, script):
    done = profile(HEAD + script, *WINDOWS)
    assert done.status == 0, done.err
    return done.facts()


def test_parameters_without_an_optimizer(profile):
    facts = unused(profile, SLOW + ONE_OPTIMIZER.format(trained="head.parameters()", each_step="pass"))
    (found,) = facts.unused_gradients
    assert (found.where, found.optimizer, found.reduced) == ("train.py:14", None, False)
    assert (found.tensors, found.of_tensors, found.gradient_bytes) == (4, 6, 4 * (2 * 32 * 32 + 2 * 32))
    window = facts.window("untraced")
    assert window.steps * PASS_NS <= found.spent_ns <= sum(window.durations_ns)
    least, likely, most = found.needless  # all of the body, and a part of the product of the head
    assert 0 < least < likely < most <= 1


def test_a_generators_pass_computes_gradients_of_the_discriminator(profile):
    (found,) = unused(profile, GAN.format(frozen="True")).unused_gradients
    # Both passes run from one line of `update`; only the second is meant, and it is half of the time of both.
    assert (found.where, found.optimizer) == ("train.py:13", "train.py:9")
    assert (found.tensors, found.of_tensors) == (2, 6)
    least, _, most = found.needless
    assert 0 < least < most < 1  # a part of the product of the head: the body needs the rest


@pytest.mark.thorough
@pytest.mark.parametrize(
    "script",
    [
        ONE_OPTIMIZER.format(trained="body.parameters(), *head.parameters()", each_step="pass"),
        # updated by the script itself
        pytest.param(
            ONE_OPTIMIZER.format(
                trained="head.parameters()",
                each_step="[one.data.sub_(0.1 * one.grad) for one in body.parameters()]",
            ),
            marks=pytest.mark.thorough,
        ),
        GAN.format(frozen="False"),
    ],
)
def test_gradients_that_are_used(profile, script):
    assert unused(profile, script).unused_gradients == []


SHARPNESS_AWARE = """
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    for step in range(14):
        rows = torch.randn(64, 32)
        for climbs in (True, False):
            head(body(rows)).square().mean().backward()
            if climbs:
                with torch.no_grad():
                    for group in optimizer.param_groups:
                        for one in group["params"]:
                            one.add_(one.grad, alpha=0.01)
                optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.thorough
def test_a_first_pass_that_moves_the_weights_is_used(profile):
    assert unused(profile, SHARPNESS_AWARE).unused_gradients == []


TASKS = """
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    for step in range(14):
        shared = body(torch.randn(64, 32))
        for loss in (head(shared).mean(), shared.square().mean(), head(shared).square().mean()):
            loss.backward(retain_graph=True)
            {each_pass}
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.thorough
def test_several_passes_through_one_graph(profile):
    facts = unused(profile, SLOW + TASKS.format(each_pass="pass"))
    (found,) = facts.repeated_passes
    assert (found.where, found.passes) == ("train.py:14", 3)
    window = facts.window("untraced")
    assert window.steps * PASS_NS <= found.again_ns < sum(window.backward_ns)
    assert 0 < found.shared_part < 1  # the body is shared, the losses are not


@pytest.mark.thorough
def test_the_gradients_of_each_loss_may_be_needed(profile):
    taken = TASKS.format(each_pass="body[0].weight.grad = body[0].bias.grad = None")
    assert unused(profile, taken).repeated_passes == []


class OneOptimizer:
    """The places of a script with one optimizer."""

    sharded, engine = (), None

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def alive(self, kind):
        return [self.optimizer]


def test_an_optimizer_that_never_steps_leaves_a_bounded_number_of_passes():
    import torch

    from dptune.capture.injected.observe.left_out import AddedParameters
    from dptune.capture.injected.observe.unused_gradients import Unused

    weight = torch.nn.Parameter(torch.ones(2))
    places = OneOptimizer(torch.optim.SGD([weight], lr=0.1))
    unused = Unused(places, AddedParameters(places))
    for _ in range(200):
        loss = weight.sum()
        unused.before_pass(loss)
        loss.backward()
        unused.after_pass()
    assert [len(updates.pending) for updates in unused._updates.values()] == [64]
