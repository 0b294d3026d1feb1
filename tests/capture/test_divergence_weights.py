"""KL divergences of another weight than the reconstruction: real graphs of variational autoencoders."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence
from torch.nn import functional

from dptune.capture.injected.observe.divergence_weights import DivergenceWeights

from .graph_passes import Places, facts_of

SAMPLES, LATENTS, ELEMENTS = 9, 10, 40


class Autoencoder(nn.Module):
    """Of rows of ELEMENTS numbers, by LATENTS latent dimensions."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(ELEMENTS, 2 * LATENTS), nn.Linear(LATENTS, ELEMENTS)

    def forward(self, rows):
        """The decoded rows; mean and logarithm of the variance of the posterior."""
        mean, logvar = self.encode(rows).chunk(2, dim=1)
        return self.decode(mean + torch.randn_like(mean) * (0.5 * logvar).exp()), mean, logvar


def found(loss_of, passes=3):
    """What passes of the loss of (decoded, rows, mean, logvar) show."""

    def loss():
        rows = torch.rand(SAMPLES, ELEMENTS)
        decoded, mean, logvar = Autoencoder()(rows)
        return loss_of(decoded, rows, mean, logvar)

    return facts_of(DivergenceWeights(Places()), loss, passes)


def by_line(mean, logvar):
    return -0.5 * (1 + logvar - mean.pow(2) - logvar.exp())


def by_products(mean, logvar):
    return 0.5 * (mean * mean + logvar.exp() - logvar - 1)


def in_place(mean, logvar):
    return mean.pow(2).add_(logvar.exp()).mul_(-1).add_(1).add_(logvar).mul_(-0.5)


def by_deviation(mean, logvar):
    deviation = functional.softplus(logvar) + 1e-6
    return 0.5 * (deviation**2 + mean**2 - 1) - deviation.log()


def by_log_deviation(mean, logvar):
    return -0.5 * (1 + 2 * logvar - mean**2 - torch.exp(2 * logvar))


def of_distributions(mean, logvar):
    return kl_divergence(Normal(mean, (0.5 * logvar).exp()), Normal(torch.zeros_like(mean), torch.ones_like(mean)))


def of_numbers(mean, logvar):
    return kl_divergence(Normal(mean, (0.5 * logvar).exp()), Normal(0, 1))


FORMS = (by_line, by_products, in_place, by_deviation, by_log_deviation, of_distributions, of_numbers)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_a_mean_beside_a_sum(form):
    def loss(decoded, rows, mean, logvar):
        return functional.mse_loss(decoded, rows, reduction="sum") + form(mean, logvar).mean()

    (each,) = found(loss)
    assert (each.samples, each.latents, each.elements, each.function) == (SAMPLES, LATENTS, ELEMENTS, "mse_loss")
    assert each.ratio == pytest.approx(1 / (SAMPLES * LATENTS))
    assert (each.passes, each.passes_seen) == (3, 3)
    assert each.where.startswith("tests/capture/test_divergence_weights.py:")


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_both_are_sums(form):
    def loss(decoded, rows, mean, logvar):
        return functional.mse_loss(decoded, rows, reduction="sum") + form(mean, logvar).sum()

    assert found(loss) == []


def averaged(decoded, rows, mean, logvar):
    return functional.mse_loss(decoded, rows) + by_line(mean, logvar).sum(dim=1).mean()


def summed(decoded, rows, mean, logvar):
    return functional.mse_loss(decoded, rows) + by_line(mean, logvar).sum()


def of_sample(decoded, rows, mean, logvar):
    squares = (decoded - rows).pow(2).sum(1)
    return (squares + by_line(mean, logvar).mean(1)).mean()


def of_bits(decoded, rows, mean, logvar):
    lost = functional.binary_cross_entropy_with_logits(decoded, rows, reduction="sum") / len(rows)
    return lost + by_line(mean, logvar).mean()


