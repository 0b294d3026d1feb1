"""Dense peaks of devices in TFLOP/s (1e12 FLOP/s), as stated by their vendors: no sparsity, boost clock; and the
bandwidth of their memory.

If a vendor states a tensor-core figure with sparsity only, it is halved. GeForce cards run fp16 at half rate when they
accumulate in fp32, as torch does: that rate counts. fp32 of AMD is that of matrix cores. A device is what torch lists
as a device: one of the two dies of an MI250 or MI250X.

Each row was compared in November 2026 with public tables that quote the same datasheets; none differed by more than
rounding:

| rows | compared with |
|---|---|
| B300, B200, GB200, H100, H200 | https://glennklockwood.com/garden/processors (B300, B200, h100): all types |
| A100, A10, A40, H800 | https://github.com/astroC86/gpu-datasheet |
| A100, A10, L4, L40S, T4, V100 of each form | https://github.com/winston-zhang-orz/gpu-specs: all types |
| A40, MI210, MI250, RTX 4090 | https://hmc-tech.com: all types |
| RTX A6000, MI100 | https://github.com/hahnyuan/LLM-Viewer; reviews of the card |
| H20 | 148 bf16, 296 int8, 74 TF32, 44 fp32, 1 fp64: reviews of the card |
| L40, A30, B100, MI300A, MI300X, MI325X, MI350X, MI355X, MI250X, RTX 5090, RTX 3090 | bf16 of verl and torchtitan |

The bandwidths of B200, H100, H200, H800, A100, A10, A40, L40S, V100, RTX A6000, RTX 3090, MI300X, MI325X and MI355X
were compared with public tables and articles, which round them; the others were not compared with anything.

Not found there, and from the vendor's papers alone: GH200, RTX 6000 Ada, RTX 4080, RTX 3080, RTX 3090 Ti, RTX 3060,
RTX 2080 Ti. The first tables give B200 40 TFLOP/s in fp64 and 80 in fp32, of a brief that NVIDIA's HGX
datasheet has since replaced by 37 and 75.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Peak(NamedTuple):
    """FLOP/s of one device in one element type, and where the vendor states it."""

    flops_per_s: float
    source: str


@dataclass(frozen=True)
class Model:
    """A row: which names of devices it is for, TFLOP/s by element type, and the source of all of them.

    `memory_gb_per_s`: the least and the most memory bandwidth of the devices with such a name.
    """

    expression: str
    tflops: dict[str, float]
    memory_gb_per_s: tuple[float, float]
    source: str

    @cached_property
    def name(self) -> re.Pattern[str]:
        """What is in those names; compiled only where a name is looked up."""
        return re.compile(self.expression, re.IGNORECASE)


_SEVERAL = ("fp32", "tf32", "bf16", "fp16", "fp8")  # that training computes in
_ANOTHER = r"[ -]?(?:Ti|SUPER|D)\b"  # after a name: another card, which has a row of its own or none


def _row(
    name: str, source: str, memory: float | tuple[float, float], *, half: float | None = None, **tflops: float
) -> Model:
    """`memory`: GB/s, the least and the most where one name has several; `half`: of fp16 and bf16 alike."""
    both = {} if half is None else {"fp16": half, "bf16": half}
    pattern = rf"(?<![A-Z0-9]){name}(?![A-Z0-9])(?!{_ANOTHER})"
    least, most = memory if isinstance(memory, tuple) else (memory, memory)
    return Model(pattern, {**tflops, **both}, (least, most), source)


_HOPPER = "NVIDIA H100 datasheet"
_H200 = "NVIDIA H200 datasheet"
_AMPERE = "NVIDIA A100 datasheet"
_BLACKWELL = "NVIDIA Blackwell architecture technical brief, NVIDIA HGX datasheet"
_ADA = "NVIDIA Ada GPU architecture whitepaper"
_GA102 = "NVIDIA Ampere GA102 GPU architecture whitepaper"
_VOLTA = "NVIDIA Tesla V100 datasheet"
_CDNA2 = "AMD Instinct MI200 series datasheet"
_CDNA3 = "AMD Instinct MI300 series datasheet"

# The first row that fits decides.
MODELS = (
    _row("GB200", _BLACKWELL, 8000, fp64=40, fp32=80, tf32=1250, half=2500, fp8=5000, int8=5000),
    _row("B300", _BLACKWELL, 8000, fp64=1.25, fp32=75, tf32=1125, half=2250, fp8=4500),
    _row("B200", _BLACKWELL, 8000, fp64=37, fp32=75, tf32=1100, half=2250, fp8=4500, int8=4500),
    _row("B100", _BLACKWELL, 8000, fp64=30, fp32=60, tf32=900, half=1750, fp8=3500, int8=3500),
    _row("H200 NVL", _H200, 4800, fp64=60, fp32=60, tf32=417.5, half=835.5, fp8=1670.5, int8=1670.5),
    _row("H200", _H200, 4800, fp64=67, fp32=67, tf32=494.5, half=989.5, fp8=1979, int8=1979),
    _row("H800(?! (?:PCIe|NVL))", "NVIDIA H800 datasheet", 3350, fp32=67, tf32=494.5, half=989.5, fp8=1979, int8=1979),
    _row(
        "GH200", "NVIDIA GH200 datasheet", (4000, 4900), fp64=67, fp32=67, tf32=494.5, half=989.5, fp8=1979, int8=1979
    ),
    _row("H20", "NVIDIA H20 datasheet", (4000, 4800), fp64=1, fp32=44, tf32=74, half=148, fp8=296, int8=296),
    _row("H100 PCIe", _HOPPER, (2000, 2048), fp64=51, fp32=51, tf32=378, half=756.5, fp8=1513, int8=1513),
    _row("H100 NVL", _HOPPER, 3938, fp64=60, fp32=60, tf32=417.5, half=835.5, fp8=1670.5, int8=1670.5),
    _row("H100 (?:80GB HBM3|SXM5?)", _HOPPER, 3350, fp64=67, fp32=67, tf32=494.5, half=989.5, fp8=1979, int8=1979),
    _row("(?:A100|A800|PG509)", _AMPERE, (1555, 2039), fp64=19.5, fp32=19.5, tf32=156, half=312, int8=624),
    _row("A30", "NVIDIA A30 datasheet", 933, fp64=10.3, fp32=10.3, tf32=82, half=165, int8=330),
    _row("A40", "NVIDIA A40 datasheet", 696, fp32=37.4, tf32=74.8, half=149.7, int8=299.3),
    _row("A10", "NVIDIA A10 datasheet", 600, fp32=31.2, tf32=62.5, half=125, int8=250),
    _row("L40S", "NVIDIA L40S datasheet", 864, fp32=91.6, tf32=183, half=362, fp8=733, int8=733),
    _row("L40", "NVIDIA L40 datasheet", 864, fp32=90.5, tf32=90.5, half=181, fp8=362, int8=362),
    _row("L4", "NVIDIA L4 datasheet", 300, fp32=30.3, tf32=60, half=121, fp8=242.5, int8=242.5),
    _row("T4", "NVIDIA T4 datasheet", 320, fp32=8.1, fp16=65, int8=130),
    _row("V100S", _VOLTA, 1134, fp64=8.2, fp32=16.4, fp16=130),
    _row("V100-(?:SXM2|DGXS)", f"{_VOLTA}, NVIDIA DGX Station datasheet", 900, fp64=7.8, fp32=15.7, fp16=125),
    _row("V100-PCIE", _VOLTA, 900, fp64=7, fp32=14, fp16=112),
    _row(
        "RTX 5090",
        "NVIDIA RTX Blackwell GPU architecture whitepaper",
        1792,
        fp32=104.8,
        tf32=104.8,
        half=209.5,
        fp8=419,
    ),
    _row("RTX 4090", _ADA, 1008, fp32=82.6, tf32=82.6, half=165.2, fp8=330.3, int8=660.6),
    _row("RTX 4080", _ADA, 717, fp32=48.7, tf32=48.7, half=97.5, fp8=194.9, int8=389.9),
    _row("RTX 6000 Ada", _ADA, 960, fp32=91.1, tf32=182.1, half=364.2, fp8=728.5, int8=728.5),
    _row("RTX A6000", "NVIDIA RTX A6000 datasheet", 768, fp32=38.7, tf32=77.4, half=154.8, int8=309.7),
    _row("RTX 3090 Ti", _GA102, 1008, fp32=40, tf32=40, half=80, int8=320),
    _row("RTX 3090", _GA102, 936, fp32=35.6, tf32=35.6, half=71, int8=284),
    _row("RTX 3080", _GA102, (760, 912), fp32=29.8, tf32=29.8, half=59.5, int8=238),
    _row(
        "RTX 3060",
        f"NVIDIA GeForce RTX 3060 specifications, rates of the {_GA102}",
        (240, 360),
        fp32=12.7,
        tf32=12.7,
        half=25.5,
    ),
    _row("RTX 2080 Ti", "NVIDIA Turing GPU architecture whitepaper", 616, fp32=13.4, fp16=53.8, int8=215.2),
    _row("MI355X", "AMD Instinct MI355X datasheet", 8000, fp64=78.6, fp32=157.3, half=2516.6, fp8=5033.2, int8=5033.2),
    _row("MI350X", "AMD Instinct MI350X datasheet", 8000, fp64=72.1, fp32=144.2, half=2306.9, fp8=4613.7, int8=4613.7),
    _row("MI3(?:00|25)X", _CDNA3, (5300, 6000), fp64=163.4, fp32=163.4, half=1307.4, fp8=2614.9, int8=2614.9),
    _row("MI300A", _CDNA3, 5300, fp64=122.6, fp32=122.6, half=980.6, fp8=1961.2, int8=1961.2),
    _row("MI250X", f"{_CDNA2}, half of the module", 1638, fp64=47.9, fp32=47.9, half=191.5, int8=191.5),
    _row("MI250", f"{_CDNA2}, half of the module", 1638, fp64=45.3, fp32=45.3, half=181, int8=181),
    _row("MI210", _CDNA2, 1638, fp64=45.3, fp32=45.3, half=181, int8=181),
    _row("MI100", "AMD Instinct MI100 datasheet", 1229, fp64=11.5, fp32=46.1, fp16=184.6, bf16=92.3, int8=184.6),
)
# A part of a GPU, also as a virtual one (`A40-48Q`), or one of lower clocks.
_SLICE = re.compile(r"\bMIG\b|\bGRID\b|-[0-9]+[ABCQ]\b|\bLaptop\b|Max-Q", re.IGNORECASE)


def model_of(device_name: str) -> Model | None:
    """The row for what a device calls itself; None for one that is not in the table, and for a part of one."""
    if _SLICE.search(device_name):
        return None
    return next((model for model in MODELS if model.name.search(device_name)), None)


# What torch lists a device as, for each architecture that a kernel's name can show to be no later one.
_ARCHITECTURES = {
    "Blackwell": ("GB200", "B300", "B200", "B100", "RTX 5090"),
    "Hopper": ("H200", "H200 NVL", "H800", "GH200", "H20", "H100 PCIe", "H100 NVL", "H100 80GB HBM3"),
    "gfx908": ("MI100",),
    "gfx90a": ("MI250X", "MI250", "MI210"),
    "gfx942": ("MI300X", "MI300A"),
    "gfx950": ("MI355X", "MI350X"),
}


_OTHERS = (
    *(
        "A100",
        "A30",
        "A40",
        "A10",
        "L40S",
        "L40",
        "L4",
        "T4",
        "V100S",
        "V100-SXM2",
        "V100-PCIE",
        "RTX 4090",
        "RTX 4080",
    ),
    *("RTX 6000 Ada", "RTX A6000", "RTX 3090 Ti", "RTX 3090", "RTX 3080", "RTX 3060", "RTX 2080 Ti"),
)
NAMES = (*(name for names in _ARCHITECTURES.values() for name in names), *_OTHERS)  # one or more for each row
_LONGEST_NAME = 60


def gpu_name(text: str) -> str | None:
    """The name of a GPU with peaks that a text is, with spaces or hyphens as in the table; None where it is none."""
    spelled = (text, re.sub(r"[-_]", " ", text), re.sub(r"[ _]", "-", text))
    readable = text.isprintable() and len(text) <= _LONGEST_NAME
    return next((name for name in spelled if model_of(name)), None) if readable else None


def not_a_gpu(text: str) -> tuple[str, str]:
    """What is wrong with a name that stands for no GPU with known peaks, and a hint."""
    near = ", ".join(near_names(text))
    hint = f"did you mean {near}?" if near else "name it as torch.cuda.get_device_name() does"
    return f"'{text:.40}' is not a GPU with known peaks", hint


def near_names(text: str) -> list[str]:
    """Up to four names that a text may mean, of GPUs with peaks."""
    if _SLICE.search(text):
        return []
    short = {re.sub(r"[^A-Z0-9]", "", name.upper()): name for name in NAMES}
    meant = re.sub(r"[^A-Z0-9]|NVIDIA|AMD|TESLA|GEFORCE|INSTINCT", "", text[:_LONGEST_NAME].upper())
    begun = [name for key, name in short.items() if len(meant) > 1 and (key.startswith(meant) or meant.startswith(key))]
    return begun[:4] or [short[key] for key in difflib.get_close_matches(meant, short, n=4)]


def architecture_has(architecture: str, device_name: str) -> bool:
    """Whether a device is of an architecture that a kernel's name can show to be no later one."""
    rows = [model_of(name) for name in _ARCHITECTURES.get(architecture, ())]
    return model_of(device_name) in rows


