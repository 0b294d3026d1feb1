"""Optimizer steps without gradients, and with those of earlier steps."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.checkpoint import checkpoint

from dptune.capture.injected.observe.optimizer_gradients import OptimizerGradients

WINDOWS = ("--warmup", "20", "--untraced", "3", "--light", "0", "--detailed", "0", "--continue")
SCRIPT = """
    import torch
    from torch import nn
    REPLACED
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    model = nn.Linear(8, 8)
    stale = torch.optim.AdamW(model.parameters(), lr=1e-3)
    replace(model)
    head = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-3)
    for step in range(40):
        head(model(torch.randn(4, 8))).square().mean().backward()
        optimizer.step()
        stale.step()
"""


@pytest.mark.records
@pytest.mark.parametrize(
    ("replaced", "sharded"),
    [
        pytest.param(
            "replace = lambda model: [model.register_parameter(name, nn.Parameter(held.detach().clone())) "
            "for name, held in [*model.named_parameters()]]",
            False,
            id="replaced",
        ),
        pytest.param(
            "from torch.distributed.fsdp import fully_shard as replace", True, id="sharded", marks=pytest.mark.thorough
        ),
    ],
)
def test_a_recording_names_both(profile, replaced, sharded):
    """An optimizer that new parameters have left behind, and one whose gradients nothing clears.

    More steps warm up than are watched: watching ends in one of torch's hooks, which must all still run.
    """
    done = profile(SCRIPT.replace("REPLACED", replaced), *WINDOWS)
    assert done.status == 0, done.err
    none, kept = sorted(done.facts().optimizer_gradients, key=lambda facts: facts.optimizer)
    assert (kept.optimizer, kept.where, kept.step_where) == ("SGD", "train.py:10", "train.py:13")
    assert (kept.keeps, kept.kept, kept.has_none, kept.backward_where) == (True, kept.steps - 1, False, "train.py:12")
    assert (none.optimizer, none.where, none.step_where, none.tensors) == ("AdamW", "train.py:7", "train.py:14", 2)
    assert (none.has_none, none.keeps, none.elsewhere, none.sharded) == (True, False, 2, sharded)


class Script:
    """A model, an optimizer and the observer, which is told of passes as the meters do."""

    engine = None
    sharded = ()

    def __init__(self, *optimizers):
        self.optimizers = optimizers
        self.observer = OptimizerGradients(self)

    def alive(self, kind):
        return list(self.optimizers)

    def line(self, optimizer):
        return "train.py:3"

    def backward(self, loss):
        self.observer.before_pass(loss)
        loss.backward()
        self.observer.after_pass()

    def seen(self, step, steps=5):
        self.observer.begin()
        for number in range(steps):
            step(self, number)
        self.observer.end()
        return self.observer.facts()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def loss(model):
    return model(torch.randn(4, 8)).square().mean()


def by_hand(model, _):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()


def at_once(model, _):
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if gradients:
        torch._foreach_zero_(gradients)


CLEARS = {
    "to None": lambda model, optimizer: optimizer.zero_grad(),
    "to zero": lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
    "by the module": lambda model, optimizer: model.zero_grad(set_to_none=False),
    "by hand": by_hand,
    "all at once": at_once,
}


@pytest.mark.parametrize("clear", CLEARS.values(), ids=CLEARS)
@pytest.mark.parametrize("after", [False, True])
def test_cleared_gradients_are_no_finding(clear, after):
    model = network()
    optimizer = torch.optim.Adam(model.parameters())

    def step(script, number):
        if not after:
            clear(model, optimizer)
        script.backward(loss(model))
        script.backward(loss(model))
        optimizer.step()
        if after:
            clear(model, optimizer)

    (found,) = Script(optimizer).seen(step)
    assert (found.steps, found.without, found.kept) == (5, 0, 0)


@pytest.mark.parametrize(("every", "kept"), [(100, 5), (2, 3), (3, 4)])
def test_gradients_that_steps_use_again_are_counted(every, kept):
    """Of steps 0 to 5 all but those right after a clearing: 0; 0, 2 and 4; or 0 and 3."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(script, number):
        if number % every == 0:
            optimizer.zero_grad()
        script.backward(loss(model))
        optimizer.step()

    (found,) = Script(optimizer).seen(step, steps=6)
    assert (found.steps, found.kept, found.keeps) == (6, kept, True)


