"""A KL divergence whose weight differs far from that in the evidence lower bound.

## What it measures

In up to six backward passes of the warm-up steps, dptune reads the autograd graph of the loss. It recognizes the KL
divergence of a Gaussian posterior from the standard normal distribution (`1 + logvar - mu**2 - logvar.exp()`, its
forms with a standard deviation, `torch.distributions.kl_divergence`) and the reconstruction in the same loss: a loss of
torch, or a squared difference that is summed or averaged, of something computed from the posterior's mean. From the
sums, means and constants above them it computes what a latent dimension and an element of the reconstruction count in
the loss. Both count the same in the bound.

dptune reports a divergence that counts 1/8 or less of that, or at least 16 times. Smaller factors come from a mean
over few dimensions, or from the 0.5 of a squared error. It does not report:

- losses that the script weighs: those with a constant that is neither 0.5, 1 or 2 nor a size of the batch;
- losses whose reconstruction and divergence are both means over all their values;
- reconstructions of fewer elements than latent dimensions;
- divergences computed from sampled log-probabilities.

## Why it matters

`mse_loss` and `binary_cross_entropy` average over all elements of all samples by default, while the divergence is
usually summed over the latent dimensions. For pictures of 784 elements the divergence then counts 784 times: the
posterior becomes the prior, and the decoder ignores the latents. The other way round, with a summed reconstruction and
an averaged divergence, nothing regularizes the posterior: what is decoded from the prior resembles no data.

## What to change

    reconstruction = F.binary_cross_entropy(decoded, images, reduction="sum") / len(images)
    divergence = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(dim=1).mean()
    loss = reconstruction + divergence

## When to leave it alone

- The weight is meant. Write it as a factor of the divergence, as for a beta-VAE: dptune then reports nothing.

## References

- Kingma and Welling, "Auto-Encoding Variational Bayes" (2014), equation 10 and appendix B:
  https://arxiv.org/abs/1312.6114
- Higgins et al., "beta-VAE" (2017), the weight of the divergence: https://openreview.net/forum?id=Sy2fzU9gl
- PyTorch, `torch.nn.functional.mse_loss`, `reduction`:
  https://pytorch.org/docs/stable/generated/torch.nn.functional.mse_loss.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import DivergenceWeightFacts, Rule, RunView
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

LEAST_PASSES = 2  # the first may be of a script that looks whether it runs
LITTLE, MUCH = 1 / 8, 16  # of the weight in the bound
OF_A_MEAN = (0.4, 2.1)  # what the values of a mean count together, with the 0.5 of the divergence or a squared error

RULE = Rule(
    code="DP321",
    name="kl-weight",
    family="batch",
    kind="risk",
    summary="the KL divergence of a variational autoencoder counts far more or less than the reconstruction",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each such divergence of the first rank that has one."""
    if run.recorded_about("divergence_weights") is None:
        return
    for found in [facts.divergence_weights for facts in run.facts if facts.divergence_weights][:1]:
        yield from (_advice(each) for each in found if each.passes >= LEAST_PASSES and _is_off(each))


def _is_off(found: DivergenceWeightFacts) -> bool:
    return found.ratio <= LITTLE or (found.ratio >= MUCH and not _are_means(found))


def _are_means(found: DivergenceWeightFacts) -> bool:
    """Whether the divergence and the reconstruction are both averaged over all their values."""
    counted = (
        found.divergence_weight * found.samples * found.latents,
        found.reconstruction_weight * found.samples * found.elements,
    )
    return all(OF_A_MEAN[0] <= each <= OF_A_MEAN[1] for each in counted)


def _advice(found: DivergenceWeightFacts) -> Advice:
    is_little = found.ratio < 1
    share = f"1/{1 / found.ratio:,.0f}" if is_little else f"{found.ratio:,.0f} times"
    return results_at_risk(
        RULE,
        title=f"Loss reductions differ: the KL divergence{in_parentheses(found.where)} has "
        f"{share}{' of' if is_little else ''} its weight in the evidence lower bound",
        why=f"A latent dimension counts {share} as much as an element of the reconstruction. " + _effect(is_little),
        evidence=[
            Evidence(label="backward passes affected", value=found.passes, unit=f"of {found.passes_seen}"),
            Evidence(label="latent dimensions per sample", value=found.latents),
            Evidence(label=f"elements per sample that {found.function} compares", value=found.elements),
            *known("the KL divergence is reduced at", found.where),
        ],
        remedy="Sum reconstruction and divergence over the dimensions of a sample, and average both over samples.",
        watch="Losses before and after the change cannot be compared.",
        confidence="high" if is_little else "medium",
        impact="high" if is_little else "medium",
        subject=f"{found.latents}:{found.elements}",
    )


def _effect(is_little: bool) -> str:
    if is_little:
        return "The posterior is hardly regularized: what is decoded from the prior does not resemble the data."
    return "The posterior collapses to the prior: the decoder learns to ignore the latents."
