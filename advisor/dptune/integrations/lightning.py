"""A Lightning callback: `Trainer(callbacks=[ProfileCallback()])` records some steps of `fit`."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:  # the package by its older name
    from pytorch_lightning import Callback

from dptune.capture.injected.api import profile


class ProfileCallback(Callback):  # type: ignore[misc]  # Any where Lightning is not installed
    """Takes the arguments of `dptune.profile`; training continues after the recording."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.profile = profile(*args, **kwargs)
        self._steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start recording."""
        self._steps = trainer.global_step
        self.profile.start()

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        """Mark a step if the optimizer stepped on this batch."""
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            self.profile.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write what was recorded."""
        self.profile.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write what was recorded."""
        self.profile.stop(f"raised {type(exception).__name__}")
