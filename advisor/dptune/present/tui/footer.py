"""The line of keys at the bottom."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.reactive import Reactive
from textual.screen import Screen
from textual.widgets import Footer


class Keys(Footer):
    """Textual's footer, made anew only where its keys change: the focus moves more often, and each key is a widget."""

    _shown: tuple[object, ...] | None = None  # those of the screen when they were last made; no keys before that

    def compose(self) -> ComposeResult:
        """A widget for each key; its style is computed once, not again for each width that it could have."""
        self._shown = None
        for key in super().compose():
            self._shown = _keys(self.screen)
            compact = getattr(type(key), "compact", None)
            if isinstance(compact, Reactive):
                key.set_reactive(compact, self.compact)
            yield key

    def bindings_changed(self, screen: Screen[object]) -> None:
        """Keys of this screen may have changed."""
        if screen is not self.screen or self._shown is None or _keys(screen) != self._shown:
            super().bindings_changed(screen)


def _keys(screen: Screen[object]) -> tuple[object, ...]:
    bindings = screen.active_bindings.values()
    return tuple((each.binding, each.enabled, each.tooltip) for each in bindings if each.binding.show)
