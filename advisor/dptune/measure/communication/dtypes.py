"""Element types by the names that NCCL metadata, operator arguments and kernel names give them.

Sources: torch `ScalarType.h` (`Float`, `BFloat16`), the C++ type names that record_shapes writes (`float`,
`c10::BFloat16`), and NCCL's kernel names (`f32`, `bf16`; `float`, `half` before 2.19).
"""

from __future__ import annotations

_NAMES = {
    "float32": ("float", "float32", "f32"),
    "float64": ("double", "float64", "f64"),
    "float16": ("half", "float16", "f16", "c10::half"),
    "bfloat16": ("bfloat16", "bf16", "c10::bfloat16", "__nv_bfloat16"),
    "float8_e4m3fn": ("float8_e4m3fn", "f8e4m3", "c10::float8_e4m3fn"),
    "float8_e5m2": ("float8_e5m2", "f8e5m2", "c10::float8_e5m2"),
    "int64": ("long", "long int", "int64", "i64", "int64_t", "long long"),
    "int32": ("int", "int32", "i32", "int32_t"),
    "int16": ("short", "short int", "int16"),
    "int8": ("char", "signed char", "int8", "i8", "int8_t"),
    "uint8": ("byte", "unsigned char", "uint8", "u8", "uint8_t"),
    "uint32": ("u32", "uint32", "uint32_t", "unsigned int"),
    "uint64": ("u64", "uint64", "uint64_t", "unsigned long"),
    "bool": ("bool",),
    "complex64": ("complexfloat", "c10::complex<float>"),
}
_BY_ALIAS = {alias: name for name, aliases in _NAMES.items() for alias in aliases}
_BYTES = {"float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "float32": 4, "int32": 4, "uint32": 4}
_BYTES |= {"float16": 2, "bfloat16": 2, "int16": 2}


def dtype_of(word: object) -> str | None:
    """The type's name in torch without `torch.`; None for a word that names no type."""
    return _BY_ALIAS.get(word.strip().lower()) if isinstance(word, str) else None


def bytes_of(dtype: str) -> int:
    """Bytes of one element of a type that `dtype_of` names."""
    return _BYTES.get(dtype, 1)
