"""Peak memory after a change: predicted from a recording, then counted in a run of the changed script.

    python tests/benchmarks/memory.py                record, predict and count what is missing, then print the table
    python tests/benchmarks/memory.py --table        print the table of what there is
    python tests/benchmarks/memory.py --tracked      print what torch's memory trackers count of the same changes

memory_train.py trains three models on two CPU ranks over gloo. A base is recorded with `dptune profile`; each change is
predicted from that recording alone, and the changed script runs with its tensors counted by what neither torch nor
dptune knows of: a library that counts posix_memalign (count_aligned.c, needs a C compiler). The largest sum of rank 0
is the truth. Nothing is timed, so the machine need not be idle. Raw results stand in results/memory.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from dptune.capture.tracked_memory import TrackedMemoryRequest, track

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "memory.json"
WINDOWS = ("--warmup", "3", "--untraced", "2", "--light", "3", "--detailed", "2", "--no-links")
SEVERAL = ("--nproc-per-node", "2")
MIB = 2**20
KINDS = {
    "batch": ("loader.batch_size",),
    "resharding": ("fsdp.reshard_after_forward",),
    "units": ("fsdp.units",),
    "DDP or `fully_shard`": ("wrapper",),
    "checkpointing": ("memory.checkpointing",),
    "optimizer": ("optimizer.",),
    "dtype": ("model.dtype", "precision.", "fsdp.param_dtype", "fsdp.reduce_dtype"),
}
# By model: the function of memory_train.py that builds it, the class of its blocks, the optimizer; and its blocks.
TRACKED = {
    "transformer": ("transformer", "Attention", "adamw"),
    "conv": ("convolutions", "Residual", "momentum"),
    "mlp": ("wide_layers", "Wide", "adamw"),
}
BLOCKS = {"transformer": 6, "conv": 5, "mlp": 8}
# Bytes of the data set, which the script holds beside the model: 1,024 samples and their labels.
DATA = {
    "transformer": 1024 * 2 * 64 * 8,
    "convolutions": 1024 * (3 * 32 * 32 * 4 + 8),
    "wide_layers": 1024 * (64 * 4 + 8),
}
DTYPES = {"": None, "bf16": "bfloat16", "fp32": "float32"}

# By base: its options; by change: the settings that are predicted, and the options that make them.
BASES: dict[str, tuple[str, ...]] = {
    "transformer, DDP": ("--model", "transformer", "--batch", "8"),
    "convolutions, DDP": ("--model", "conv", "--batch", "16", "--optimizer", "momentum"),
    "wide layers, DDP": ("--model", "mlp", "--batch", "256"),
    "transformer, FSDP": ("--model", "transformer", "--batch", "8", "--strategy", "fsdp"),
    "wide layers, FSDP": ("--model", "mlp", "--batch", "256", "--strategy", "fsdp"),
}
Change = tuple[str, tuple[str, ...]]
CHANGES: dict[str, tuple[Change, ...]] = {
    "transformer, DDP": (
        ("loader.batch_size=16", ("--batch", "16")),
        ("loader.batch_size=32", ("--batch", "32")),
        ("optimizer.name=sgd", ("--optimizer", "sgd")),
        ("wrapper=fsdp", ("--strategy", "fsdp")),
        ("memory.checkpointing=true", ("--checkpoint",)),
        ("model.dtype=bf16", ("--dtype", "bf16")),
        ("wrapper=fsdp loader.batch_size=16", ("--strategy", "fsdp", "--batch", "16")),
    ),
    "convolutions, DDP": (
        ("loader.batch_size=32", ("--batch", "32")),
        ("optimizer.name=adamw", ("--optimizer", "adamw")),
        ("wrapper=fsdp", ("--strategy", "fsdp")),
        ("memory.checkpointing=true", ("--checkpoint",)),
    ),
    "wide layers, DDP": (
        ("loader.batch_size=1024", ("--batch", "1024")),
        ("optimizer.name=sgd", ("--optimizer", "sgd")),
        ("optimizer.name=sgd_momentum", ("--optimizer", "momentum")),
        ("wrapper=fsdp", ("--strategy", "fsdp")),
        ("model.dtype=bf16", ("--dtype", "bf16")),
    ),
    "transformer, FSDP": (
        ("loader.batch_size=16", ("--batch", "16")),
        ("fsdp.reshard_after_forward=false", ("--reshard", "false")),
        ("fsdp.units=3", ("--blocks-per-unit", "3")),
        ("wrapper=ddp", ("--strategy", "ddp")),
        ("optimizer.name=sgd", ("--optimizer", "sgd")),
    ),
    "wide layers, FSDP": (
        ("loader.batch_size=1024", ("--batch", "1024")),
        ("fsdp.reshard_after_forward=false", ("--reshard", "false")),
        ("fsdp.units=3", ("--blocks-per-unit", "4")),
        ("wrapper=ddp", ("--strategy", "ddp")),
    ),
}
# Drawn after the model was frozen; what is above was at hand while it was made.
HELD_OUT_BASE: dict[str, tuple[str, ...]] = {
    "convolutions, FSDP": ("--model", "conv", "--batch", "16", "--optimizer", "momentum", "--strategy", "fsdp"),
    "transformer in bf16, DDP": ("--model", "transformer", "--batch", "8", "--dtype", "bf16"),
    "transformer in bf16, FSDP": (
        *("--model", "transformer", "--batch", "8", "--strategy", "fsdp", "--param-dtype", "bf16"),
    ),
}
HELD_OUT: dict[str, tuple[Change, ...]] = {
    "transformer, DDP": (
        ("loader.batch_size=4", ("--batch", "4")),
        ("precision.autocast=bf16", ("--autocast",)),
        ("optimizer.foreach=true", ("--optimizer", "foreach")),
        ("optimizer.name=sgd_momentum", ("--optimizer", "momentum")),
        ("wrapper=fsdp fsdp.reshard_after_forward=false", ("--strategy", "fsdp", "--reshard", "false")),
        ("wrapper=fsdp memory.checkpointing=true", ("--strategy", "fsdp", "--checkpoint")),
    ),
    "convolutions, DDP": (
        ("model.dtype=bf16", ("--dtype", "bf16")),
        ("precision.autocast=bf16", ("--autocast",)),
    ),
    "transformer, FSDP": (
        ("fsdp.param_dtype=bf16", ("--param-dtype", "bf16")),
        ("fsdp.param_dtype=bf16 fsdp.reduce_dtype=fp32", ("--param-dtype", "bf16", "--reduce-dtype", "fp32")),
        ("fsdp.reduce_dtype=bf16", ("--reduce-dtype", "bf16")),
        ("precision.autocast=bf16", ("--autocast",)),
        ("optimizer.foreach=true", ("--optimizer", "foreach")),
    ),
    "wide layers, DDP": (
        ("precision.autocast=bf16", ("--autocast",)),
        ("model.dtype=fp16", ("--dtype", "fp16")),
        ("optimizer.foreach=true", ("--optimizer", "foreach")),
        ("memory.checkpointing=true loader.batch_size=1024", ("--checkpoint", "--batch", "1024")),
        ("wrapper=fsdp optimizer.name=sgd", ("--strategy", "fsdp", "--optimizer", "sgd")),
    ),
    "wide layers, FSDP": (
        ("memory.checkpointing=true", ("--checkpoint",)),
        ("fsdp.units=4", ("--blocks-per-unit", "3")),
        ("fsdp.param_dtype=bf16", ("--param-dtype", "bf16")),
        ("fsdp.reduce_dtype=bf16", ("--reduce-dtype", "bf16")),
    ),
    "transformer in bf16, DDP": (
        ("loader.batch_size=16", ("--batch", "16")),
        ("optimizer.name=sgd", ("--optimizer", "sgd")),
        ("wrapper=fsdp", ("--strategy", "fsdp")),
    ),
    "transformer in bf16, FSDP": (
        ("fsdp.param_dtype=fp32", ("--param-dtype", "fp32")),
        ("wrapper=ddp", ("--strategy", "ddp")),
        ("fsdp.units=4", ("--blocks-per-unit", "2")),
    ),
    "convolutions, FSDP": (
        ("fsdp.units=3", ("--blocks-per-unit", "3")),
        ("loader.batch_size=32", ("--batch", "32")),
        ("wrapper=ddp", ("--strategy", "ddp")),
        ("fsdp.reshard_after_forward=false", ("--reshard", "false")),
        ("memory.checkpointing=true", ("--checkpoint",)),
    ),
}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def pairs() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Base, settings and options of every comparison, the unchanged bases among them."""
    for base, options in (BASES | HELD_OUT_BASE).items():
        yield base, "", options
        for settings, changed in (*CHANGES.get(base, ()), *HELD_OUT.get(base, ())):
            yield base, settings, (*options, *changed)


