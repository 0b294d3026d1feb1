"""Dtypes of fully_shard's policy as a diff of the script."""

import pytest

from dptune.advice import Change, Location
from dptune.patch.diff import already_made, patched, patches

HEAD = "import torch\nfrom torch.distributed.fsdp import fully_shard\n"
WITH_POLICY = "import torch\nfrom torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard\n"


def change(then="bf16", line=3, knob="fsdp.reduce_dtype"):
    return Change(knob=knob, now="fp32", then=then, at=Location(file="train.py", line=line))


def made(tmp_path, text, *changes):
    (tmp_path / "train.py").write_text(text)
    return patched(changes or (change(),), tmp_path)[0]["train.py"].decode()


@pytest.mark.parametrize(
    ("head", "before", "after"),
    [
        (
            HEAD,
            "fully_shard(model)",
            "fully_shard(model, mp_policy=torch.distributed.fsdp.MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))",
        ),
        (
            WITH_POLICY,
            "m = fully_shard(b, mesh=mesh)  # b",
            "m = fully_shard(b, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))  # b",
        ),
        (
            WITH_POLICY,
            "fully_shard(b, mp_policy=MixedPrecisionPolicy(torch_dtype := 1))".replace("torch_dtype := 1", ""),
            "fully_shard(b, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))",
        ),
        (
            WITH_POLICY,
            "fully_shard(b, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32, param_dtype=torch.bfloat16))",
            "fully_shard(b, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16, param_dtype=torch.bfloat16))",
        ),
    ],
)
def test_the_policy_of_a_call(tmp_path, head, before, after):
    assert made(tmp_path, f"{head}{before}\n") == f"{head}{after}\n"
    (tmp_path / "train.py").write_text(f"{head}{after}\n")
    assert patches([change()], tmp_path).diff == ""
    assert not already_made([change("fp16")], tmp_path)


def test_both_dtypes_of_two_calls(tmp_path):
    text = f"{WITH_POLICY}fully_shard(block)\nfully_shard(model)\n"
    both = [change(line=line, knob=knob) for line in (3, 4) for knob in ("fsdp.param_dtype", "fsdp.reduce_dtype")]
    policy = "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)"
    after = f"{WITH_POLICY}fully_shard(block, mp_policy={policy})\nfully_shard(model, mp_policy={policy})\n"
    assert made(tmp_path, text, *both) == after


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"{HEAD}fully_shard(model, mp_policy=policy)\n", "mp_policy is made elsewhere: set reduce_dtype there"),
        (f"{HEAD}fully_shard(model, mp_policy=make(torch.half))\n", "mp_policy is made elsewhere"),
        (f"{HEAD}fully_shard(model, **options)\n", "cannot be edited safely"),
        (
            "from torch.distributed.fsdp import fully_shard\n\nfully_shard(model)\n",
            "`torch` is not torch's in this file",
        ),
        (f"{HEAD}shard(model)\n", "line 3 has no call to torch's fully_shard"),
    ],
)
def test_what_cannot_be_set_safely(tmp_path, text, why):
    (tmp_path / "train.py").write_text(text)
    found = patches([change()], tmp_path)
    assert found.diff == ""
    assert why in found.left_out[0].why
    assert (tmp_path / "train.py").read_text() == text
