"""rank-NNNNN.facts.json, communication: collectives of a rank, by what wraps its model and by the script itself."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class DdpFacts:
    """One DistributedDataParallel module. Bucket sizes in bytes, in the order they are reduced.

    `bucket_caps_bytes`: the sizes that were requested one by one, none where one is for all; `first_bucket_bytes`: the
    size that torch took for the first one. `gradient_sizes`: bytes of each gradient, by the indices of
    `grad_ready_order`; `gradient_rows`: its first dimension, 0 of those that have no other; `gradient_dtypes`: the
    types that there are among them. `buffer_bytes`: of the buffers that rank 0 broadcasts;
    `unused_parameter_bytes`: of the parameters that got no gradient, of which torch keeps count in some steps where it
    looks for them. `batch_norms`: its layers with running statistics, None where an older dptune recorded the run.
    `ranks`: those of its process group. `through`: the function of a library that makes it, as in CallFacts, empty
    where the script does. `arguments`: those of its call that dptune
    can set and no other field holds, by name. `argument_lines`: `file:line` of each argument of the script's call.
    """

    module: str
    where: str | None = None
    bucket_cap_bytes: int | None = None
    bucket_caps_bytes: list[int] = field(default_factory=list)
    first_bucket_bytes: int | None = None
    bucket_sizes: list[int] = field(default_factory=list)
    rebuilt_bucket_sizes: list[int] = field(default_factory=list)
    grad_ready_order: list[int] = field(default_factory=list)
    gradient_sizes: list[int] = field(default_factory=list)
    gradient_rows: list[int] = field(default_factory=list)
    gradient_dtypes: list[str] = field(default_factory=list)
    gradient_bytes: int | None = None
    parameter_tensors: int | None = None
    backend: str | None = None
    find_unused_parameters: bool | None = None
    static_graph: bool | None = None
    gradient_as_bucket_view: bool | None = None
    broadcast_buffers: bool | None = None
    sync_batch_norm: bool | None = None
    buffer_bytes: int | None = None
    unused_parameter_bytes: int | None = None
    batch_norms: int | None = None
    through: str = ""
    ranks: list[int] = field(default_factory=list)
    comm_hook: str | None = None
    arguments: dict[str, bool | int | float | str | None] = field(default_factory=dict)
    argument_lines: dict[str, str] = field(default_factory=dict)


@dataclass
class FsdpFacts:
    """Modules sharded alike by one line of the script: FullyShardedDataParallel (`version` 1) or fully_shard (2).

    `units` counts them: each gathers its parameters in one all-gather. `mesh` is the shape of the device mesh.
    `reshard_after_forward`: a number where parameters are resharded to that number of ranks. `root`: whether it holds
    the unit that runs first and contains the others; None before the first forward pass. `names` and `gathered_bytes`:
    of each unit with parameters, its path in the model and the bytes of its all-gather, padding left out.
    `forward_prefetch_depth` and `backward_prefetch_depth`: the most units that a unit was set to prefetch.
    `kept_sharded_in_backward`: units that backward passes do not gather. `order` is of version 1 only: the place of
    each unit in the order of forward passes. Of version 2 only: `root`, the depths and the two fields about backward
    passes.
    """

    version: int
    units: int = 0
    where: str | None = None
    modules: list[str] = field(default_factory=list)
    strategy: str | None = None
    mesh: list[int] = field(default_factory=list)
    reshard_after_forward: bool | int | None = None
    parameter_dtype: str | None = None
    reduce_dtype: str | None = None
    offload: str | None = None
    backward_prefetch: str | None = None
    forward_prefetch: bool | None = None
    limit_all_gathers: bool | None = None
    root: bool | None = None
    names: list[str] = field(default_factory=list)
    gathered_bytes: list[int] = field(default_factory=list)
    forward_prefetch_depth: int = 0
    backward_prefetch_depth: int = 0
    kept_sharded_in_backward: int = 0
    reshard_after_backward: bool | None = None
    order: list[int] = field(default_factory=list)


@dataclass
class CallFacts:
    """A collective that the script calls itself, at one line, among some ranks (by their global numbers).

    `host_ns`: time the callers spent in it; `sent_bytes`: max(input, output) of each call, summed; 0 of objects.
    `untraced_calls` and `untraced_ns` are the calls, but asynchronous ones, and their time in steps that no
    profiler slows. `library`: the installed package that calls it at that line, none where the script itself does;
    `through`: the function of an installed package that the script calls there, as `lightning.LightningModule.log`,
    or as `torch.clip_grad_norm_` where torch communicates for a sharded tensor (`function` is then
    `redistribute_local_tensor`). `after_updates`: the calls between an optimizer step and the next backward pass;
    `caller`: the function of the script that the line is in, empty outside of functions; `trained`: its source shows
    that training uses the result.
    """

    function: str
    where: str | None = None
    ranks: list[int] = field(default_factory=list)
    calls: int = 0
    host_ns: int = 0
    untraced_calls: int = 0
    untraced_ns: int = 0
    sent_bytes: int = 0
    library: str = ""
    through: str = ""
    after_updates: int = 0
    caller: str = ""
    trained: bool = False


@dataclass
class ChannelFacts:
    """Channels of NCCL from one rank to another of a communicator, and what carries them.

    `via`: P2P (NVLink or PCIe between devices), SHM (the host's memory), NET/IB, NET/Socket, ...; with `/GDRDMA` the
    network card reads the memory of the GPU itself.
    """

    sender: int
    receiver: int
    via: str
    channels: int = 1


@dataclass
class NcclFacts:
    """Connections in NCCL's log; `networks`: what it found of each kind of network."""

    version: str | None = None
    networks: list[str] = field(default_factory=list)
    channels: list[ChannelFacts] = field(default_factory=list)
