"""What oneDNN keeps in a process that computes on a CPU, beside tensors: a primitive for each different call.

Counted around single operators with torch 2.13 (oneDNN 3.12) on a CPU with AMX, one thread and two. Of each different
matrix product in bf16 or fp16 torch and oneDNN keep a descriptor of 258,376 bytes each, which holds 400 variants, and
its code: 501 to 627 KiB together, whatever its sizes. Of a convolution they keep 61 to 87 KiB in 16 bits and 42 to 62
in fp32, of its backward pass 102 to 182 and 73 to 106. In fp32 MKL multiplies and keeps nothing. A cache holds 1,024.
Source: oneDNN, src/cpu/x64/matmul/brgemm_matmul.hpp (`brg_descs_`), which needs instructions for the type.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dptune.measured import CpuPrimitives
from dptune.runfile.facts import DeviceFacts

_KIB = 1024
_PRODUCT = 530 * _KIB  # in 16 bits
_CONVOLUTION = {True: 120 * _KIB, False: 70 * _KIB}  # in 16 bits, in fp32: a forward or a backward pass
_OFF = 0.15
_INSTRUCTIONS = {"bf16": ("avx512_bf16", "amx_bf16"), "fp16": ("avx512_fp16", "amx_fp16")}


@dataclass(frozen=True)
class Primitives:
    """Different products and convolutions, and how many of them are in 16 bits. `fast`: 16-bit types that the CPU has
    instructions for: without them oneDNN keeps smaller descriptors.
    """

    products: int = 0
    half_products: int = 0
    convolutions: int = 0
    half_convolutions: int = 0
    fast: frozenset[str] = frozenset()

    @property
    def bytes(self) -> float:
        """What is kept for all of them."""
        whole = self.convolutions - self.half_convolutions
        of_products = self.half_products * _PRODUCT if self.fast else 0
        return of_products + self.half_convolutions * _CONVOLUTION[True] + whole * _CONVOLUTION[False]

    @property
    def off_bytes(self) -> float:
        """What the bytes may be off by, both ways: all that products keep where the CPU lacks instructions for them."""
        return _OFF * self.bytes if self.fast else self.half_products * _PRODUCT + _OFF * self.bytes

    def computed_in(self, dtype: str) -> Primitives:
        """The same in another type."""
        half = dtype in _INSTRUCTIONS
        fast = self.fast if dtype in self.fast or not half else frozenset[str]()
        products, convolutions = (self.products, self.convolutions) if half else (0, 0)
        return replace(self, half_products=products, half_convolutions=convolutions, fast=fast)


NO_PRIMITIVES = Primitives()


def primitives_of(counted: CpuPrimitives, device: DeviceFacts | None) -> Primitives:
    """Those of a recording."""
    instructions = {*device.instructions} if device else set()
    fast = frozenset(dtype for dtype, names in _INSTRUCTIONS.items() if instructions.intersection(names))
    return Primitives(counted.products, counted.half_products, counted.convolutions, counted.half_convolutions, fast)
