"""Hot reload: a new text replaces the running configuration as a whole, or not at all. Who watches it is elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from poolpilot_picker.config.load import LoadedConfig, load
from poolpilot_picker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_picker.config.registry import Registry


class Offered(msgspec.Struct, frozen=True):
    """What became of an offered text."""

    accepted: bool
    changed: bool
    """False when the text is the one that was offered last."""
    problems: tuple[str, ...] = ()
    """Why it was not accepted."""


class ConfigKeeper:
    """The configuration in force, and what is wrong with a newer one that was refused.

    `apply` puts a configuration into force (builds profiles and swaps them); when it raises ConfigurationError, the
    running one stays.
    """

    def __init__(
        self,
        text: str,
        registry: Registry,
        source: str = "configuration",
        apply: Callable[[LoadedConfig], None] = lambda config: None,
        *,
        endpoints_named: int | None = None,
    ) -> None:
        """Raises ConfigurationError: the first text must be good. `endpoints_named`: see `load`."""
        self._registry = registry
        self._endpoints_named = endpoints_named
        self._source = source
        self._apply = apply
        self._offered = text
        self.current = load(text, registry, source, endpoints_named=endpoints_named)
        self._apply(self.current)
        self.generation = 1
        """Grows with every configuration put into force."""
        self.refused = 0
        """Texts refused since the start."""
        self.problems: tuple[str, ...] = ()
        """Of the text offered last; empty when it is in force."""

    def offer(self, text: str) -> Offered:
        """Puts the text into force, or keeps what is and says why. Never raises ConfigurationError."""
        if text == self._offered:
            return Offered(accepted=not self.problems, changed=False, problems=self.problems)
        self._offered = text
        try:
            config = load(text, self._registry, self._source, endpoints_named=self._endpoints_named)
            self._apply(config)
        except ConfigurationError as error:
            self.problems = error.problems
            self.refused += 1
            return Offered(accepted=False, changed=True, problems=self.problems)
        self.current = config
        self.problems = ()
        self.generation += 1
        return Offered(accepted=True, changed=True)

    @property
    def detail(self) -> str:
        """For a readiness page: empty when the newest text is in force."""
        if not self.problems:
            return ""
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        stays = f"generation {self.generation} stays in force"
        return f"the newest configuration is refused, {stays}: {self.problems[0]}{more}"
