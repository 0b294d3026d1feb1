"""Direct convolutions with long kernels take a share of the step.

## What it measures

Convolutions outside of backward passes that multiply 512 taps or more along one dimension for each position of their
padded input, with the nodes of their backward pass, which autograd's sequence numbers in the detailed window identify.
The share is of the untraced step. On a GPU it is the time of the kernels that these convolutions launch.

## Why it matters

A direct convolution computes K multiply-adds for each output, K being the taps of its kernel. By FFT it takes three
transforms of about log2(N) operations for each element, N being the padded length: 3 x 14 for 16,384 samples against
3,200 taps. Libraries reach several times the operations per second in direct convolutions that they reach in FFT, so
the rule starts at 512 taps, where FFT needs about ten times fewer operations.

## What to change

Multiply the spectra:

    size = signal.shape[-1] + kernel.shape[-1] - 1  # or the next product of 2, 3 and 5
    spectrum = torch.fft.rfft(signal, size) * torch.fft.rfft(kernel, size)
    output = torch.fft.irfft(spectrum, size)[..., : signal.shape[-1]]

or call `torchaudio.functional.fftconvolve(signal, kernel)`. Both convolve, while `conv1d` correlates: where the script
flips its kernel for `conv1d`, drop the flip, otherwise add one. Multiply by the conjugate of the kernel's spectrum to
correlate. With several input channels, add up the products of their spectra before `irfft`. A kernel that does not
change needs its transform only once.

On a CPU the saving is predicted from the part of this time that was saved in measurements (References). Otherwise it is
an upper bound: all of the time in these convolutions and their backward pass.

## When to leave it alone

- The kernel could be shorter: for example, most of a room's impulse response lies in its first tenths of a second.
- The data needs no augmentation on the training thread: convolve in the workers of a DataLoader, or once in advance.

Convolutions with a stride or with few outputs, which multiply fewer taps for each position, are not reported.

## References

- Cooley and Tukey, "An Algorithm for the Machine Calculation of Complex Fourier Series" (1965):
  https://doi.org/10.1090/S0025-5718-1965-0178586-1
- Frigo and Johnson, FFTW benchmarks, which count 2.5 N log2(N) floating-point operations for a real transform:
  https://www.fftw.org/speed/
- CPU time in turn, one thread, 1 to 16 signals of 4,000 and 16,000 samples, the kernel's gradient included: with 512 to
  8,000 taps, FFT took 82 to 99 % less than the direct convolution.
- torch.fft.rfft: https://pytorch.org/docs/stable/generated/torch.fft.rfft.html
- torchaudio.functional.fftconvolve: https://pytorch.org/audio/stable/generated/torchaudio.functional.fftconvolve.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.host.costly_functions import advice, seen_in_kernels

WORTH_SHARE = Threshold("worth_share", 0.05, "identical steps differ by about 5 %: less is within this noise")

SAVED_PART = (0.75, 0.96, 0.99)  # of their time, see References

RULE = Rule(
    code="DP615",
    name="long-convolutions",
    family="host",
    kind="time",
    summary="direct convolutions with long kernels take a share of the step",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each function whose long convolutions take a share of the step worth it."""
    seen = seen_in_kernels(run, lambda name: "conv" in name, run.limit(WORTH_SHARE))
    if run.measured.known("user_code") is None and not seen:
        return  # all convolutions take less; only a detailed window shows how long their kernels are
    found = run.measured.user_code
    for function in found.long_convolutions:
        impact = run.impact(function.share, WORTH_SHARE)
        if impact is None:
            continue
        yield advice(
            RULE,
            run,
            function,
            impact,
            spends=f"in direct convolutions with {function.taps:,} taps"
            f"{' and their backward pass' if function.backward_ns else ''}: use FFT "
            "(torch.fft.rfft, multiply, torch.fft.irfft)",
            why="A direct convolution computes one multiply-add per tap for each output; an FFT needs about log2(N) "
            "operations per element.",
            most="the convolutions and their backward pass",
            confidence="medium" if found.basis == "untraced" else "low",
            details=[
                Evidence(label="taps of the longest kernel", value=function.taps),
                Evidence(label="padded length of its input", value=function.length),
                Evidence(label="long convolutions", value=round(function.calls, 1), unit="per step"),
            ],
            numerics="same",
            watch="Results agree up to floating-point rounding. conv1d correlates: flip the kernel, or multiply by the "
            "conjugate of its spectrum. Zero-pad both to a length of small factors (2, 3, 5). "
            "torchaudio.functional.fftconvolve does the same in one call.",
            saves=run.replaced(function, SAVED_PART, "FFT took 82 to 99 % less time in measurements"),
        )
