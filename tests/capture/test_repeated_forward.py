"""Modules that compute a forward pass again within a step: small models are trained in this process."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dptune.capture.injected.observe.places import Places
from dptune.capture.injected.observe.repeated_forward import RepeatedForward

WIDTH = 40
ROWS = 64  # of a batch, so that a batch has more elements than tensors that may agree by chance


def layers(*more):
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), *more, nn.Linear(WIDTH, WIDTH))


@pytest.fixture
def watched():
    """What is found in steps of a model: `losses(model, batch)` yields losses, each with its backward pass."""

    def steps(model, losses, count=4, batch=None):
        torch.manual_seed(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        watch, done = RepeatedForward(Places(), lambda: done[0], lambda *_: None), [0]
        watch.begin()
        try:
            for _ in range(count):
                rows = torch.randn(ROWS, WIDTH) if batch is None else batch
                for loss in losses(model, rows):
                    loss.backward()
                    done[0] += 1
                optimizer.step()
                watch.stepped()
                optimizer.zero_grad()
                watch.ticked()
        finally:
            watch.end()
        return watch.facts()

    call = nn.Module.__call__
    yield steps
    assert nn.Module.__call__ is call  # nothing is left behind


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = layers()
        self.decoder = layers()

    def forward(self, rows):
        return self.decoder(self.encoder(rows))


def test_an_encoder_that_is_called_again_for_its_codes(watched):
    def losses(model, rows):
        outputs = model(rows)
        yield (outputs - rows).square().mean() + model.encoder(rows).square().mean()

    (found,) = watched(Autoencoder(), losses)
    assert (found.module, found.calls, found.inputs) == ("encoder", 2, 1)
    assert (found.prefixes, found.without_graph) == (False, False)
    assert [line.rpartition("/")[2].partition(":")[0] for line in found.lines] == ["test_repeated_forward.py"] * 2
    assert found.lines[0] != found.lines[1]
    assert 0 < found.step_share < 1
    assert found.graph_ns == found.again_ns  # the backward pass goes through both
    assert len(found.step_ns) == 3  # the first step shows which modules to look at


class Redirected(Autoencoder):
    """Its call runs the training step, which calls it again, as Lightning's modules do under DDP."""

    def __init__(self):
        super().__init__()
        self.training_step_runs = False

    def forward(self, rows):
        if self.training_step_runs:
            return super().forward(rows)
        self.training_step_runs = True
        loss = (self(rows) - rows).square().mean() + self.encoder(rows).square().mean()
        self.training_step_runs = False
        return loss


@pytest.mark.long
def test_a_training_step_inside_the_call_of_its_module(watched):
    (found,) = watched(Redirected(), lambda model, rows: [model(rows)])
    assert (found.module, found.calls, found.inputs) == ("encoder", 2, 1)


class Ranker(nn.Module):
    """Scores of items for users."""

    def __init__(self):
        super().__init__()
        self.users = layers()
        self.items = layers()

    def forward(self, users, items):
        return (self.users(users) * self.items(items)).sum(1)


@pytest.mark.long
def test_a_tower_that_computes_the_same_for_two_inputs_of_the_other(watched):
    def losses(model, rows):
        yield (model(rows, rows.roll(2, 0)) - model(rows, rows.roll(1, 0))).sigmoid().mean()

    (found,) = watched(Ranker(), losses)
    assert (found.module, found.calls, found.inputs) == ("users", 2, 1)


def test_a_tower_whose_graph_is_gone_with_each_backward_pass(watched):
    def losses(model, rows):
        yield model(rows, rows.roll(1, 0)).mean()
        yield model(rows, rows.roll(2, 0)).mean()

    assert watched(Ranker(), losses) == []


def test_a_pass_without_gradients_beside_that_with_them(watched):
    def losses(model, rows):
        with torch.no_grad():
            weights = model(rows).softmax(1)
        yield (weights * model(rows)).mean()

    (found,) = watched(layers(), losses)
    assert (found.module, found.calls, found.without_graph) == ("Sequential", 2, True)
    assert found.graph_ns == [0, 0, 0]
    kept, spare = (int(line.rpartition(":")[2]) for line in found.lines)
    assert spare == kept - 1  # the call to keep is the one with gradients, in the line below


