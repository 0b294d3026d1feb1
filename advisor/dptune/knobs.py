"""Every setting dptune can name, once.

Rules, predictions, appliers and patches speak of a setting by the name registered here. Variables of the environment
are knobs too, by their name after `env.`: `env.OMP_NUM_THREADS`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from dptune.errors import UsageError

Value = bool | int | float | str | None
ENVIRONMENT = "env."
CANNOT_BE_TOLD = "cannot be told"  # said of a setting that may be in force

_TRUE = ("true", "on", "yes", "1")
_FALSE = ("false", "off", "no", "0")
_NUMBERS = re.compile(r"\d+(\.\d+)?(,\d+(\.\d+)?)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN = "DPTUNE_"
_MOST = 1e9  # of anything: torch computes bytes from some of them, which have to fit 64 bits


@dataclass(frozen=True)
class Knob:
    """One setting of a training run.

    `default` is torch's; where it is None, None may be given: `default` on the command line. `choices` are the words
    that a knob of words takes, none for any; `list_of_numbers` is text like `1,8,25`. `paste` is the text a user puts
    into the script, with `{then}` for the value proposed, `paste_off` what it is for False where that is another one;
    `argument` the keyword of the call there, "" where it is none. `numerics` says whether changing it can change what
    is learned.
    """

    name: str
    kind: type
    unit: str
    default: Value
    numerics: Literal["same", "changes"]
    summary: str
    paste: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    list_of_numbers: bool = False
    argument: str = ""
    paste_off: str = ""

    def parse(self, text: str) -> Value:
        """The value that a word of the command line stands for; raises UsageError where it stands for none."""
        if not _can_be_passed(text):
            raise UsageError(f"{self.name} cannot be '{text}'", "a value holds no NUL byte and no half of a character")
        if text == "default" and self.default is None and not self.list_of_numbers:
            return None
        value = self._read(text)
        if any(number > _MOST for number in self._numbers(value)):
            raise UsageError(f"{self.name} cannot be '{text:.40}'", f"it is more than {_MOST:,.0f}")
        if value is None or (self.choices and value not in self.choices) or not self._is_enough(value):
            raise UsageError(f"{self.name} cannot be '{text:.40}'", f"{self.name} is {self.takes}: {self.summary}")
        return value

    @property
    def takes(self) -> str:
        """What it can be, in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[self.kind]
        words = "numbers with commas between" if self.list_of_numbers else words
        words += f" of {self.unit}" if self.unit else ""
        words += f", at least {self.least:g}" if self.least else ""
        return words + (" or `default`" if self.default is None and self.kind is not str else "")

    def _read(self, text: str) -> Value:
        if self.kind is bool:
            word = text.lower()
            return True if word in _TRUE else False if word in _FALSE else None
        if self.list_of_numbers and not _NUMBERS.fullmatch(text):
            return None
        try:
            return self.kind(text)  # type: ignore[no-any-return]
        except ValueError:
            return None

    def _numbers(self, value: Value) -> list[float]:
        if self.list_of_numbers and isinstance(value, str):
            return [float(one) for one in value.split(",")]
        return [value] if isinstance(value, (int, float)) and value != float("inf") else []

    def _is_enough(self, value: Value) -> bool:
        if self.least is None:
            return True
        numbers = self._numbers(value)
        return bool(numbers) and all(self.least <= one < float("inf") for one in numbers)


