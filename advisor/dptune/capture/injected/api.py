"""`dptune.profile`: record a training loop from its own code, in a script or a notebook."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import ClassVar

import torch
from torch.distributed import distributed_c10d

from dptune.capture.injected.leave.gloo import let_gloo_rest
from dptune.capture.injected.messages import say
from dptune.capture.injected.observe import process_rank
from dptune.capture.injected.observe.observers import observers
from dptune.capture.injected.record.plan import Plan
from dptune.capture.injected.record.recorder import Recorder
from dptune.runfile import json_files, origin, paths
from dptune.runfile.commit import checked_out
from dptune.runfile.record import RunRecord, Schedule
from dptune.runfile.redaction import redacted_command

_VERSION: str = sys.modules["dptune"].__version__  # importing that name would bring everything else along
_FOLDER_KEY = "dptune/folder"
_FOLDER_WAIT = datetime.timedelta(seconds=60)


class profile:  # noqa: N801 - read like torch.profiler.profile
    """Record some steps of a training loop.

        with dptune.profile() as prof:
            for batch in loader:
                train(batch)
                prof.step()

    Call `step()` at the end of every optimizer step, on every rank. Once all windows are full, `prof.done` is True,
    `step()` does nothing, and training continues. The recording of all ranks is in `prof.folder`.

    `run_dir` names a new folder (default: one under dptune-runs/). `warmup`, `untraced`, `light` and `detailed` are
    steps per window; a window also ends after `window_time` seconds (0: no limit). `noise_scale` is the number of
    additional steps that measure gradient norms, which show the largest useful batch. `ranks` are the ranks to record
    (default: all).

    A failure of the recording prints one line to stderr and never raises in the training loop. If `run_dir` is not
    empty, the recording goes to a new folder next to it, NAME-2, and a line on stderr names it.

    Inside `dptune profile train.py` it does nothing: the command records.
    """

    _agreements: ClassVar[int] = 0  # each recording that the ranks agree on has a key of its own

    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None = None,
        *,
        warmup: int = 5,
        untraced: int = 20,
        light: int = 5,
        detailed: int = 3,
        window_time: float = 60.0,
        noise_scale: int = 0,
        ranks: Iterable[int] | None = None,
    ) -> None:
        if min(warmup, untraced, light, detailed, window_time, noise_scale) < 0:
            raise ValueError("dptune.profile: numbers of steps and seconds cannot be negative")
        self._asked = None if run_dir is None else Path(run_dir)
        self._schedule = Schedule(warmup, untraced, light, detailed, float(window_time), noise=noise_scale)
        self._ranks = None if ranks is None else tuple(sorted(set(ranks)))
        self._recorder: Recorder | None = None
        self._plan: Plan | None = None
        self._aside = Plan.from_environment() is not None
        self._open = False
        if not self._aside:
            observers()  # from here on the lines that make things are seen

    @property
    def folder(self) -> Path | None:
        """The run folder; None before the first step, or if nothing is recorded."""
        return None if self._plan is None else self._plan.path

    @property
    def done(self) -> bool:
        """Whether this rank has finished recording."""
        return self._aside or (self._recorder is not None and bool(self._recorder.ended))

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop("script-ended" if kind is None else f"raised {kind.__name__}")

    def start(self) -> None:
        """Start recording; for code that cannot use `with`."""
        self._open = True
        if self._aside:
            say("`dptune profile` records this process; dptune.profile() does nothing")
        else:
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # Kineto writes a line to stderr for each window otherwise
            observers().places.adopt()
            atexit.unregister(let_gloo_rest)
            atexit.register(let_gloo_rest)

    def step(self) -> None:
        """Mark the end of an optimizer step."""
        if not self._open:
            raise RuntimeError("dptune.profile: step() outside of `with dptune.profile() as prof:`")
        if self._aside:
            return
        if self._recorder is None:
            self._plan = Plan(str(self._agreed_folder()), 0, self._schedule, False, self._ranks)
            self._describe(self._plan)
            self._recorder = Recorder(self._plan)
            self._recorder.listen()
        self._recorder.tick()

    def stop(self, how: str = "script-ended") -> None:
        """Finish recording; for code that cannot use `with`."""
        self._open = False
        if self._recorder is not None:
            self._recorder.finish(how)
            self._recorder.dismiss()
        if self._aside or process_rank.rank() != min(self._ranks or (0,)):
            return
        if self._recorder is None or self._plan is None:
            say("nothing was recorded: step() was never called")
            return
        partial = "" if self._recorder.ended == "complete" else ", not all windows are full"
        folder = _short(self._plan.path)
        say(f"recorded in {folder}{partial}", f"next: dptune report {folder}")

    def _agreed_folder(self) -> Path:
        """The folder that rank 0 chooses and shares through the process group's store."""
        folder = (_free(self._asked) if self._asked else _new_folder()).resolve()
        if not process_rank.together():
            return folder
        store = distributed_c10d.PrefixStore(_FOLDER_KEY, distributed_c10d._get_default_store())
        with contextlib.suppress(Exception):
            profile._agreements += 1
            key = str(profile._agreements)
            if process_rank.rank() == 0:
                store.set(key, str(folder))
            else:
                store.wait([key], _FOLDER_WAIT)
                return Path(store.get(key).decode())
        return folder

    def _describe(self, plan: Plan) -> None:
        """run.json, from rank 0, or from the first rank of a host that cannot see it."""
        if process_rank.rank() and (process_rank.local_rank() or (plan.path / paths.RUN_JSON).exists()):
            return
        plan.path.mkdir(parents=True, exist_ok=True)
        record = RunRecord(
            dptune=_VERSION,
            recorded=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            command=redacted_command(["python", *sys.argv]) if sys.argv[:1] != [""] else [],
            python=sys.executable,
            torch=str(torch.__version__),
            working_directory=str(Path.cwd()),
            commit=checked_out(),
            origin=origin.here(),
            launched_by="code",
            world_size=process_rank.world_size(),
            ranks=None if plan.ranks is None else list(plan.ranks),
            schedule=plan.schedule,
            cpu_peak=plan.cpu_peak,
        )
        json_files.write(plan.path / paths.RUN_JSON, record)


def _free(asked: Path) -> Path:
    """The folder asked for, or where it holds something the next that does not: a recording is never overwritten."""
    folder, number = asked, 2
    while folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        folder, number = asked.with_name(f"{asked.name}-{number}"), number + 1
    if folder is not asked and process_rank.rank() == 0:
        say(f"{asked} is not empty: recording into {folder}")
    return folder


def _new_folder() -> Path:
    name = Path(sys.argv[0]).stem if sys.argv and sys.argv[0].endswith(".py") else "notebook"
    folder = paths.new(name)
    return folder.with_name(f"{folder.name}-{os.getpid()}") if folder.exists() else folder


def _short(path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
