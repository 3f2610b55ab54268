"""Lets new endpoints wait until the gateway that reads our endpoint file knows them. Off the request's way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolpilot_picker.state.endpoints import EndpointSpec

LEAD_MS: Final = 500.0
"""Envoy takes milliseconds to act on a file that was renamed into its directory; on a crowded machine, hundreds. An
endpoint chosen before that is passed over, and where Envoy knows none yet, all that waited for one is answered 503."""


class Lead:
    """Since when the file names each endpoint. Times in ms of the picker's clock."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def known(self, specs: Iterable[EndpointSpec], now: float, named_at: float) -> tuple[list[EndpointSpec], float]:
        """Of `specs`, which the file names from now on, those that the gateway knows; and ms until it knows the next.

        `named_at`: when those were named that were not in the call before. 0 ms: it knows all.
        """
        wanted = list(specs)
        self._since = {spec.address: self._since.get(spec.address, named_at) for spec in wanted}
        ready_at = {address: since + LEAD_MS for address, since in self._since.items()}
        known = [spec for spec in wanted if ready_at[spec.address] <= now]
        return known, min((at - now for at in ready_at.values() if at > now), default=0.0)
