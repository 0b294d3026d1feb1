"""A callback of Hugging Face's Trainer: `Trainer(..., callbacks=[ProfileCallback()])` records some steps of `train`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from dptune.capture.injected.api import profile


class ProfileCallback(TrainerCallback):  # type: ignore[misc]  # Any where transformers is not installed
    """Takes the arguments of `dptune.profile`; training continues after the recording."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.profile = profile(*args, **kwargs)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start recording."""
        self.profile.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark the end of an optimizer step."""
        self.profile.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write what was recorded."""
        self.profile.stop()
