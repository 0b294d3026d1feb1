"""Lines through times of messages: found where they are exact, not drawn away by outliers, refused without data."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dptune.measure.communication.fit import Times, fit, pooled, times

SIZES = [4096 * 4**step for step in range(7)]


def exact(sizes, alpha_ns, beta, disturbed=None):
    disturbed = disturbed or {}
    found = [(size, (alpha_ns + size / beta) * disturbed.get(at, 1.0)) for at, size in enumerate(sizes)]
    return [Times(size, ns, ns, ns, 7) for size, ns in found]


def test_by_hand():
    """1,000 ns and 2 bytes per ns: 1,000 bytes take 1,500 ns, 10,000 take 6,000, 100,000 take 51,000."""
    found, why = fit([Times(size, ns, ns, ns, 1) for size, ns in ((1000, 1500), (10_000, 6000), (100_000, 51_000))])
    assert why == ""
    assert found.alpha_ns == pytest.approx(1000)
    assert found.beta_gb_per_s == pytest.approx(2)
    assert (found.alpha_low_ns, found.alpha_high_ns) == pytest.approx((1000, 1000))
    assert (found.beta_low_gb_per_s, found.beta_high_gb_per_s) == pytest.approx((2, 2))
    assert found.residual_share == pytest.approx(0, abs=1e-9)
    assert found.confidence == "medium"  # three sizes prove little, however well they lie


@given(st.floats(0, 1e7), st.floats(1e-3, 1e3))
def test_an_exact_line_is_found(alpha_ns, beta):
    assume(SIZES[-1] / beta > 0.01 * alpha_ns)  # else the sizes do not show beta
    found, _ = fit(exact(SIZES, alpha_ns, beta))
    assert found.alpha_ns == pytest.approx(alpha_ns, rel=1e-6, abs=1e-6 * SIZES[0] / beta)
    assert found.beta_gb_per_s == pytest.approx(beta, rel=1e-6)
    assert found.confidence == "high"


@given(st.floats(1e4, 1e6), st.floats(0.01, 1), st.integers(0, len(SIZES) - 1), st.sampled_from([0.2, 0.5, 3, 10, 100]))
def test_one_disturbed_size_does_not_draw_the_line_to_it(alpha_ns, beta, at, factor):
    found, _ = fit(exact(SIZES, alpha_ns, beta, {at: factor}))
    if found is None:  # at an end it may hide that time grows with size; it must not make up a bandwidth
        assert at in (0, len(SIZES) - 1)
        return
    if 0 < at < len(SIZES) - 1:
        assert found.alpha_ns == pytest.approx(alpha_ns, rel=0.35)
        assert found.beta_gb_per_s == pytest.approx(beta, rel=0.35)
    assert found.alpha_low_ns <= found.alpha_ns <= found.alpha_high_ns
    assert found.beta_low_gb_per_s <= found.beta_gb_per_s <= found.beta_high_gb_per_s


@given(st.integers(0, 2**32 - 1))
def test_the_line_is_near_that_of_least_squares_of_logarithms_where_noise_is_small(seed):
    """Against an independent search: a grid of lines, judged by squares of log ratios."""
    noise = np.exp(np.random.default_rng(seed).normal(0, 0.01, len(SIZES)))
    found, _ = fit(exact(SIZES, 1e6, 0.025, dict(enumerate(noise))))
    alphas, betas = np.linspace(0.9e6, 1.1e6, 41), np.linspace(0.023, 0.027, 41)
    size, measured = np.array(SIZES), (1e6 + np.array(SIZES) / 0.025) * noise
    lines = np.log((alphas[:, None, None] + size / betas[None, :, None]) / measured)
    best = np.unravel_index((lines**2).sum(axis=2).argmin(), (41, 41))
    assert found.alpha_ns == pytest.approx(alphas[best[0]], rel=0.06)
    assert found.beta_gb_per_s == pytest.approx(betas[best[1]], rel=0.06)


@pytest.mark.parametrize(
    ("longer", "shorter", "confidence"), [(1.05, 0.95, "high"), (1.2, 0.85, "medium"), (1.6, 0.6, "low")]
)
def test_confidence_falls_with_the_distance_from_the_line(longer, shorter, confidence):
    """Three of seven sizes lie on it, two take longer and two shorter: of the distances the median is the least."""
    found, _ = fit(exact(SIZES, 1e5, 0.5, {1: longer, 2: shorter, 4: longer, 5: shorter}))
    assert found.residual_share == pytest.approx(min(1 - 1 / longer, 1 / shorter - 1))
    assert found.confidence == confidence


def test_one_size_far_from_the_line_makes_it_less_sure():
    """Six of seven lie on it: the median distance is none, but small messages take half as long as it says."""
    found, _ = fit(exact(SIZES, 1e5, 0.5, {1: 0.5}))
    assert found.residual_share == pytest.approx(0)
    assert found.confidence == "medium"


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ([], "0 message sizes; a fit needs at least 3 sizes, the largest 8x the smallest"),
        ([4096], "1 message size; a fit needs at least 3"),
        ([4096, 1 << 20], "2 message sizes (4,096 to 1,048,576 bytes); a fit needs at least 3"),
        (
            [4096, 8192, 16384],
            "3 message sizes (4,096 to 16,384 bytes); a fit needs at least 3 sizes, the largest 8x",
        ),
    ],
)
def test_too_few_sizes_or_too_near(sizes, why):
    found, said = fit(exact(sizes, 1e5, 1.0))
    assert found is None
    assert said.startswith(why)


def test_times_that_do_not_grow_have_no_bandwidth():
    found, why = fit([Times(size, 5000.0 - at, 5000.0, 5000.0, 3) for at, size in enumerate(SIZES)])
    assert found is None
    assert "does not grow with the size" in why


def test_times_that_fall_from_an_empty_message_on_have_no_bandwidth():
    """No two of them rise, and a line through zero would give the empty message no time."""
    found, why = fit([Times(size, ns, ns, ns, 3) for size, ns in ((0, 9000), (1000, 8000), (64_000, 7000))])
    assert found is None
    assert "does not grow with the size" in why


def test_a_call_without_a_duration_refuses_the_fit():
    found, why = fit([Times(size, ns, ns, ns, 3) for size, ns in ((1000, 0), (8000, 9000), (64_000, 90_000))])
    assert (found, why) == (None, "some calls took no time that could be measured")


def test_a_slope_that_rests_on_one_size_is_refused():
    """Only the largest took longer; without it nothing is known of a bandwidth."""
    found, why = fit([Times(size, ns, ns, ns, 3) for size, ns in ((1000, 9000), (8000, 9000), (64_000, 90_000))])
    assert found is None
    assert "at one message size only" in why


def test_the_quartiles_widen_what_is_possible():
    sizes = [Times(size, ns, ns * 0.8, ns * 1.25, 9) for size, ns in zip(SIZES, (1000 + np.array(SIZES)), strict=True)]
    found, _ = fit(sizes)
    assert found.beta_low_gb_per_s == pytest.approx(0.8)
    assert found.beta_high_gb_per_s == pytest.approx(1.25)
    assert (found.alpha_low_ns, found.alpha_high_ns) == pytest.approx((800, 1250))


def test_calls_are_pooled_by_size():
    found = pooled(np.array([8, 4, 8, 8, 4]), np.array([10, 7, 30, 20, 9]))
    assert found == [times(4, [7, 9]), times(8, [10, 20, 30])]
    assert (found[1].median_ns, found[1].q1_ns, found[1].q3_ns, found[1].calls) == (20, 15, 25, 3)
    assert math.isclose(found[0].median_ns, 8)


def test_hundreds_of_sizes_are_thinned():
    found, _ = fit(exact([1000 * n for n in range(1, 800)], 1e5, 0.5))
    assert found.alpha_ns == pytest.approx(1e5)
    assert found.beta_gb_per_s == pytest.approx(0.5)