@pytest.mark.long
def test_inputs_that_are_repeated_count_once_each(watched):
    def losses(model, rows):
        yield sum(model(part).mean() for _ in range(3) for part in rows.chunk(2))

    (found,) = watched(layers(), losses, batch=torch.randn(4 * ROWS, WIDTH))
    assert (found.calls, found.inputs) == (6, 2)


class Writer(nn.Module):
    """A causal decoder: a running mean over earlier positions."""

    def __init__(self):
        super().__init__()
        self.decoder = layers()

    def forward(self, rows):
        hidden = self.decoder(rows)
        return hidden.cumsum(1) / torch.arange(1, rows.shape[1] + 1)[:, None]


@pytest.mark.long
def test_a_loop_over_the_prefixes_of_a_target(watched):
    def losses(model, rows):
        target = rows.reshape(4, -1, WIDTH)
        outputs = [model(target[:, :end])[:, -1] for end in range(1, target.shape[1])]
        yield (torch.stack(outputs, 1) - target[:, 1:]).square().mean()

    (found,) = watched(Writer(), losses)
    assert (found.module, found.prefixes, found.calls, found.inputs) == ("Writer", True, ROWS // 4 - 1, 1)
    assert len(found.lines) == 1
    assert all(0 < again < step for again, step in zip(found.again_ns, found.step_ns, strict=True))


@pytest.mark.long
def test_what_each_prefix_computes_of_its_memory_is_part_of_the_loop(watched):
    class Attending(Writer):
        def __init__(self):
            super().__init__()
            self.keys = nn.Linear(WIDTH, WIDTH)

        def forward(self, rows, memory):
            return super().forward(rows) + self.keys(memory).mean(1, keepdim=True)

    def losses(model, rows):
        target = rows.reshape(4, -1, WIDTH)
        yield sum(model(target[:, :end], target).mean() for end in range(1, target.shape[1]))

    (found,) = watched(Attending(), losses)
    assert (found.module, found.prefixes) == ("Attending", True)


def test_generation_grows_by_what_it_computes(watched):
    def losses(model, rows):
        written = rows[:, None]
        for _ in range(6):
            written = torch.cat([written, model(written)[:, -1:]], 1)
        yield written.square().mean()

    assert watched(Writer(), losses) == []


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = layers()
        self.discriminator = layers()


def test_a_discriminator_sees_fakes_with_and_without_their_gradient(watched):
    def losses(model, rows):
        fake = model.generator(rows)
        yield model.discriminator(fake.detach()).mean()
        yield -model.discriminator(fake).mean()

    assert watched(Gan(), losses) == []


class Embedded(nn.Module):
    """Two levels below the module whose dropout differs between calls."""

    def __init__(self):
        super().__init__()
        self.embeddings = nn.Sequential(layers())
        self.rest = layers(nn.Dropout(0.3))

    def forward(self, rows):
        return self.rest(self.embeddings(rows))


@pytest.mark.parametrize("make", [lambda: layers(nn.Dropout(0.3)), Embedded])
def test_dropout_makes_two_views_of_one_batch(watched, make):
    def losses(model, rows):
        yield -nn.functional.cosine_similarity(model(rows), model(rows)).mean()

    assert watched(make(), losses) == []


def test_a_recurrent_cell_computes_on_its_state(watched):
    def losses(model, rows):
        state = torch.zeros(ROWS, WIDTH)
        for _ in range(5):
            state = model(rows, state)
        yield state.square().mean()

    assert watched(nn.RNNCell(WIDTH, WIDTH), losses) == []


@pytest.mark.long
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_parts_run_again_in_the_backward_pass(watched, reentrant):
    def losses(model, rows):
        rows = rows.requires_grad_(True)
        yield checkpoint(model, rows, use_reentrant=reentrant).square().mean()

    assert watched(layers(), losses) == []


def test_one_batch_that_is_accumulated(watched):
    """As a benchmark does that trains on one fixed batch."""

    def losses(model, rows):
        for _ in range(4):
            yield model(rows).square().mean()

    assert watched(layers(), losses, batch=torch.randn(ROWS, WIDTH)) == []


def test_one_batch_in_several_steps(watched):
    def losses(model, rows):
        yield model(rows).square().mean()

    assert watched(layers(), losses, batch=torch.randn(ROWS, WIDTH)) == []


def test_evaluation_beside_training(watched):
    def losses(model, rows):
        yield model(rows).square().mean()
        with torch.no_grad():
            model.eval()(rows.roll(1, 1))
        model.train()

    assert watched(layers(nn.Dropout(0.3)), losses) == []


def test_small_inputs_may_agree_by_chance(watched):
    """As observations of a simple environment."""

    def losses(model, rows):
        yield sum(model(torch.ones(1, WIDTH)).mean() for _ in range(4))

    assert watched(layers(), losses) == []


@pytest.mark.parametrize("parts", [1, 4])
def test_gradient_caching_computes_twice_to_save_memory(watched, parts):
    """A contrastive loss of all parts of a batch; of one part nothing is saved."""

    def losses(model, rows):
        chunks = torch.cat([rows] * parts).add_(torch.arange(ROWS * parts)[:, None]).chunk(parts)
        with torch.no_grad():
            codes = torch.cat([model(chunk) for chunk in chunks])
        codes.requires_grad_()
        yield (codes @ codes.T).logsumexp(1).mean()
        for chunk, slope in zip(chunks, codes.grad.chunk(parts), strict=True):
            yield (model(chunk) * slope).sum()

    assert len(watched(layers(), losses)) == (parts == 1)


def test_results_are_those_without_it(watched):
    def trained(steps):
        torch.manual_seed(1)
        model = layers(nn.Dropout(0.3))
        steps(model, lambda model, rows: [model(rows).square().mean() + model(rows[:, :]).mean()])
        return model

    def plainly(model, losses):
        torch.manual_seed(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            for loss in losses(model, torch.randn(ROWS, WIDTH)):
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    pairs = zip(trained(watched).parameters(), trained(plainly).parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_what_a_script_raises_passes_through(watched):
    class Broken(nn.Linear):
        def forward(self, rows):
            raise ValueError(rows.shape)

    with pytest.raises(ValueError, match="64"):
        watched(Broken(WIDTH, WIDTH), lambda model, rows: [model(rows)])


class Page(nn.Module):
    """Items for users, of which each has several."""

    def __init__(self, repeat, dropout=0.0):
        super().__init__()
        self.users = layers(nn.Dropout(dropout))
        self.items = layers()
        self.repeat = repeat

    def forward(self, rows):
        users = self.users(self.repeat(rows[:16]))
        return (users * self.items(rows[: len(users)])).sum(1)


@pytest.mark.parametrize(
    ("repeat", "times"),
    [
        (lambda users: users.repeat_interleave(4, 0), 4),
        (lambda users: users.repeat(4, 1), 4),
        (lambda users: users[:, None].expand(-1, 3, -1).reshape(-1, WIDTH), 3),
    ],
)
def test_rows_that_are_repeated_before_a_tower(watched, repeat, times):
    (found,) = watched(Page(repeat), lambda model, rows: [model(rows).mean()])
    assert (found.module, found.calls, found.inputs, found.rows_repeat) == ("users", 1, 16, times)
    assert (found.prefixes, found.without_graph) == (False, False)
    assert found.lines[0].rpartition("/")[2].startswith("test_repeated_forward.py:")
    assert len(found.step_ns) == 3
    assert found.graph_ns == found.again_ns
    assert 0 < found.forward_part < 1


@pytest.mark.parametrize(
    ("repeat", "dropout"),
    [
        (lambda users: users, 0.0),
        (lambda users: users.repeat_interleave(4, 0), 0.5),  # each row has a mask of its own
        (lambda users: users[:3].repeat(16, 1), 0.0),  # as few distinct rows as labels have
        (lambda users: users[torch.randint(16, (64,))], 0.0),  # drawn with replacement
    ],
)
def test_rows_that_differ_or_follow_no_order(watched, repeat, dropout):
    assert watched(Page(repeat, dropout), lambda model, rows: [model(rows).mean()]) == []


class Classifier(nn.Module):
    """Whose outputs in training differ from those in evaluation."""

    def __init__(self):
        super().__init__()
        self.body = layers(nn.Dropout(0.5))

    def forward(self, rows, labels=None):
        return self.body(rows)


@torch.no_grad()
def accuracy(model, rows):
    model.eval()
    model(rows)
    model.train()


@torch.no_grad()
def accuracy_in_training(model, rows):
    model(rows)


@pytest.fixture
def measured():
    """What is found in steps of a model that are followed by `after(model, rows)`, and led by `before`."""

    def steps(
        after=lambda *_: None,
        before=lambda *_: None,
        between=lambda *_: None,
        trained=lambda model, rows: model(rows),
    ):
        torch.manual_seed(0)
        model = Classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        watch, done = RepeatedForward(Places(), lambda: done[0], lambda *_: None), [0]
        watch.begin()
        try:
            for _ in range(5):
                rows = torch.randn(ROWS, WIDTH)
                before(model, rows)
                trained(model, rows).square().mean().backward()
                done[0] += 1
                between(model, rows)
                optimizer.step()
                watch.ticked()
                after(model, rows)
                optimizer.zero_grad()
        finally:
            watch.end()
        return watch.facts()

    return steps


@pytest.mark.parametrize("when", ["after", "between"])
@pytest.mark.parametrize(("metric", "in_training"), [(accuracy, False), (accuracy_in_training, True)])
def test_a_pass_for_a_metric_on_the_batch_that_was_trained_on(measured, when, metric, in_training):
    """After the optimizer's step, or between it and the backward pass: its outputs are others."""
    (found,) = measured(**{when: metric})
    assert found.in_training == in_training
    assert (found.module, found.trained, found.without_graph, found.calls, found.inputs) == (
        "Classifier",
        True,
        True,
        2,
        1,
    )
    assert found.graph_ns == [0] * len(found.graph_ns)
    assert len(found.lines) == 2
    assert all(again > 0 for again in found.again_ns)


def accuracy_with_gradients(model, rows):
    return model(rows=rows).argmax(1)


def accuracy_beside_a_loss(model, rows):
    return model(rows=rows, labels=rows[:, 0])


@pytest.mark.parametrize("when", ["before", "between", "after"])
@pytest.mark.parametrize("metric", [accuracy_with_gradients, accuracy_beside_a_loss])
def test_a_pass_whose_gradients_no_backward_pass_uses(measured, when, metric):
    """It costs no backward pass; the model may compute a loss of its own when it is given labels."""
    (found,) = measured(**{when: metric}, trained=lambda model, rows: model(rows=rows))
    assert (found.trained, found.unused, found.in_training, found.calls, found.inputs) == (True, True, True, 2, 1)
    assert found.graph_ns == [0] * len(found.graph_ns)
    assert all(again > 0 for again in found.again_ns)


class Prompted(nn.Module):
    """It returns a parameter beside its outputs."""

    def __init__(self):
        super().__init__()
        self.prompt, self.body = nn.Parameter(torch.ones(WIDTH)), layers()

    def forward(self, rows):
        return self.body(rows), self.prompt


def test_nothing_is_left_on_parameters_that_are_returned(watched):
    model, kept = Prompted(), []

    def losses(model, rows):
        outputs, prompt = model(rows)
        kept.append(outputs)
        yield (outputs * prompt).mean()

    assert watched(model, losses) == []
    assert not model.prompt._backward_hooks
    assert not any(outputs._backward_hooks for outputs in kept)


def test_equal_passes_of_which_one_has_a_backward_pass(watched):
    def losses(model, rows):
        model(rows)
        yield model(rows).mean()

    (found,) = watched(layers(), losses)
    assert not found.trained
    assert found.graph_ns == [0] * len(found.graph_ns)
    assert all(again > 0 for again in found.again_ns)


def line_search(model, rows):
    for _ in range(3):
        for parameter in model.parameters():
            parameter.data.mul_(0.99)
        accuracy(model, rows)


@pytest.mark.parametrize(
    "steps",
    [
        {"before": accuracy},  # labels to train on, say
        {"after": lambda model, rows: accuracy(model, rows + 1)},
        {"after": lambda model, rows: accuracy(model.body[2], rows)},
        {"after": lambda model, rows: model(rows).mean().backward()},  # another loss
        {"before": lambda model, rows: model(rows).mean().backward()},
        {"before": lambda model, rows: [model(rows) for _ in range(3)]},  # how far its outputs vary with dropout
        {"before": lambda model, rows: model(rows + 1)},
        {"between": line_search},
    ],
)
def test_other_passes_on_a_batch_are_needed(measured, steps):
    assert measured(**steps) == []