@pytest.mark.parametrize("to_none", [False, True])
def test_the_pass_of_another_loss_does_not_count(to_none):
    """As in a GAN: the generator's pass adds to the critic's gradients, which are cleared before the critic's own."""
    maker, critic = network(), network()
    making, judging = (torch.optim.Adam(model.parameters()) for model in (maker, critic))

    def step(script, number):
        judging.zero_grad(set_to_none=to_none)
        script.backward(critic(maker(torch.randn(4, 8)).detach()).mean())
        judging.step()
        making.zero_grad(set_to_none=to_none)
        script.backward(-critic(maker(torch.randn(4, 8))).mean())
        making.step()

    found = Script(making, judging).seen(step)
    assert [(facts.steps, facts.without, facts.kept) for facts in found] == [(5, 0, 0)] * 2


def test_gradients_that_the_script_scales_or_replaces_are_its_own():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def scaled(script, number):
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.9)
        script.backward(loss(model))
        optimizer.step()

    (found,) = Script(optimizer).seen(scaled)
    assert found.kept == 0

    def replaced(script, number):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        script.backward(loss(model))
        optimizer.step()

    (found,) = Script(optimizer).seen(replaced)
    assert found.kept == 0


def test_an_optimizer_of_replaced_parameters_has_no_gradients():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[2] = nn.Linear(8, 8)  # of the first layer the optimizer has the gradients
    partly = torch.optim.Adam(nn.Linear(8, 8).parameters())

    def step(script, number):
        model.zero_grad()
        script.backward(loss(model))
        optimizer.step()
        partly.step()

    whole, none = Script(optimizer, partly).seen(step)
    assert (whole.without, whole.has_none) == (0, False)
    assert (none.steps, none.without, none.has_none, none.tensors, none.sharded) == (5, 5, True, 2, False)
    assert none.elsewhere >= 2  # the new layer's


def test_steps_with_a_closure_are_not_judged():
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def step(script, number):
        def closure():
            optimizer.zero_grad()
            value = loss(model)
            script.backward(value)
            return value

        script.backward(loss(network()))
        optimizer.step(closure)

    assert Script(optimizer).seen(step) == []


@pytest.mark.parametrize(("clears", "kept"), [(True, 0), (False, 4)])
def test_a_closure_that_runs_no_pass_is_none(clears, kept):
    """Lightning hands one to the steps of manual optimization."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(script, number):
        if clears:
            optimizer.zero_grad()
        script.backward(loss(model))
        optimizer.step(closure=lambda: None)

    (found,) = Script(optimizer).seen(step)
    assert (found.steps, found.without, found.kept) == (5, 0, kept)


def halved_by_data(model):
    """Through `.data`, which counts no version."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(script, number):
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.data.mul_(0.5)
        script.backward(loss(model))
        optimizer.step()

    return step, optimizer


