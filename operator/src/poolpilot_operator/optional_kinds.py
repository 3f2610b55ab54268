"""Kinds that a cluster may lack, such as those of cert-manager: asked when one is needed, and believed for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from poolpilot_kube.errors import RefusedError
from poolpilot_operator.models import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_kube.api import KubeApi

_KINDS_S: Final = 300.0
"""How long it is believed whether the cluster has an optional kind."""


class OptionalKinds:
    """What was learned of the cluster."""

    def __init__(self, api: KubeApi, clock: Callable[[], float]) -> None:
        self._api = api
        self._clock = clock
        self._known: dict[str, tuple[float, bool]] = {}

    async def there(self, kind: str) -> bool:
        """Whether the cluster has a kind of `KINDS`. Raises KubeError."""
        asked, known = self._known.get(kind, (0.0, None))
        if known is not None and self._clock() - asked < _KINDS_S:
            return known
        resource = KINDS[kind]
        try:
            listed = await self._api.get(f"/apis/{resource.group}/{resource.version}")
            known = f'"{resource.plural}"'.encode() in listed
        except RefusedError as error:
            if error.status not in {403, 404}:
                raise
            known = False
        self._known[kind] = self._clock(), known
        return known
