"""Traces of any size in Kineto's own text format, for benchmarks: no event repeats another.

A rank of data-parallel training on a GPU: per layer an operator tree on the host, launches, kernels, copies, the flow
arrows between them, collectives with their metadata during backward, memory events, a `ProfilerStep` range a step, and
the header and footer that libkineto writes. Times are consistent: a kernel starts after its launch and after the kernel
before it on its stream.

    python tests/benchmarks/kineto_text.py --megabytes 100 --times offset trace.json.gz
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

Times = Literal["offset", "integer", "fractional"]

EPOCH_NS = 1_759_300_074_000_000_000
OFFSET_NS = 6_322_354_286_863_765  # since baseTimeNanoseconds: what a machine that is up for a week writes
PID, AUTOGRAD, COMPUTE_STREAM, NCCL_STREAM = 4075, 4137, 7, 21
DEVICES, LAYERS, OPS_PER_LAYER = 8, 48, 14
OPERATORS = (
    ("aten::linear", "aten::addmm"),
    ("aten::layer_norm", "aten::native_layer_norm"),
    ("aten::gelu", None),
    ("aten::dropout", "aten::native_dropout"),
    ("aten::matmul", "aten::bmm"),
    ("aten::softmax", "aten::_softmax"),
    ("aten::add_", None),
    ("aten::scaled_dot_product_attention", "aten::_flash_attention_forward"),
)
TEMPLATE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "at::detail::Array<char*, {}> >"
    "(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, {}>)"
)
KERNELS = tuple(
    [f"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize{m}x{n}x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
     for m in (64, 128, 256) for n in (64, 128, 256)]
    + [TEMPLATE.format(n, n) for n in range(2, 30)]
    + [f"triton_poi_fused_add_mul_native_layer_norm_{n}" for n in range(60)]
)  # fmt: skip


class Rank:
    """Writes the events of one rank, step by step."""

    def __init__(self, times: Times, rank: int, world_size: int, seed: int) -> None:
        self.times, self.rank, self.world_size = times, rank, world_size
        self.device = rank % DEVICES
        self.random = random.Random(seed * world_size + rank)
        self.now = EPOCH_NS if times != "offset" else OFFSET_NS
        self.free = {COMPUTE_STREAM: self.now, NCCL_STREAM: self.now}
        self.external = self.correlation = self.flow = 0
        self.allocated = 1 << 30
        self.step = 3

    def us(self, ns: int) -> str:
        """A time as this kind of trace writes it."""
        return str(ns // 1000) if self.times == "integer" else f"{ns // 1000}.{ns % 1000:03d}"

    def complete(self, cat: str, name: str, pid: int, tid: int, start: int, end: int, args: str) -> str:
        """A complete event, as libkineto's ChromeTraceLogger prints it."""
        return (
            f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
            f'    "ts": {self.us(start)}, "dur": {self.us(end - start)},\n    "args": {{\n      {args}\n    }}\n  }}'
        )

    def operator(self, name: str, tid: int, start: int, end: int) -> str:
        """An operator with shapes."""
        self.external += 1
        a, b = self.random.randrange(1, 4096), self.random.randrange(1, 4096)
        shapes = (
            f'"External id": {self.external},"Record function id": 0, "Concrete Inputs": ["", "", ""], '
            f'"Input type": ["c10::BFloat16", "c10::BFloat16", "c10::BFloat16"], '
            f'"Input Strides": [[{a}, 1], [{b}, 1], [{b}, 1]], "Input Dims": [[{b}, {a}], [{a}, 12], [{b}, 12]], '
            f'"Ev Idx": {self.external}'
        )
        return self.complete("cpu_op", name, PID, tid, start, end, shapes)

    def memory(self, tid: int) -> str:
        """An allocation."""
        size = self.random.randrange(512, 1 << 22, 512) * self.random.choice((-1, 1))
        self.allocated += size
        return (
            '  {\n    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",\n'
            f'    "pid": {PID}, "tid": {tid},\n'
            f'    "ts": {self.us(self.now)},\n    "args": {{\n      "Total Reserved": {1 << 34}, '
            f'"Total Allocated": {self.allocated}, "Bytes": {size}, "Addr": {140_000_000_000_000 + abs(size)}, '
            f'"Device Id": {self.device}, "Device Type": 1, "Ev Idx": {self.external}\n    }}\n  }}'
        )

    def flow_arrow(self, phase: str, number: int, pid: int, tid: int, at: int, cat: str = "ac2g") -> str:
        """One end of an arrow."""
        bound = ', "bp": "e"' if phase == "f" else ""
        return (
            f'  {{\n    "ph": "{phase}", "id": {number}, "pid": {pid}, "tid": {tid}, "ts": {self.us(at)},\n'
            f'    "cat": "{cat}", "name": "{cat}"{bound}\n  }}'
        )

    def launched(self, call: str, kind: str, name: str, tid: int, stream: int, took: int, more: str) -> Iterator[str]:
        """A call of the runtime, what it launched, and the arrow between them."""
        self.correlation += 1
        start, end = self.now, self.now + self.random.randrange(3_000, 9_000)
        begin = max(end + self.random.randrange(500, 3_000), self.free[stream])
        self.free[stream] = begin + took
        yield self.complete(
            "cuda_runtime",
            call,
            PID,
            tid,
            start,
            end,
            f'"External id": {self.external},      "cbid": 211, "correlation": {self.correlation}',
        )
        yield self.flow_arrow("s", self.correlation, PID, tid, start)
        yield self.complete(
            kind,
            name,
            self.device,
            stream,
            begin,
            begin + took,
            f'"External id": {self.external},      "device": {self.device}, "context": 1,'
            f'      "stream": {stream}, "correlation": {self.correlation},{more}',
        )
        yield self.flow_arrow("f", self.correlation, self.device, stream, begin)
        self.now = end  # fmt: skip

    def kernel(self, tid: int) -> Iterator[str]:
        """A kernel of the compute stream."""
        draw = self.random
        more = (
            f'      "queued": 0,      "registers per thread": {draw.randrange(16, 255)},      "shared memory": 103808,'
            f'      "blocks per SM": {draw.random():.6f},      "warps per SM": {draw.random():.6f},'
            f'      "grid": [{draw.randrange(1, 999)}, 1, 1],      "block": [128, 1, 1],'
            '      "est. achieved occupancy %": 0'
        )
        took = int(draw.expovariate(1 / 20_000)) + 1_500
        yield from self.launched("cudaLaunchKernel", "kernel", draw.choice(KERNELS), tid, COMPUTE_STREAM, took, more)

    def collective(self, bucket: int) -> Iterator[str]:
        """A gradient bucket's all-reduce."""
        elements = (1 << 18) + 31_000 * bucket
        more = (
            f'      "Collective name": "allreduce", "In msg nelems": {elements}, "Out msg nelems": {elements}, '
            f'"In split size": "[]", "Out split size": "[]", "Global rank start": 0, "Global rank stride": 1, '
            f'"dtype": "BFloat16", "Group size": {self.world_size}, "Process Group Name": "0", '
            f'"Process Group Description": "default_pg",'
            '"Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",      "queued": 0'
        )
        name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        took = 20_000 + elements // 8
        self.free[NCCL_STREAM] = max(self.free[NCCL_STREAM], self.free[COMPUTE_STREAM])
        yield from self.launched("cudaLaunchKernelExC", "kernel", name, AUTOGRAD, NCCL_STREAM, took, more)

    def layer(self, tid: int, backward: bool) -> Iterator[str]:
        """The operators of one layer and what they launch."""
        for _ in range(OPS_PER_LAYER):
            outer, inner = self.random.choice(OPERATORS)
            start = self.now
            inside = []
            self.now += self.random.randrange(2_000, 9_000)
            if inner:
                begun = self.now
                self.now += self.random.randrange(1_000, 4_000)
                inside += list(self.kernel(tid))
                self.now += self.random.randrange(1_000, 3_000)
                inside.append(self.operator(inner, tid, begun, self.now))
                inside.append(self.memory(tid))
            self.now += self.random.randrange(1_000, 5_000)
            name = f"autograd::engine::evaluate_function: {outer[6:]}Backward0" if backward else outer
            yield self.operator(name, tid, start, self.now)
            yield from inside
            self.flow += 1
            yield self.flow_arrow("f" if backward else "s", self.flow, PID, tid, start, "fwdbwd")

    def one_step(self) -> Iterator[str]:
        """One training step."""
        begun = self.now
        size = self.random.randrange(1 << 16, 1 << 20, 4)
        more = f'      "bytes": {size}, "memory bandwidth (GB/s)": 20.000000'
        name = "Memcpy HtoD (Pinned -> Device)"
        yield from self.launched("cudaMemcpyAsync", "gpu_memcpy", name, PID, COMPUTE_STREAM, size // 20, more)
        for _ in range(LAYERS):
            yield from self.layer(PID, backward=False)
        for layer in range(LAYERS):
            yield from self.layer(AUTOGRAD, backward=True)
            if layer % 4 == 3:
                yield from self.collective(layer // 4)
        self.free[COMPUTE_STREAM] = max(self.free.values())
        start = self.now
        for _ in range(12):
            yield from self.kernel(PID)
        yield self.complete(
            "user_annotation", "Optimizer.step#AdamW.step", PID, PID, start, self.now, '"External id": 1'
        )
        self.now = max(self.now, self.free[COMPUTE_STREAM] - 400_000)
        args = f'"External id": {self.external},"Record function id": 0, "Ev Idx": {self.external}'
        yield self.complete("user_annotation", f"ProfilerStep#{self.step}", PID, PID, begun, self.now, args)
        self.now += self.random.randrange(20_000, 200_000)
        self.step += 1

    def header(self) -> str:
        """All before the first event."""
        devices = ", ".join(
            f'\n    {{\n      "id": {at}, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85028372480,\n'
            f'      "computeMajor": 9, "computeMinor": 0, "numSms": 132\n    }}'
            for at in range(DEVICES)
        )
        groups = {
            "pg_name": "0",
            "pg_desc": "default_pg",
            "pg_size": self.world_size,
            "ranks": list(range(self.world_size)),
        }
        info = {
            "backend": "nccl",
            "rank": self.rank,
            "world_size": self.world_size,
            "pg_count": 1,
            "pg_config": [groups],
        }
        base = f'  "baseTimeNanoseconds": {EPOCH_NS},\n' if self.times == "offset" else ""
        return (
            f'{{\n  "schemaVersion": 1,\n  "deviceProperties": [{devices}\n  ],\n'
            f'      "distributedInfo": {json.dumps(info)},\n  "displayTimeUnit": "ms",\n{base}  "traceEvents": [\n'
        )

    def footer(self) -> str:
        """All from the last step on: the names of threads, the end marks."""
        names = "".join(
            f',\n  {{\n    "name": "thread_name", "ph": "M", "ts": {self.us(self.now)}, "pid": {pid}, "tid": {tid},\n'
            f'    "args": {{\n      "name": "{name}"\n    }}\n  }}'
            for pid, tid, name in (
                (PID, PID, f"thread {PID} (python)"),
                (PID, AUTOGRAD, f"thread {AUTOGRAD} (pt_autograd_0)"),
                (self.device, COMPUTE_STREAM, f"stream {COMPUTE_STREAM} "),
                (self.device, NCCL_STREAM, f"stream {NCCL_STREAM} "),
            )
        )
        end = ',\n  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n    "pid": "", "tid": "", '
        end += f'"ts": {self.us(self.now)}\n  }}'
        return f'{names}{end}\n  ],\n  "traceName": "/tmp/trace-{self.rank}.json"\n}}\n'


def write_trace(path: Path, megabytes: float, times: Times, rank: int = 0, world_size: int = 8, seed: int = 0) -> int:
    """Write one rank of about so many megabytes of text, packed if the name ends in .gz; returns the bytes of text."""
    source = Rank(times, rank, world_size, seed)
    size = 0
    with gzip.open(path, "wb", compresslevel=1) if path.suffix == ".gz" else path.open("wb") as file:
        size += file.write(source.header().encode())
        joint = ""
        while size < megabytes * 1e6:
            size += file.write((joint + ",\n".join(source.one_step())).encode())
            joint = ",\n"
        size += file.write(source.footer().encode())
    return size


def main() -> None:
    """Write one trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--megabytes", type=float, default=100, help="of text (default: 100)")
    parser.add_argument("--times", choices=get_args(Times), default="offset", help="how times are written")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    size = write_trace(args.path, args.megabytes, args.times, args.rank, args.world_size, args.seed)
    print(f"{args.path}: {size:,} bytes of text")


if __name__ == "__main__":
    main()
