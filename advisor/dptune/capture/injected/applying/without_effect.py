"""Settings that were made and have nothing to act on: this machine, or the device that the script computes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_TF32_SINCE = (8, 0)  # compute capability


def settings(asked: Mapping[str, Any], device: str) -> dict[str, str]:
    """Those of the settings that can do nothing here, by the names of knobs, with the reason."""
    found = {name: act(device) for name, act in _REASONS.items() if name in asked}
    if "precision.float32_matmul" in asked:
        found["precision.float32_matmul"] = _matmul(str(asked["precision.float32_matmul"]), device)
    return {name: why for name, why in found.items() if why}


def _pinning(_: str) -> str:
    accelerator = getattr(torch, "accelerator", torch.cuda)  # an older torch has none of that name
    return "" if accelerator.is_available() else "no accelerator present: pinning memory has no effect"


def _cudnn(device: str) -> str:
    if device == "cpu":
        return "no GPU: cuDNN is not used" if not torch.cuda.is_available() else "the script computes on the CPU"
    return "" if torch.backends.cudnn.is_available() else "this torch has no cuDNN"  # type: ignore[no-untyped-call]


def _tf32(device: str) -> str:
    return _cudnn(device) or _lacks_tf32(device)


def _lacks_tf32(device: str) -> str:
    if device != "cuda" or torch.cuda.get_device_capability() >= _TF32_SINCE:
        return ""
    return "this GPU has no TF32"


def _matmul(precision: str, device: str) -> str:
    """On a CPU, oneDNN takes bf16 for `medium` and TF32 for `high`, where the processor has them."""
    if device != "cpu":
        return "" if precision == "highest" else _lacks_tf32(device)
    try:
        has_bf16 = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        has_tf32 = bool(torch.cpu._is_amx_fp16_supported())
    except (AttributeError, RuntimeError):
        return "unknown: this torch does not report whether the CPU supports another precision"
    if precision == "medium" and has_bf16:
        return ""
    if precision == "high" and has_tf32:
        return ""
    if precision == "highest" and (has_bf16 or has_tf32):
        return ""
    return "no GPU, and this CPU supports no other precision"


_REASONS = {
    "loader.pin_memory": _pinning,
    "cudnn.benchmark": _cudnn,
    "cudnn.allow_tf32": _tf32,
}
