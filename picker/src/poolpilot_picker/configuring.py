"""The configuration of a running picker: of the start, of the file that is watched, and what people are told of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from poolpilot_picker import compiled
from poolpilot_picker.config.entrypoints import add_user_plugins
from poolpilot_picker.config.reload import ConfigKeeper
from poolpilot_picker.config_use import at_start, config_text
from poolpilot_picker.reloading import ConfigFile
from poolpilot_picker.routing.pipeline import PluginGuard
from poolpilot_picker.routing.registry import default_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from poolpilot_picker.config.load import LoadedConfig

log = logging.getLogger(__name__)

LISTED_ENDPOINTS: Final = 3
"""Named to an Envoy that takes an ordered list: one more than the retries of the configuration we generate."""


class Configuration:
    """What is in force. `apply` puts a newer one into force; where it raises ConfigurationError, the old one stays."""

    def __init__(
        self,
        file: Path | None,
        policy: str,
        apply: Callable[[LoadedConfig, PluginGuard], None],
        *,
        lists: bool = False,
    ) -> None:
        """`lists`: the data plane takes an ordered list of endpoints. Raises ConfigurationError."""
        self.guard = PluginGuard(log=log.warning)
        self.told: Callable[[], None] = lambda: None
        """Called when a newer one was taken or refused."""
        plugins = default_registry()
        add_user_plugins(plugins)
        text, source = config_text(file, policy)
        listed = LISTED_ENDPOINTS if lists else None
        self._apply_to_rooms = apply
        self._keeper = ConfigKeeper(text, plugins, source, self._apply, endpoints_named=listed)
        self._file = ConfigFile(file, self.offer) if file is not None else None
        self._started_with = self.current
        self.at_start = self.current.settings

    def _apply(self, config: LoadedConfig) -> None:
        self._apply_to_rooms(config, self.guard)
        self.current = config
        for warning in config.warnings:
            log.warning(warning)

    def offer(self, text: str) -> bool:
        """Takes a new configuration if it is good; True if it is now in force."""
        offered = self._keeper.offer(text)
        if offered.changed and offered.accepted:
            log.info("configuration reloaded", extra={"profile": self.current.profile.describe()})
            if self.waiting:
                log.warning("takes effect at the next start: %s", ", ".join(self.waiting))
        elif offered.changed:
            for problem in offered.problems:
                log.error("configuration stays as it is: %s", problem)
        if offered.changed:
            self.told()
        return offered.accepted

    def watching(self) -> Coroutine[Any, Any, None] | None:
        """Watches the file, if there is one."""
        return self._file.run() if self._file is not None else None

    @property
    def waiting(self) -> list[str]:
        """Settings that differ from those of the start and are read only then."""
        then, now = at_start(self._started_with), at_start(self.current)
        return [name for name, value in now.items() if then[name] != value]

    @property
    def refusal(self) -> str:
        """Why the newest one is not in force; empty if it is."""
        return self._keeper.detail

    @property
    def detail(self) -> str:
        """For a readiness page: what a person should look at."""
        if self._file is not None and self._file.problem:
            return self._file.problem
        if self._keeper.detail:
            return self._keeper.detail
        return f"takes effect at the next start: {', '.join(self.waiting)}" if self.waiting else ""

    @property
    def reloads(self) -> int:
        """Configurations that were put into force."""
        return self._keeper.generation

    @property
    def refused(self) -> int:
        """Configurations that were not."""
        return self._keeper.refused

    def describe(self) -> dict[str, Any]:
        """The configuration in force."""
        config = self.current
        return {
            "source": config.source,
            "core": compiled.describe(),
            "profile": config.profile.describe(),
            "warnings": list(config.warnings),
            "problems_of_newer_file": list(self._keeper.problems),
            "waiting_for_next_start": self.waiting,
            "settings": msgspec.to_builtins(config.settings),
        }