def replaced_after_the_pass(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(script, number):
        value = loss(model)
        gradients = torch.autograd.grad(value, list(model.parameters()), retain_graph=True)
        script.backward(value)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()

    return step, optimizer


def copied_by_hooks(model):
    """As for 32-bit copies of 16-bit parameters: a hook overwrites their gradients in each pass."""
    copies = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(copies, lr=0.1)
    for master, parameter in zip(copies, model.parameters(), strict=True):
        master.grad = torch.zeros_like(master)

        def hook(parameter, master=master):
            master.grad.copy_(parameter.grad)
            parameter.grad = None

        parameter.register_post_accumulate_grad_hook(hook)

    def step(script, number):
        script.backward(loss(model))
        optimizer.step()

    return step, optimizer


class Accumulates(torch.optim.SGD):
    """Steps and clears in each fourth call only."""

    calls = 0

    def step(self, closure=None):
        self.calls += 1
        if self.calls % 4 == 0:
            super().step()

    def zero_grad(self, set_to_none=True):
        if self.calls % 4 == 0:
            super().zero_grad(set_to_none)


def accumulated_by_the_optimizer(model):
    optimizer = Accumulates(model.parameters(), lr=0.1)

    def step(script, number):
        script.backward(loss(model))
        optimizer.step()
        optimizer.zero_grad()

    return step, optimizer


def checkpointed(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(script, number):
        optimizer.zero_grad(set_to_none=False)
        rows = checkpoint(model[0], torch.randn(4, 8, requires_grad=True), use_reentrant=True)
        script.backward(model[2](rows).square().mean())
        optimizer.step()

    return step, optimizer


def of_sparse_gradients(model):
    table = nn.Embedding(1000, 8, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())

    def step(script, number):
        optimizer.zero_grad(set_to_none=bool(number % 2))
        script.backward(model(table(torch.randint(0, 10, (4,)))).square().mean())
        optimizer.step()

    return step, optimizer


@pytest.mark.parametrize(
    "way",
    [
        *(halved_by_data, replaced_after_the_pass, copied_by_hooks, accumulated_by_the_optimizer, checkpointed),
        of_sparse_gradients,
    ],
)
def test_healthy_ways_to_keep_a_gradient_tensor(way):
    model = network()
    step, optimizer = way(model)
    (found,) = Script(optimizer).seen(step, steps=12)
    assert (found.steps, found.without, found.kept) == (3 if way is accumulated_by_the_optimizer else 12, 0, 0)


def test_a_wrapper_that_accumulates_and_never_clears():
    """Of 16 calls 4 are steps, and all but the first use old gradients again."""
    model = network()
    optimizer = Accumulates(model.parameters(), lr=0.1)

    def step(script, number):
        script.backward(loss(model))
        optimizer.step()

    (found,) = Script(optimizer).seen(step, steps=20)
    assert (found.steps, found.kept) == (4, 3)


def test_kept_gradients_below_a_reentrant_checkpoint():
    """Its pass runs inside the outer one, which has changed the gradients of the head by then."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(script, number):
        inner = torch.autograd.backward
        with pytest.MonkeyPatch.context() as patch:
            rows = checkpoint(model[0], torch.randn(4, 8, requires_grad=True), use_reentrant=True)
            value = model[2](rows).square().mean()
            script.observer.before_pass(value)
            patch.setattr(torch.autograd, "backward", lambda *given, **named: around(script, inner, given, named))
            inner(value)
            script.observer.after_pass()
        optimizer.step()

    def around(script, inner, given, named):
        script.observer.before_pass(given[0])
        inner(*given, **named)
        script.observer.after_pass()

    (found,) = Script(optimizer).seen(step)
    assert (found.steps, found.kept) == (5, 4)


@pytest.mark.parametrize("clears", [True, False])
def test_optimizers_that_hooks_step_in_the_backward_pass(clears):
    model = network()
    optimizers = {parameter: torch.optim.Adam([parameter]) for parameter in model.parameters()}

    def hook(parameter):
        optimizers[parameter].step()
        if clears:
            optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    for_scheduler = torch.optim.AdamW(model.parameters())  # has nothing to step with, and its weights change

    def step(script, number):
        script.backward(loss(model))
        for_scheduler.step()

    found = Script(*optimizers.values(), for_scheduler).seen(step, steps=6)
    of_hooks = [facts for facts in found if facts.optimizer == "Adam"]
    assert [(facts.steps, facts.kept) for facts in of_hooks] == [(5, 0 if clears else 4)] * 4
    assert not any(facts.has_none for facts in found)


class FromHooks(torch.optim.Optimizer):
    """Takes gradients from its parameters as soon as they are there."""

    def __init__(self, parameters):
        super().__init__(list(parameters), {})
        self.taken = {}
        for parameter in self.param_groups[0]["params"]:
            parameter.register_post_accumulate_grad_hook(self.take)

    def take(self, parameter):
        self.taken[parameter], parameter.grad = parameter.grad, None

    @torch.no_grad()
    def step(self, closure=None):
        for parameter, gradient in self.taken.items():
            parameter.sub_(gradient)


def test_an_optimizer_that_takes_its_gradients_from_hooks_is_no_finding():
    model = network()
    optimizer = FromHooks(model.parameters())

    def step(script, number):
        script.backward(loss(model))
        optimizer.step()

    (found,) = Script(optimizer).seen(step)
    assert (found.without, found.idle, found.has_none) == (5, True, False)


def test_frozen_parameters_are_no_finding_while_others_train():
    """Without others that train it is one: adapters that no optimizer holds."""
    body, head = network(), nn.Linear(8, 2)
    body.requires_grad_(False)
    of_body, of_head = (torch.optim.Adam(model.parameters()) for model in (body, head))

    def step(script, number):
        of_head.zero_grad()
        script.backward(head(body(torch.randn(4, 8))).square().mean())
        of_body.step()
        if script.optimizers == (of_body, of_head):
            of_head.step()

    idle, _ = Script(of_body, of_head).seen(step)
    assert (idle.without, idle.idle, idle.has_none) == (5, True, False)
    (nothing,) = Script(of_body).seen(step)
    assert (nothing.idle, nothing.has_none, nothing.elsewhere >= 2, nothing.alike) == (False, True, True, False)


@pytest.mark.parametrize("on_meta", [False, True])
@pytest.mark.parametrize("others", [False, True])
def test_an_optimizer_made_before_the_parameters_were_replaced(on_meta, others):
    model, head = network(), nn.Linear(8, 3)
    if on_meta:
        model = model.to("meta")
    stale, of_head = torch.optim.Adam(model.parameters()), torch.optim.SGD(head.parameters(), lr=0.1)
    model = copy.deepcopy(model).to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.1)

    def step(script, number):
        of_head.zero_grad()
        script.backward(head(model(torch.randn(4, 8))).square().mean())
        stale.step()
        if others:
            of_head.step()

    none, *_ = Script(stale, of_head).seen(step)
    assert (none.has_none, none.alike, none.others_train, none.cleared) == (True, True, others, False)
    assert none.elsewhere >= 4


def test_parameters_that_something_else_trains_or_nothing_uses_are_not_elsewhere():
    by_hand, left_over, later = network(), network(), network()
    loss(left_over).backward()
    optimizer = torch.optim.Adam(later.parameters())

    def step(script, number):
        by_hand.zero_grad()
        script.backward(loss(by_hand))
        with torch.no_grad():
            for parameter in by_hand.parameters():
                parameter.sub_(0.1 * parameter.grad)
        optimizer.step()

    (found,) = Script(optimizer).seen(step)
    assert (found.without, found.elsewhere, found.alike, found.others_train) == (5, 0, False, True)


def test_gradients_that_are_cleared_before_each_step():
    model = network()
    optimizer = torch.optim.Adam(model.parameters())

    def step(script, number):
        script.backward(loss(model))
        optimizer.zero_grad()
        optimizer.step()

    (found,) = Script(optimizer).seen(step)
    assert (found.has_none, found.cleared, found.others_train) == (True, True, False)


def test_watching_ends_after_sixteen_steps_and_other_hooks_still_run():
    """torch goes through a dictionary of hooks: what ends in one of them must not change it."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ran = []

    def step(script, number):
        if not number:
            script.handle = register_optimizer_step_post_hook(lambda *_: ran.append(number))
        script.backward(loss(model))
        optimizer.step()

    script = Script(optimizer)
    (found,) = script.seen(step, steps=20)
    script.handle.remove()
    assert (found.steps, found.kept, len(ran)) == (16, 15, 20)


def test_two_steps_are_too_few():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(script, number):
        script.backward(loss(model))
        optimizer.step()

    (found,) = Script(optimizer).seen(step, steps=2)
    assert (found.kept, found.keeps) == (1, False)


def adversarial(*, clears, shared=False):
    """The facts of the critic, whose gradients a generator's loss leaves, or of an encoder that two losses share."""
    first, second = network(), network()
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (first, second)]
    trained, left = optimizers[::-1] if shared else optimizers  # the second network runs after the first

    def step(script, number):
        optimizers[0].zero_grad()
        optimizers[1].zero_grad()
        script.backward(second(first(torch.randn(4, 8))).square().mean())
        trained.step()
        if clears:
            left.zero_grad()
        script.backward(loss(first if shared else second))
        left.step()

    return Script(*optimizers).seen(step)


def test_gradients_that_a_generators_loss_leaves_in_the_critic():
    of_generator, of_critic = adversarial(clears=False)
    assert (of_critic.steps, of_critic.of_others, of_critic.mixes, of_critic.keeps) == (5, 4, True, False)
    assert of_critic.others_where == of_generator.step_where
    assert (of_generator.of_others, of_generator.mixes) == (0, False)


@pytest.mark.parametrize("how", [{"clears": True}, {"clears": False, "shared": True}])
def test_gradients_of_another_loss_that_are_cleared_or_meant_for_both(how):
    assert [facts.of_others for facts in adversarial(**how)] == [0, 0]
