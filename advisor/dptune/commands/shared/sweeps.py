"""The sweep of `dptune links` that a run is reported with."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.errors import UsageError
from dptune.runfile.links import LINKS_JSON

if TYPE_CHECKING:
    from dptune.measure.communication.links import Sweep
    from dptune.measured import Measured


def links_option(parser: argparse.ArgumentParser) -> None:
    """Declare it."""
    parser.add_argument(
        "--links",
        type=Path,
        metavar="FILE",
        help="link measurements of `dptune links` (default: links.json in or next to the run folder, if it fits the "
        "run)",
    )


def sweep_of(paths: Sequence[str | Path], links: Path | None) -> Sweep | None:
    """The sweep to report with: `links`, else links.json in a run folder, else the one beside it; None without any.

    Of two among the same ranks it is the later one: `dptune profile` writes into the folder, `dptune links` beside it.

    Raises UsageError where `links` cannot be read; any other that cannot be is passed over, and standard error says so.
    """
    from dptune.measure.communication.links import Sweep
    from dptune.present.visible import visible
    from dptune.runfile.links import read
    from dptune.runfile.recognition import is_run_folder

    if links is not None:
        try:
            return Sweep(read(links), str(links), asked=True)
        except (OSError, ValueError) as error:
            why = (isinstance(error, OSError) and error.strerror) or error
            raise UsageError(f"--links: {links} cannot be read: {why}", "make one with `dptune links`") from None
    folders = [Path(path) for path in paths if "://" not in str(path)]
    run_folders = [folder for folder in folders if is_run_folder(folder)]
    found: list[Sweep] = []
    for place in [*run_folders, *(folder.resolve().parent for folder in run_folders)]:
        try:
            found.append(Sweep(read(place / LINKS_JSON), str(place / LINKS_JSON)))
        except OSError:
            continue
        except ValueError as error:
            print(f"dptune: warning: {visible(f'{place / LINKS_JSON} is left out: {error}')}", file=sys.stderr)
    alike = [sweep for sweep in found if _ranks(sweep) == _ranks(found[0])]
    return max(alike, key=lambda sweep: _moment(sweep.record.measured), default=None)


def _ranks(sweep: Sweep) -> tuple[str, int, list[str]]:
    return sweep.record.backend, sweep.record.world_size, sweep.record.hosts


def _moment(measured: str) -> float:
    """Seconds since the epoch; 0 where the text is no time."""
    try:
        return datetime.fromisoformat(measured).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def check_fit(sweep: Sweep | None, measured: Measured) -> None:
    """Raise UsageError where a sweep that was asked for is not of the links of the run."""
    backend, ranks = measured.known("backend"), measured.known("world_size")
    if sweep is not None and sweep.asked and not sweep.fits(backend, ranks):
        theirs = f"{sweep.record.backend} on {sweep.record.world_size} ranks"
        ours = f"{backend or 'an unknown backend'} on {ranks or 'an unknown number of'} ranks"
        raise UsageError(
            f"--links: {sweep.source} was measured with {theirs}, but the run used {ours}", "leave --links out"
        )
