"""Matrix product sizes are not multiples of 8 (TF32: 4), so tensor cores load operands in small pieces.

## What it measures

The share of the step in tensor-core matrix product kernels that load less than 16 bytes at once. cuBLAS and CUTLASS
write this into kernel names (`align1`, `align2`). These kernels run if rows in memory are not a multiple of 16 bytes
long: 8 numbers in fp16 and bf16, 4 in TF32. If the trace has operator input sizes (`record_shapes=True`, or the
detailed window), the finding names the lengths, and products whose lengths are all multiples are not counted.

## Why it matters

Tensor cores read operands from shared memory, which threads fill with 16-byte loads. Rows that do not start at
multiples of 16 bytes need loads of 2 to 8 bytes, and kernels written for older GPUs: an H100 then runs Turing kernels.

## What to change

Pad the dimension to the next multiple, or choose sizes that are multiples: a vocabulary of 50264 instead of 50257
(50304 is a multiple of 64), 32 outputs of a layer instead of 30. Pad inputs of odd width once with zeros, in the data
set or with `F.pad`.

In attention use `F.scaled_dot_product_attention`, whose kernels handle any sequence length.

The upper bound is all time in these kernels.

## When to leave it alone

- The dimension changes from step to step, and the copies for padding cost as much as it saves.

Padded classes take part in the softmax: never use them as targets, and mask their logits when sampling.

## References

- NVIDIA, "Matrix Multiplication Background User's Guide", tensor core requirements:
  https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html
- Karpathy on nanoGPT: a vocabulary of 50304 instead of 50257 made training about 25 % faster:
  https://x.com/karpathy/status/1621578354024677377
- Seen in a public trace of recommendation training on an A100 in TF32: a product of 1024 x 1024 with 1024 x 1705 took
  99 us, with 1024 x 2048 64 us; 1024 x 1705 with 1705 x 1024 took 138 us, 1024 x 2048 with 2048 x 1024 60 us.
- Tried on public traces: 8 % of a step of that training; no finding for a GPT on eight H100 (0.6 %).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from dptune.advice import Advice, Evidence
from dptune.measured import UnalignedProduct
from dptune.rule import Rule, RunView, Threshold

WORTH_SHARE = Threshold(
    "worth_share", 0.05, "aligned kernels took 35 to 57 % less time (see References): 2 % of a step is saved from here"
)

MOST_NAMED = 3  # lengths in the title, products in the evidence
BATCHED = ("aten::bmm", "aten::baddbmm")
NAMES = {"bf16": "bf16", "fp16": "fp16", "tf32": "TF32"}

RULE = Rule(
    code="DP409",
    name="unaligned-products",
    family="precision",
    kind="time",
    summary="matrix product sizes are not multiples of 8 (TF32: 4), which tensor cores need for full speed",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose padded sizes where kernels for unaligned operands take a share of the step worth it."""
    if run.measured.device_kind != "cuda":
        return
    sized = run.measured.matmul.known("unaligned_sized_share")
    traced = run.measured.matmul.unaligned_share if sized is None else sized
    share = run.unstretched(traced)
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    products = [product for product in run.measured.matmul.unaligned if product.lengths or sized is None]
    dtypes: Counter[str] = Counter()
    for product in products:
        dtypes[product.dtype] += round(1e6 * product.part)
    dtype = NAMES[dtypes.most_common(1)[0][0]]
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"{100 * share:.0f} % of a step is {dtype} matrix products "
        f"{'in kernels for unaligned operands' if sized is None else 'of unaligned sizes'}: {_remedy(products)}",
        why="Rows that do not start at multiples of 16 bytes are loaded in small pieces, by slower kernels.",
        changes=[],
        saves=run.bound(0.0, share, "the time of these kernels"),
        confidence="low" if sized is None else "medium",
        evidence=[
            Evidence(label="matrix products in kernels for unaligned operands", value=share, unit="of a step").at(
                run.measured.where("unaligned matmul")
            ),
            *(
                Evidence(label=_described(product), value=product.part, unit="of the time of these kernels")
                for product in products[:MOST_NAMED]
                if product.sizes
            ),
        ],
        numerics="changes",
        watch=_watch(run, products),
        fingerprint=RULE.code,
    )


def _remedy(products: Sequence[UnalignedProduct]) -> str:
    """What to pad: the lengths that take most time, and the next multiples."""
    parts: dict[tuple[int, int], float] = {}
    for product in products:
        for length in product.lengths:
            key = length, product.multiple
            parts[key] = parts.get(key, 0.0) + product.part
    named = sorted(parts, key=lambda key: (-parts[key], -key[0]))[:MOST_NAMED]
    if not named:
        return f"make their sizes multiples of {max((product.multiple for product in products), default=8)}"
    words = [f"{length} to {-(-length // multiple) * multiple}" for length, multiple in named]
    return f"pad {', '.join(words[:-1])}{' and ' if words[1:] else ''}{words[-1]}"


def _described(product: UnalignedProduct) -> str:
    first, second = (" x ".join(map(str, size)) for size in product.sizes)
    return f"{product.operator} of {first} and {second}"


def _watch(run: RunView, products: Sequence[UnalignedProduct]) -> str:
    if not any(product.sizes for product in products):
        return "To see the sizes, record with record_shapes=True or with `dptune profile`."
    words = "Pad with zeros. Padded classes take part in a softmax: never use them as targets."
    eager = run.measured.known("attention") and any(product.operator in BATCHED for product in products)
    return words + (" In attention use F.scaled_dot_product_attention instead." if eager else "")
