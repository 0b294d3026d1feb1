"""What a performance engineer who read the raw events would change in public traces, and how the findings compare.

The opinions are those of engineers without dptune; each verdict was judged by hand for the findings in `judged`.
"""

from __future__ import annotations

from typing import NamedTuple


class Opinion(NamedTuple):
    """Three causes in the expert's order, the rule that has the first, and a verdict on our findings `judged`.

    `rule` is empty where the first cause costs too little for a finding; such rows are not counted.
    """

    said: str
    rule: str
    judged: tuple[str, ...]
    verdict: str


HEALTHY = ("sample_traces/healthy",)
_ALL_IN_ORDER = "all three, in order"
FIRST_CAUSES = {
    "nanogpt_8xh100": Opinion(
        "rank 1's host is slow; overlap the optimizer's collectives; fuse the loss",
        "DP701",
        ("DP701", "DP626", "DP207"),
        "all three, the last two in the other order: without communication the replay of traced steps saves nothing",
    ),
    "torchrec_straggler_4xv100": Opinion(
        "rank 2 stands still 1 s; cudaMalloc in steps; fp16",
        "DP701",
        ("DP701", "DP801"),
        "first two, in order; fp32 products are too short for a finding",
    ),
    "torchrec_resnet18_2xv100": Opinion(
        "763 views per step on the host; tiny batch; synchronizing calls",
        "DP601",
        ("DP601",),
        "first (names the 763 `as_strided`)",
    ),
    "hta_training/b1ceb4c_control.json.gz": Opinion(
        "copies that block the host, 16 %; 1,428 launches; all-to-all 18 % exposed",
        "DP606",
        ("DP606", "DP409"),
        "first; DP409 is true and not the engineer's",
    ),
    "hta_training/b4b6dce_nccl_data.json.gz": Opinion(
        "host-bound 76 %; buffer broadcast 17.6 %; gradient_as_bucket_view; layout transposes",
        "DP601",
        ("DP601", "DP104", "DP116", "DP410"),
        "all four, in order",
    ),
    "kineto_resnet50_loader/234cf25_worker0.1623212756351.pt.trace.json.gz": Opinion(
        "fp16; for-loop SGD: foreach; pin memory",
        "DP404",
        ("DP404", "DP603", "DP601", "DP503"),
        "all three, in order; DP601 has low confidence",
    ),
    "single_gpu/29571b7_resnet_kineto.json.gz": Opinion(
        "loader too slow; fp16; pin memory", "DP501", ("DP501", "DP404", "DP503"), _ALL_IN_ORDER
    ),
    "single_gpu/d4c3f21_trace_04.json.gz": Opinion(
        "TF32 or bf16; bf16 attention; else saturated", "DP401", ("DP401",), "first; the second is part of it"
    ),
    "dlrm16_memcpy_wait_as_launching": Opinion(
        "a pageable copy to the host holds it 65 % of the step",
        "DP606",
        ("DP606", "DP409"),
        "first; DP409 is true and not the engineer's",
    ),
    "nanogpt_comm_after_backward_no_advice": Opinion(
        "reduce-scatter into the backward pass",
        "DP207",
        ("DP207", "DP626"),
        "first, as its author did later; DP626 is true and not the engineer's",
    ),
    "nanogpt_h2d_launchbound_false": Opinion(
        "nothing: launches are slow under the profiler only", "", (), "right: the verdict says so"
    ),
    "resnet_broadcast_buffers_missed": Opinion(
        "DDP broadcasts two buffers, 122 small copies per step",
        "",
        (),
        "inferred (`broadcast_buffers`), no finding: the GPU idles < 1 %, the broadcasts last 21 us of 18.8 ms",
    ),
    "torchrec_2b_rank2_sleeps_20ms": Opinion(
        "rank 2's host stands still 20 ms twice per step; one step frees and allocates GPU memory",
        "",
        ("DP801", "DP404"),
        "the second is first; rank 2 and both places are measured, but DP701 is quiet: without them 4.5 % of the step",
    ),
}
