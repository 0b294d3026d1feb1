"""How fast a CPU computes in the 16-bit dtypes of a script: timed beside it, without touching it."""

import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from dptune.capture.injected.observe import dtype_speed, process_rank  # noqa: E402
from dptune.capture.injected.observe.places import Places  # noqa: E402

SCRIPT = """
    import os
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE"  # read with the first matrix product
    import torch
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(4, 8)).float().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(loss.item())
"""


def test_only_what_a_script_uses_is_timed(monkeypatch):
    monkeypatch.setattr(process_rank, "device_kind", lambda: "cpu")
    places = Places()
    assert dtype_speed.measured(places) == []
    places.autocast = "cpu:bfloat16"
    before = torch.get_rng_state()
    found = dtype_speed.measured(places)
    assert torch.equal(torch.get_rng_state(), before)
    assert [(one.dtype, one.operator) for one in found] == [
        ("bfloat16", "matrix product"),
        ("bfloat16", "convolution"),
    ]
    assert all(one.took_ns > 0 and one.float32_ns > 0 for one in found)
    monkeypatch.setattr(process_rank, "device_kind", lambda: "cuda")
    assert dtype_speed.measured(places) == []


WINDOWS = ("--warmup", "2", "--untraced", "3", "--light", "2", "--detailed", "0", "--continue")


@pytest.mark.records
def test_a_script_with_fp16_autocast(profile):
    done = profile(SCRIPT, *WINDOWS)
    assert done.status == 0, done.err
    facts = done.facts()
    assert (facts.autocast, facts.autocast_where) == ("cpu:float16", "train.py:9")
    assert {one.dtype for one in facts.dtype_speeds} == {"float16"}
    assert facts.optimizers[0].dtypes == ["float32"]
    assert 100 < facts.call_ns < 1_000_000


@pytest.mark.records
@pytest.mark.thorough
def test_without_its_autocast_nothing_is_timed(profile):
    off = profile(SCRIPT, *WINDOWS, "--set", "precision.autocast=off")
    assert off.status == 0, off.err
    assert "did not take effect" not in off.err
    assert off.facts().autocast is None
    assert off.facts().dtype_speeds == []