def peaks_of_architecture(name: str, dtype: str) -> list[Peak]:
    """The peaks of the devices of an architecture in an element type, ascending."""
    found = [peak(device_name, dtype) for device_name in _ARCHITECTURES.get(name, ())]
    return sorted((each for each in found if each is not None), key=lambda each: each.flops_per_s)


def peak(device_name: str, dtype: str) -> Peak | None:
    """The dense peak of a device in an element type; None where the table has none."""
    model = model_of(device_name)
    tflops = model.tflops.get(dtype) if model else None
    return None if model is None or tflops is None else Peak(tflops * 1e12, model.source)


def most_times_as_fast(device_name: str, other_name: str) -> float | None:
    """The largest ratio of the other device's peaks to this one's, of FLOP/s and of memory bandwidth: what no kernel
    gains more than. None where a device is not in the table.
    """
    model, other = model_of(device_name), model_of(other_name)
    if model is None or other is None:
        return None
    ratios = [
        other.tflops[dtype] / model.tflops[dtype] for dtype in _SEVERAL if dtype in model.tflops.keys() & other.tflops
    ]
    return max(other.memory_gb_per_s[1] / model.memory_gb_per_s[0], *ratios)


def differing(device_names: Iterable[str]) -> list[str]:
    """One name of each kind of device, by peaks; [] where all have the same."""
    models = {name: model_of(name) for name in sorted(device_names)}
    found = {tuple(sorted(model.tflops.items())) if model else name: name for name, model in models.items()}
    return list(found.values()) if len(found) > 1 else []


def common(device_names: Iterable[str], dtypes: Iterable[str]) -> dict[str, float]:
    """FLOP/s by element type, where all of these devices have the same."""
    names = set(device_names)
    if not names or differing(names):
        return {}
    found = {dtype: peak(min(names), dtype) for dtype in dtypes}
    return {dtype: known.flops_per_s for dtype, known in found.items() if known is not None}
