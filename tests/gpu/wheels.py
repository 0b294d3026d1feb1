"""What a bare machine lacks, as wheels: downloaded where there is a network, installed where there is none.

    python -m tests.gpu.wheels gpu-wheels                  download for CPython 3.12 on x86-64 Linux
    python -m tests.gpu.wheels gpu-wheels --install SITE   install them and dptune itself into a folder

The machine has torch and numpy, and nvidia-ml-py for clocks and power. dptune is built from the tree that is checked.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_5_x86_64")
# dptune's own dependencies with theirs, and what builds its wheel
NEEDED = ("argcomplete", "isal", "libcst", "msgspec", "platformdirs", "pydantic", "rich", "textual", "hatchling")


def download(folder: Path, python: str = "3.12") -> None:
    """All that NEEDED takes, for that Python, by the project's constraints."""
    folder.mkdir(parents=True, exist_ok=True)
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    limits = ("--only-binary", ":all:", "--python-version", python, "--implementation", "cp", *platforms)
    words = ("download", "-q", "-d", str(folder), "-c", str(ROOT / "constraints.txt"), *limits, *NEEDED)
    _pip(words)


def install(folder: Path, site: Path) -> None:
    """The wheels, then dptune from the tree, into a folder for PYTHONPATH. No network is asked."""
    here = (
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        "--no-compile",
        "--no-cache-dir",
        "--upgrade",
        "--target",
        str(site),
    )
    _pip((*here, *map(str, sorted(folder.glob("*.whl")))))
    _pip((*here, "--no-build-isolation", str(ROOT)), site)


def _pip(words: Sequence[str], site: Path | None = None) -> None:
    env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if site is not None:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, env=env)


def main() -> None:
    """Download, or install."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--install", type=Path, metavar="SITE")
    parser.add_argument("--python", default="3.12", help="version to download for (default: 3.12)")
    args = parser.parse_args()
    if args.install is None:
        download(args.folder, args.python)
        wheels = sorted(args.folder.glob("*.whl"))
        total = sum(path.stat().st_size for path in wheels)
        print(f"{len(wheels)} wheels, {total / 2**20:.1f} MiB in {args.folder}")
    else:
        install(args.folder, args.install)


if __name__ == "__main__":
    main()
