"""Whether settings took effect, where run.json comes from another hand."""

import math

import pytest

from dptune.capture.effect import in_force, without_effect
from dptune.knobs import KNOBS
from dptune.runfile.communication import DdpFacts, FsdpFacts
from dptune.runfile.facts import DeviceFacts, Facts, OptimizerFacts
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.tensors import TensorFacts
from dptune.runfile.variables import VariableFacts
from dptune.runfile.window import Window

FACTS = Facts(
    0,
    ddp=[DdpFacts("Net", bucket_cap_bytes=2**20, first_bucket_bytes=2**20)],
    loaders=[LoaderFacts(batch_size=8)],
    optimizers=[OptimizerFacts("AdamW", betas=[0.9, 0.999], eps=1e-8)],
    variables=[VariableFacts("OMP_NUM_THREADS", "2", as_asked=True)],
)


def test_a_variable_that_was_recorded_with_another_value_is_not_in_force():
    """The recording sets SHARD to 1 already; a secret cannot be compared."""
    facts = Facts(
        0, variables=[VariableFacts("SHARD", "1", as_asked=True), VariableFacts("MY_KEY", "<redacted>", True)]
    )
    assert in_force("env.SHARD", "1", [facts])
    assert without_effect({"env.SHARD": "3"}, [facts]) == {"env.SHARD": "SHARD is 1 in the script"}
    assert in_force("env.MY_KEY", "s3cret", [facts])


def test_threads_that_torch_does_not_compute_with_are_named():
    asked = {"env.OMP_NUM_THREADS": "2,1"}  # one number for each level of nesting
    variables = [VariableFacts("OMP_NUM_THREADS", "2,1", as_asked=True)]
    two, one = (Facts(0, device=DeviceFacts("cpu", torch_threads=n), variables=variables) for n in (2, 1))
    assert without_effect(asked, [one]) == {"env.OMP_NUM_THREADS": "torch computes with 1 thread in the script"}
    assert without_effect(asked, [two]) == {}


def test_a_setting_that_is_not_known_cannot_be_told():
    assert without_effect({"ddp.future": 3}, [FACTS]) == {"ddp.future": "unknown: not a setting of this version"}


@pytest.mark.parametrize(
    "value", [None, True, 3, math.nan, math.inf, 1e308, -1.5, "", "x\n::error::y", "1,2", "9" * 5000]
)
@pytest.mark.parametrize("name", [*KNOBS, "env.OMP_NUM_THREADS"])
def test_no_value_of_any_setting_is_a_crash(name, value):
    for why in without_effect({name: value}, [FACTS]).values():
        assert why


@pytest.mark.parametrize("name", ["ddp.bucket_cap_mb", "ddp.first_bucket_mb"])
def test_a_text_for_a_size_is_not_multiplied(name):
    class Text(str):
        def __mul__(self, times):
            pytest.fail(f"{times} times the text: gigabytes")

    assert without_effect({name: Text("25")}, [FACTS]) == {name: "unknown: '25' is not a valid value"}


def test_a_value_that_cannot_be_is_named():
    assert without_effect({"ddp.bucket_cap_mb": math.nan}, [FACTS]) == {
        "ddp.bucket_cap_mb": "unknown: 'nan' is not a valid value"
    }


@pytest.mark.parametrize(
    ("device", "fused", "foreach", "there"),
    [
        ("cpu", None, None, False),
        ("cuda", None, None, True),
        ("cuda", True, None, False),
        ("cuda", None, False, False),
        ("cpu", None, True, True),
    ],
)
def test_many_tensors_at_once_are_torchs_own_choice_on_gpus(device, fused, foreach, there):
    facts = [Facts(0, device=DeviceFacts(device), optimizers=[OptimizerFacts("SGD", fused=fused, foreach=foreach)])]
    assert in_force("optimizer.foreach", there, facts)
    assert not in_force("optimizer.foreach", not there, facts)


def test_what_is_in_force_is_so_on_every_rank():
    ranks = [Facts(rank, loaders=[LoaderFacts(num_workers=rank, batches_drawn=3)]) for rank in range(2)]
    assert in_force("loader.num_workers", 0, ranks[:1])
    assert not in_force("loader.num_workers", 0, ranks)
    assert not in_force("loader.num_workers", 0, [])


def test_a_loader_that_steps_drew_from_and_that_was_freed_leaves_its_settings_unknown():
    drawn = Facts(0, windows=[Window("untraced", 0, loader_batches=[1, 1])])
    unknown = "unknown: the DataLoader was freed before its settings were read"
    assert without_effect({"loader.num_workers": 2}, [drawn]) == {"loader.num_workers": unknown}
    nothing = without_effect({"loader.num_workers": 2}, [Facts(0, windows=[Window("untraced", 0, loader_batches=[0])])])
    assert nothing == {"loader.num_workers": "the script takes no batch from a DataLoader"}


def test_what_only_a_patch_sets_is_read_back():
    """Eight blocks in units of two each, by the classes of the modules of a unit; then layers, and no units."""
    block = TensorFacts(block="Block", block_bytes=[4096] * 8)
    pairs = FsdpFacts(2, units=4, modules=["Block", "Block"], mesh=[2, 2], offload="CPUOffloadPolicy")
    layers = FsdpFacts(2, units=16, modules=["Linear"], mesh=[4])
    of_pairs, of_layers = (Facts(0, fsdp=[unit], tensors=block) for unit in (pairs, layers))
    settings = {"fsdp.blocks_per_unit": 2, "fsdp.within_hosts": True, "fsdp.offload_policy": True, "wrapper": "fsdp"}
    assert without_effect(settings, [of_pairs]) == {}
    assert without_effect({**settings, "wrapper": "ddp", "fsdp.blocks_per_unit": 4}, [of_layers]) == {
        "fsdp.blocks_per_unit": "units are not whole blocks in the script",
        "fsdp.within_hosts": "it is False in the script",
        "fsdp.offload_policy": "it is False in the script",
        "wrapper": "it is fsdp in the script",
    }
    assert without_effect({"fsdp.blocks_per_unit": 4}, [of_pairs]) == {"fsdp.blocks_per_unit": "it is 2 in the script"}
    assert in_force("wrapper", "ddp", [FACTS])
    assert without_effect({"wrapper": "ddp"}, [Facts(0)]) == {
        "wrapper": "the script wraps no model in DistributedDataParallel or fully_shard"
    }


def test_settings_of_fully_shard_say_where_the_script_uses_its_predecessor():
    flat = Facts(0, fsdp=[FsdpFacts(1, units=2, mesh=[2], reshard_after_forward=True)])
    for name, value in {"fsdp.forward_prefetch": 2, "fsdp.reshard_after_forward": False, "fsdp.no_sync": True}.items():
        assert without_effect({name: value}, [flat]) == {
            name: "dptune changes this for fully_shard (FSDP2) only; the script uses FullyShardedDataParallel (FSDP1)"
        }
    (why,) = without_effect({"fsdp.forward_prefetch": 2}, [Facts(0)]).values()
    assert why == "the script does not call fully_shard"