def of_probabilities(decoded, rows, mean, logvar):
    lost = functional.binary_cross_entropy(decoded.sigmoid(), rows, reduction="none").sum(1)
    return torch.mean(lost) + torch.mean(by_line(mean, logvar))


def of_three(decoded, rows, mean, logvar):
    return summed(decoded, rows, mean, logvar) / 3


def of_scaled(decoded, rows, mean, logvar):
    return of_bits(decoded, rows, mean, logvar) * torch.tensor(65536.0)


def of_weighted_samples(decoded, rows, mean, logvar):
    counts = torch.linspace(0.5, 1.5, SAMPLES)
    each = (decoded - rows).square().mean(1) + by_line(mean, logvar).sum(1)
    return (counts * each).sum() / counts.sum()


def of_likelihood(decoded, rows, mean, logvar):
    lost = -Normal(decoded, 1.0).log_prob(rows).sum(1)
    return lost.mean() + of_numbers(mean, logvar).mean()


def of_draws(decoded, rows, mean, logvar):
    """Three of each sample, of which each has its own reconstruction."""
    draws = torch.stack([decoded, 2 * decoded, decoded - 1])
    lost = functional.binary_cross_entropy_with_logits(draws, rows.expand_as(draws), reduction="none").sum(-1)
    return (lost + by_line(mean, logvar).mean(1)).mean()


def of_features(decoded, rows, mean, logvar):
    """A mean of what a network sees in both, beside the sum of all elements, which counts more."""
    features = nn.Linear(ELEMENTS, ELEMENTS)
    seen = functional.mse_loss(features(decoded), features(rows).detach())
    lost = functional.binary_cross_entropy_with_logits(decoded, rows, reduction="sum") / SAMPLES
    return sum({"features": seen, "elements": lost, "divergence": by_line(mean, logvar).mean()}.values())


def of_columns(decoded, rows, mean, logvar):
    """Numbers, and two columns of classes, each of fewer values than there are latent dimensions."""
    lost = functional.mse_loss(decoded[:, :12], rows[:, :12], reduction="sum")
    for first in (12, 20):
        classes = rows[:, first : first + 8].argmax(1)
        lost = lost + functional.cross_entropy(decoded[:, first : first + 8], classes, reduction="sum")
    return lost + by_line(mean, logvar).sum(1).mean()


WEIGHTS = {
    averaged: ELEMENTS,
    summed: ELEMENTS * SAMPLES,
    of_sample: 1 / LATENTS,
    of_bits: 1 / LATENTS,
    of_probabilities: 1 / LATENTS,
    of_three: ELEMENTS * SAMPLES,
    of_scaled: 1 / LATENTS,
}


def test_samples_that_count_differently():
    """Each has the same part of both terms."""
    (each,) = found(of_weighted_samples)
    assert each.ratio == pytest.approx(ELEMENTS)


@pytest.mark.parametrize("loss", [of_likelihood, of_draws, of_features], ids=lambda loss: loss.__name__)
def test_an_averaged_divergence_beside(loss):
    (each,) = found(loss)
    assert (each.elements, each.ratio) == (ELEMENTS, pytest.approx(1 / LATENTS))


def test_columns_of_a_table():
    (each,) = found(of_columns)
    assert (each.elements, each.ratio) == (14, pytest.approx(1 / SAMPLES))


@pytest.mark.parametrize("loss", WEIGHTS, ids=lambda loss: loss.__name__)
def test_what_a_latent_dimension_counts(loss):
    (each,) = found(loss)
    assert each.ratio == pytest.approx(WEIGHTS[loss])


