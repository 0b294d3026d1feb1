"""The file, line and name of a function on Python's stack, and whose code it is: the script's, that of an installed
package, torch's or Python's.
"""

from __future__ import annotations

import re
import sys

from dptune.measure.host.enclosing import NOWHERE
from dptune.trace.by_name import once_per_name
from dptune.trace.columns import Columns

# a Python function, as torch.profiler names it
FRAME = re.compile(r"^(?P<file>.+\.py)\((?P<line>\d+)\): (?P<name>.+)$")
_FILE = re.compile(r"^(?P<file>[^<].*\.py)\(\d+\): ")
_INSTALLED = re.compile(r"(?:^|/)(?:site-packages|dist-packages)/|/lib/python\d|^(?:torch|dptune)/")
_PACKAGES = frozenset(
    (
        *("PIL", "accelerate", "albumentations", "apex", "bitsandbytes", "cv2", "datasets", "deepspeed", "dill"),
        *("einops", "evaluate", "filelock", "flash_attn", "fsspec", "gymnasium", "huggingface_hub", "hydra"),
        *("librosa", "lightning", "lightning_fabric", "lightning_utilities", "matplotlib", "mlflow", "monai", "nltk"),
        *("numpy", "omegaconf", "pandas", "peft", "pyarrow", "pydantic", "pytorch_lightning", "ray", "requests"),
        *("safetensors", "scipy", "sentencepiece", "sklearn", "soundfile", "spacy", "tensorboard", "tensorboardX"),
        *("timm", "tokenizers", "torchaudio", "torchdata", "torchmetrics", "torchtext", "torchvision", "tqdm"),
        *("transformers", "triton", "wandb", "xformers", "yaml"),
    )
)


@once_per_name
def is_users(frame: str) -> bool:
    """Whether a frame of Python is neither torch's, Python's nor the recorder's, nor where packages are installed.

    A trace has file names only, cut by the folders of `sys.path`: an installed package counts as the user's own there.
    """
    match = _FILE.match(frame)
    if match is None or _INSTALLED.search(match["file"]):
        return False
    return match["file"].split("/")[0].removesuffix(".py") not in sys.stdlib_module_names


@once_per_name
def is_scripts(frame: str) -> bool:
    """Whether a frame is the script's own: a trace does not tell where packages are installed, so by their names."""
    return is_users(frame) and frame.split("/")[0].split("(")[0].removesuffix(".py") not in _PACKAGES


def library_of(columns: Columns, row: int) -> str:
    """The installed package of a function; empty for those of torch and Python, and what is no function."""
    return "" if row == NOWHERE else library_named(columns.name(row))


@once_per_name
def library_named(name: str) -> str:
    """The same by the name of a function."""
    return name.split("/")[0] if "/" in name and is_users(name) and not is_scripts(name) else ""