def _can_be_passed(text: str) -> bool:
    """Whether a variable of the environment can hold it."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _flag(
    name: str, default: bool, numerics: Literal["same", "changes"], summary: str, paste: str, paste_off: str = ""
) -> Knob:
    argument = name.partition(".")[2] if "(" in paste and f"{name.partition('.')[2]}={{then}}" in paste else ""
    return Knob(name, bool, "", default, numerics, summary, paste, argument=argument, paste_off=paste_off)


_DDP = "DistributedDataParallel(model, ..., {}={{then}})"
_LOADER = "DataLoader(dataset, ..., {}={{then}})"
_ALL = (
    Knob(
        "ddp.bucket_cap_mb",
        float,
        "MiB",
        None,
        "same",
        "how many MiB of gradients DistributedDataParallel sends in one all-reduce",
        _DDP.format("bucket_cap_mb"),
        least=0.001,
        argument="bucket_cap_mb",
    ),
    Knob(
        "ddp.bucket_cap_mb_list",
        str,
        "MiB",
        None,
        "same",
        "the size of each bucket in the order of the backward pass, the last that of all further ones, like 1,8,25",
        "DistributedDataParallel(model, ..., bucket_cap_mb_list=[{then}])",
        least=1e-6,  # a byte
        list_of_numbers=True,
        argument="bucket_cap_mb_list",
    ),
    Knob(
        "ddp.first_bucket_mb",
        float,
        "MiB",
        1.0,
        "same",
        "size of the first bucket, where the others have torch's default",
        "torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = int({then} * 2**20)  # before DistributedDataParallel is made",
        least=0.001,
    ),
    Knob(
        "ddp.comm_hook",
        str,
        "",
        "none",
        "changes",
        "what gradients are turned into before they are exchanged",
        "model.register_comm_hook(...)  # {then}; see torch.distributed.algorithms.ddp_comm_hooks",
        ("none", "fp16", "bf16", "powersgd"),
    ),
    _flag(
        "ddp.find_unused_parameters",
        False,
        "same",
        "look in every step for parameters that got no gradient",
        _DDP.format("find_unused_parameters"),
    ),
    _flag("ddp.static_graph", False, "same", "the same graph in every step, promised", _DDP.format("static_graph")),
    _flag(
        "ddp.gradient_as_bucket_view",
        False,
        "same",
        "gradients lie in the buckets and are not copied there",
        _DDP.format("gradient_as_bucket_view"),
    ),
    _flag(
        "ddp.broadcast_buffers",
        True,
        "changes",
        "send rank 0's buffers, such as batch norm's statistics, before each forward pass",
        _DDP.format("broadcast_buffers"),
    ),
    _flag(
        "ddp.no_sync",
        False,
        "same",
        "all-reduce gradients on the last micro-batch of an accumulated step only",
        "with model.no_sync() if micro < accumulate - 1 else contextlib.nullcontext():\n"
        "    loss = model(x)  # forward and backward both inside\n"
        "    loss.backward()  # micro: from 0 on in each step",
        paste_off="loss.backward()  # outside of model.no_sync()",
    ),
    Knob(
        "loader.num_workers",
        int,
        "processes",
        0,
        "same",
        "how many processes prepare batches beside the training process",
        "DataLoader(dataset, ..., num_workers={then}, persistent_workers=True)",
        least=0,
        argument="num_workers",
    ),
    Knob(
        "loader.prefetch_factor",
        int,
        "batches",
        2,
        "same",
        "how many batches each worker prepares ahead",
        _LOADER.format("prefetch_factor"),
        least=1,
        argument="prefetch_factor",
    ),
    _flag(
        "loader.persistent_workers",
        False,
        "same",
        "keep the workers from one epoch to the next",
        _LOADER.format("persistent_workers"),
    ),
    _flag(
        "loader.pin_memory",
        False,
        "same",
        "put batches into page-locked memory, from which a GPU copies faster and beside other work",
        _LOADER.format("pin_memory"),
    ),
    Knob(
        "loader.batch_size",
        int,
        "samples",
        1,
        "changes",
        "samples of a batch on each rank",
        _LOADER.format("batch_size"),
        least=1,
        argument="batch_size",
    ),
    Knob(
        "precision.float32_matmul",
        str,
        "",
        "highest",
        "changes",
        "precision of float32 matrix products: 'highest' is full fp32, 'high' is TF32 on tensor cores",
        'torch.set_float32_matmul_precision("{then}")',
        ("highest", "high", "medium"),
    ),
    Knob(
        "precision.autocast",
        str,
        "",
        "off",
        "changes",
        "autocast: run precision-tolerant operators in 16 bits",
        "with torch.autocast(device.type, dtype=...):  # {then}; forward pass and loss",
        ("off", "bf16", "fp16"),
    ),
    _flag(
        "memory.checkpointing",
        False,
        "same",
        "activation checkpointing: recompute forward passes in backward instead of keeping their activations",
        "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
        paste_off="block(x)  # instead of checkpoint(block, x)",
    ),
    _flag(
        "cudnn.benchmark",
        False,
        "same",
        "try cuDNN's algorithms for each shape and keep the fastest",
        "torch.backends.cudnn.benchmark = {then}",
    ),
    _flag(
        "cudnn.allow_tf32",
        True,
        "changes",
        "let cuDNN's convolutions use TF32",
        "torch.backends.cudnn.allow_tf32 = {then}",
    ),
    Knob(
        "optimizer.lr",
        float,
        "",
        None,
        "changes",
        "the learning rate that the optimizer is made with: of its first parameter group, the others in proportion",
        "Optimizer(parameters, ..., lr={then})",
        least=1e-12,
        argument="lr",
    ),
    Knob(
        "optimizer.betas",
        str,
        "",
        "0.9,0.999",
        "changes",
        "how much of its two running means an optimizer like Adam keeps in a step",
        "Optimizer(parameters, ..., betas=({then}))",
        least=0,
        list_of_numbers=True,
        argument="betas",
    ),
    Knob(
        "optimizer.eps",
        float,
        "",
        1e-8,
        "changes",
        "what an optimizer like Adam adds to the root that it divides by",
        "Optimizer(parameters, ..., eps={then})",
        least=0,
        argument="eps",
    ),
    _flag(
        "optimizer.fused",
        False,
        "same",
        "update all parameters in one kernel",
        "Optimizer(parameters, ..., fused={then})",
    ),
    _flag(
        "optimizer.foreach",
        False,
        "same",
        "update parameters in lists, not one by one",
        "Optimizer(parameters, ..., foreach={then})",
    ),
)

TAKE_NO_TIME = frozenset({"optimizer.lr", "optimizer.betas", "optimizer.eps"})  # they change what is learned, alone

KNOBS: MappingProxyType[str, Knob] = MappingProxyType({knob.name: knob for knob in _ALL})


def written(value: Value) -> str:
    """A value as `Knob.parse` reads it."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def knob(name: str, beside: Mapping[str, Knob] = MappingProxyType({})) -> Knob:
    """The knob of that name, of all and of those beside; raises UsageError naming the nearest one."""
    named = {**KNOBS, **beside}
    if name in named:
        return named[name]
    variable = name.removeprefix(ENVIRONMENT)
    if variable != name and variable.startswith(_OWN):
        raise UsageError(
            f"{name} is dptune's own: a script is not told by --set what dptune does",
            "set what the script or torch reads, like env.OMP_NUM_THREADS=4",
        )
    if variable != name and _VARIABLE.fullmatch(variable):
        summary = f"the variable {variable} of the environment"
        return Knob(name, str, "", None, "same", summary, f"export {variable}={{then}}")
    short = {full.rpartition(".")[2]: full for full in reversed(named)}
    near = difflib.get_close_matches(name, short, n=1, cutoff=0.77) or difflib.get_close_matches(name, named, n=1)
    raise UsageError(
        f"there is no knob called '{name}'",
        f"did you mean '{short.get(near[0], near[0])}'?" if near else f"knobs: {', '.join(named)}",
    )