@pytest.mark.parametrize("loss", WEIGHTS, ids=lambda loss: loss.__name__)
def test_the_ratio_is_that_of_derivatives(loss):
    """By autograd, of the divergence's mean where it is 1: there its derivative is the weight."""
    rows, mean, logvar = torch.rand(SAMPLES, ELEMENTS), torch.ones(SAMPLES, LATENTS), torch.zeros(SAMPLES, LATENTS)
    mean.requires_grad_()
    decoded = torch.full((SAMPLES, ELEMENTS), 0.5, requires_grad=True)
    of_mean, of_decoded = torch.autograd.grad(loss(decoded, rows, mean, logvar), (mean, decoded))
    if loss in (of_bits, of_scaled, of_probabilities):
        of_element = (decoded.sigmoid() - rows).detach()
    else:
        of_element = 2 * (decoded - rows).detach()
    assert float(of_mean[0, 0] / (of_decoded / of_element)[0, 0]) == pytest.approx(WEIGHTS[loss], rel=1e-4)


def test_an_embedding_and_its_words():
    """A cross entropy counts a word of a sample as an element."""
    words = 30
    table = nn.Embedding(50, 2 * LATENTS)
    decode = nn.Linear(LATENTS, words * 50)

    def loss():
        ids = torch.randint(0, 50, (SAMPLES, words))
        mean, logvar = table(ids).mean(1).chunk(2, dim=1)
        lost = functional.cross_entropy(decode(mean).view(-1, 50), ids.view(-1))
        return lost + by_line(mean, logvar).sum(1).mean()

    (each,) = facts_of(DivergenceWeights(Places()), loss)
    assert (each.elements, each.function, each.ratio) == (words, "cross_entropy", pytest.approx(words))


QUIET = {
    "both summed, then averaged over samples": lambda decoded, rows, mean, logvar: (
        (decoded - rows).pow(2).sum(1) + by_line(mean, logvar).sum(1)
    ).mean(),
    "a weight of its own": lambda decoded, rows, mean, logvar: (
        functional.mse_loss(decoded, rows) + 0.00025 * by_line(mean, logvar).sum(1).mean()
    ),
    "annealed": lambda decoded, rows, mean, logvar: (
        functional.mse_loss(decoded, rows) + 0.3 * by_line(mean, logvar).sum(1).mean()
    ),
    "weighted by alpha": lambda decoded, rows, mean, logvar: torch.add(
        functional.mse_loss(decoded, rows), by_line(mean, logvar).sum(1).mean(), alpha=0.0001
    ),
    "divided by all elements": lambda decoded, rows, mean, logvar: (
        functional.binary_cross_entropy_with_logits(decoded, rows) + by_line(mean, logvar).sum() / rows.numel()
    ),
    "a mean times the elements": lambda decoded, rows, mean, logvar: (
        functional.mse_loss(decoded, rows) * ELEMENTS + by_line(mean, logvar).sum(1).mean()
    ),
    "a learned weight": lambda decoded, rows, mean, logvar: (
        functional.mse_loss(decoded, rows) * nn.Parameter(torch.ones(())).exp() + by_line(mean, logvar).sum(1).mean()
    ),
    "a likelihood of stated variance": lambda decoded, rows, mean, logvar: (
        -Normal(decoded, 0.1).log_prob(rows).sum(1).mean() + of_numbers(mean, logvar).sum(1).mean()
    ),
    "an averaged divergence beside a stated variance": lambda decoded, rows, mean, logvar: (
        -Normal(decoded, 0.1).log_prob(rows).sum(1).mean() + of_numbers(mean, logvar).mean()
    ),
    "another factor of the variance": lambda decoded, rows, mean, logvar: (
        functional.mse_loss(decoded, rows) + 0.5 * (mean.pow(2) + 3 * logvar.exp() - logvar).sum()
    ),
    "a penalty on results": lambda decoded, rows, mean, logvar: decoded.pow(2).sum() + by_line(mean, logvar).mean(),
    "a capacity": lambda decoded, rows, mean, logvar: (
        functional.mse_loss(decoded, rows) + (total := by_line(mean, logvar).sum(1).mean()) + (total - 5).abs()
    ),
    "free bits": lambda decoded, rows, mean, logvar: (
        functional.mse_loss(decoded, rows) + by_line(mean, logvar).clamp(min=0.1).sum(1).mean()
    ),
    "no divergence": lambda decoded, rows, mean, logvar: (
        functional.mse_loss(decoded, rows) + (mean.pow(2) + logvar.exp() + logvar).sum()
    ),
    "squares alone": lambda decoded, rows, mean, logvar: functional.mse_loss(decoded, rows) + mean.pow(2).sum(),
    "a loss of something else": lambda decoded, rows, mean, logvar: (
        functional.mse_loss(nn.Linear(ELEMENTS, ELEMENTS)(rows), rows) + by_line(mean, logvar).sum(1).mean()
    ),
    "no reconstruction": lambda decoded, rows, mean, logvar: by_line(mean, logvar).mean() + decoded.sum(),
    "one number of each sample": lambda decoded, rows, mean, logvar: (
        functional.mse_loss(decoded[:, 0], rows[:, 0]) + by_line(mean, logvar).sum()
    ),
}