def held_out(row: dict[str, Any]) -> bool:
    """Whether the comparison was drawn after the model was frozen."""
    return row["settings"] in dict(HELD_OUT.get(row["base"], ()))


def counter(work: Path) -> Path:
    """The library that counts allocations, compiled."""
    library = work / "count_aligned.so"
    words = ("cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(HERE / "count_aligned.c"), "-ldl", "-lpthread")
    subprocess.run(words, check=True)
    return library


def counted(options: tuple[str, ...], work: Path) -> int:
    """The peak of rank 0, bytes, of a run with these options. A later option replaces an earlier one."""
    target = work / "peak"
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", *SEVERAL)
    words = [*torchrun, str(HERE / "memory_train.py"), *options, "--steps", "4"]
    counting = {"LD_PRELOAD": str(counter(work)), "COUNT_ALIGNED": str(target)}
    subprocess.run(words, check=True, env={**ENVIRONMENT, **counting}, stderr=subprocess.DEVNULL)
    return int(target.with_suffix(".0").read_text())


def recorded(base: str, work: Path) -> Path:
    """The recording of a base."""
    folder = work / base.replace(", ", "-").replace(" ", "-").lower()
    if not (folder / "run.json").exists():
        words = (sys.executable, "-m", "dptune", "profile", "-q", "--run-dir", str(folder), *WINDOWS, *SEVERAL)
        subprocess.run(
            [*words, str(HERE / "memory_train.py"), *(BASES | HELD_OUT_BASE)[base]], check=True, env=ENVIRONMENT
        )
    return folder


def predicted(folder: Path, settings: str) -> dict[str, Any]:
    """What dptune predicts of these settings from the recording."""
    wanted = [word for setting in (settings or "loader.num_workers=0").split() for word in ("--set", setting)]
    words = (sys.executable, "-m", "dptune", "whatif", str(folder), "--no-cache", "--format", "json", *wanted)
    found = json.loads(subprocess.run(words, capture_output=True, check=False, env=ENVIRONMENT).stdout)
    memory: dict[str, Any] = found["memory"][0]
    return memory


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The comparisons as Markdown, with the errors over all."""
    yield "| base | change | predicted MiB | interval | counted MiB | error |"
    yield "|---|---|--:|--:|--:|--:|"
    for row in rows:
        sizes = [row[name] / MIB for name in ("peak_bytes", "low_bytes", "high_bytes", "counted_bytes")]
        error = 100 * (sizes[0] / sizes[3] - 1)
        change = f"`{row['settings']}`" if row["settings"] else "none"
        interval = f"{sizes[1]:.1f}-{sizes[2]:.1f}"
        yield f"| {row['base']} | {change} | {sizes[0]:.1f} | {interval} | {sizes[3]:.1f} | {error:+.1f} % |"
    for name, chosen in (("at hand while the model was made", False), ("held out", True)):
        changed = [row for row in rows if row["settings"] and held_out(row) == chosen]
        errors = [abs(row["peak_bytes"] / row["counted_bytes"] - 1) for row in changed]
        inside = sum(row["low_bytes"] <= row["counted_bytes"] <= row["high_bytes"] for row in changed)
        if changed:
            yield ""
            within = sum(error <= 0.07 for error in errors)
            yield (
                f"{len(changed)} changes {name}: median error {100 * median(errors):.1f} %, largest "
                f"{100 * max(errors):.1f} %, {within} within 7 %, {inside} inside their interval."
            )
    yield from by_kind([row for row in rows if row["settings"]])


def by_kind(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The errors by what changes; a change of several settings counts for each."""
    yield ""
    yield "| what changes | changes | median error | largest | within 7 % | inside |"
    yield "|---|--:|--:|--:|--:|--:|"
    for kind, names in KINDS.items():
        chosen = [row for row in rows if any(word.startswith(names) for word in row["settings"].split())]
        errors = [abs(row["peak_bytes"] / row["counted_bytes"] - 1) for row in chosen]
        inside = sum(row["low_bytes"] <= row["counted_bytes"] <= row["high_bytes"] for row in chosen)
        figures = f"{100 * median(errors):.1f} % | {100 * max(errors):.1f} %"
        yield f"| {kind} | {len(chosen)} | {figures} | {sum(error <= 0.07 for error in errors)} | {inside} |"


def request(base: str, options: tuple[str, ...]) -> TrackedMemoryRequest | None:
    """What torch's trackers are asked of a run with these options; None where its optimizer or dtype is another."""
    if "--autocast" in options:
        return None
    valued = [option for option in options if option != "--checkpoint"]
    given = dict(zip(valued[::2], valued[1::2], strict=True))
    model = given["--model"]
    function, block, optimizer = TRACKED[model]
    if given.get("--optimizer", "adamw") != optimizer or "--dtype" in given:
        return None
    per_unit, sharded = int(given.get("--blocks-per-unit", 1)), given.get("--strategy") == "fsdp"
    return TrackedMemoryRequest(
        f"{HERE / 'memory_train.py'}:{function}",
        batch=int(given["--batch"]),
        mesh=(2,),
        sharded=sharded,
        block=block,
        units=None if per_unit == 1 else BLOCKS[model] // per_unit,
        reshard=json.loads(given.get("--reshard", "true")),
        param_dtype=DTYPES[given.get("--param-dtype", "")],
        reduce_dtype=DTYPES[given.get("--reduce-dtype", "")],
        checkpointing="--checkpoint" in options,
        buckets=not sharded,
        copies=True,
    )


def tracked(rows: list[dict[str, Any]], only: str) -> Iterator[str]:
    """The same changes by torch's trackers, as Markdown. `only`: of this base; empty: of all."""
    counts = {(row["base"], row["settings"]): row["counted_bytes"] for row in rows}
    asked = {}
    for base, settings, options in pairs():
        found = request(base, options)
        if found is not None and only in ("", base):
            asked[base, settings] = found
    by_model: dict[str, list[tuple[str, str]]] = {}
    for key, found in asked.items():
        by_model.setdefault(found.function, []).append(key)
    answers = {}
    for keys in by_model.values():
        answers.update(zip(keys, track([asked[key] for key in keys], sys.executable), strict=True))
    yield "| base | change | tracked MiB, with the data set | counted MiB | error |"
    yield "|---|---|--:|--:|--:|"
    errors = []
    for key in asked:
        peak, counted_bytes = answers[key].peak_bytes, counts[key]
        assert peak is not None, answers[key].why
        size = peak + DATA[asked[key].function.rpartition(":")[2]]
        errors.append(abs(size / counted_bytes - 1))
        change = f"`{key[1]}`" if key[1] else "none"
        error = f"{100 * (size / counted_bytes - 1):+.1f} %"
        yield f"| {key[0]} | {change} | {size / MIB:.1f} | {counted_bytes / MIB:.1f} | {error} |"
    yield ""
    yield f"{len(errors)} peaks: median error {100 * median(errors):.1f} %, largest {100 * max(errors):.1f} %."


def with_row(rows: list[dict[str, Any]], row: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows in the order of `pairs`, this one in place of the one that its comparison had: the others stay."""
    by_pair = {(each["base"], each["settings"]): each for each in (*rows, row)}
    return [by_pair[base, settings] for base, settings, _ in pairs() if (base, settings) in by_pair]


def main() -> None:
    """Record, predict, count, print."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"comparisons": []}
    if "--tracked" in sys.argv:
        only = " ".join(sys.argv[sys.argv.index("--tracked") + 1 :])
        print("\n".join(tracked(known["comparisons"], only)))
        return
    if "--table" not in sys.argv:
        work = Path(os.environ.get("DPTUNE_BENCH", tempfile.gettempdir())) / "dptune-memory"
        work.mkdir(parents=True, exist_ok=True)
        counts = {(row["base"], row["settings"]): row["counted_bytes"] for row in known["comparisons"]}
        rows = known["comparisons"]
        for base, settings, options in pairs():
            prediction = predicted(recorded(base, work), settings)
            peak = counts.get((base, settings)) or counted(options, work)
            kept = ("peak_bytes", "low_bytes", "high_bytes", "phase", "components")
            sizes = {name: prediction.get(name) for name in kept}
            rows = with_row(rows, {"base": base, "settings": settings, "counted_bytes": peak, **sizes})
            print(base, settings or "unchanged", prediction.get("peak_bytes"), peak, file=sys.stderr)
            RESULTS.write_text(json.dumps({"comparisons": rows}, indent=1) + "\n")
        known = {"comparisons": rows}
    print("\n".join(table(known["comparisons"])))


if __name__ == "__main__":
    main()
