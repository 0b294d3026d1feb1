"""What is recorded of a unit of FullyShardedDataParallel."""

from types import SimpleNamespace

from torch.distributed.fsdp import ShardingStrategy

from dptune.capture.injected.observe.objects import _fsdp1


def group(ranks):
    return SimpleNamespace(size=lambda: ranks)


def unit(strategy, **known):
    return SimpleNamespace(
        module=object(),
        sharding_strategy=strategy,
        process_group=group(4),
        backward_prefetch=None,
        mixed_precision=SimpleNamespace(param_dtype=None, reduce_dtype=None),
        cpu_offload=SimpleNamespace(offload_params=False),
        forward_prefetch=False,
        limit_all_gathers=True,
        **known,
    )


def test_the_mesh_of_hybrid_sharding_has_the_replicas():
    assert _fsdp1(unit(ShardingStrategy.FULL_SHARD), None, "").mesh == [4]
    hybrid = _fsdp1(unit(ShardingStrategy.HYBRID_SHARD, _inter_node_pg=group(2)), None, "")
    assert (hybrid.mesh, hybrid.strategy) == ([2, 4], "HYBRID_SHARD")