@pytest.mark.parametrize("name", QUIET)
def test_weighed_as_in_the_bound_or_on_purpose(name):
    assert found(QUIET[name]) == []


def test_means_of_few_elements():
    """The divergence counts 4 times here, as a mean over fewer values."""

    def loss(decoded, rows, mean, logvar):
        return functional.mse_loss(decoded, rows) + by_line(mean, logvar).mean()

    assert found(loss) == []


def test_weights_of_a_layer_are_no_latent_dimensions():
    """The divergence of a Bayesian layer is of its parameters."""
    latents = 5
    center, spread = nn.Parameter(torch.randn(ELEMENTS, latents)), nn.Parameter(torch.zeros(ELEMENTS, latents))

    def loss():
        rows = torch.rand(SAMPLES, ELEMENTS)
        weight = center + torch.randn_like(center) * (0.5 * spread).exp()
        decoded = functional.linear(torch.rand(SAMPLES, latents), weight)
        return functional.mse_loss(decoded, rows, reduction="sum") + by_line(center, spread).mean()

    assert facts_of(DivergenceWeights(Places()), loss) == []


def test_a_prior_in_tensors():
    """Of means and variances of zeros and ones, as a function for two distributions is called."""

    def loss(decoded, rows, mean, logvar):
        prior, logarithm = torch.zeros_like(mean), torch.zeros_like(logvar)
        values = 0.5 * (logarithm - logvar + (logvar.exp() + (mean - prior) ** 2) / logarithm.exp() - 1)
        return functional.mse_loss(decoded, rows, reduction="sum") + values.mean()

    (each,) = found(loss)
    assert each.ratio == pytest.approx(1 / (SAMPLES * LATENTS))


def test_independent_dimensions():
    def loss(decoded, rows, mean, logvar):
        posterior = Independent(Normal(mean, (0.5 * logvar).exp()), 1)
        prior = Independent(Normal(torch.zeros_like(mean), torch.ones_like(mean)), 1)
        return functional.mse_loss(decoded, rows) + kl_divergence(posterior, prior).mean()

    (each,) = found(loss)
    assert each.ratio == pytest.approx(ELEMENTS)


def test_flattened_dimensions():
    """Pictures of latent values and of elements, flattened before they are summed."""

    def loss(decoded, rows, mean, logvar):
        pictures, center, spread = decoded.view(-1, 2, 20), mean.view(-1, 2, 5), logvar.view(-1, 2, 5)
        squares = (pictures - rows.view(-1, 2, 20)).square().flatten(1).sum(1).mean()
        return squares + by_line(center, spread).flatten(1).mean(1).mean()

    (each,) = found(loss)
    assert (each.latents, each.elements, each.ratio) == (LATENTS, ELEMENTS, pytest.approx(1 / LATENTS))
