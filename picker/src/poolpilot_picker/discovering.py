"""Which source of endpoints the options ask for. Beside a request's way: made once, at start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolpilot_picker.sources.discovery import FileDiscovery
from poolpilot_picker.sources.engines import BUILTIN
from poolpilot_picker.sources.pool_discovery import PoolDiscovery

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_picker.app import Options
    from poolpilot_picker.requests import PoolRules
    from poolpilot_picker.sources.discovery import Discovery
    from poolpilot_picker.state.endpoints import EndpointSpec


def discovery_of(
    options: Options,
    apply: Callable[[list[EndpointSpec]], None],
    apply_rules: Callable[[PoolRules], None],
    now: Callable[[], float],
) -> Discovery | None:
    """None where flags list the endpoints; `now` in ms."""
    engines = tuple(BUILTIN)
    if options.endpoints_file is not None:
        return FileDiscovery(options.endpoints_file, apply, engines=engines, default_engine=options.engine, now=now)
    if options.kubernetes is not None:
        return PoolDiscovery(
            options.kubernetes.access,
            apply,
            namespace=options.kubernetes.namespace,
            pool=options.pool,
            members=options.kubernetes.members,
            apply_rules=apply_rules,
            engines=engines,
            default_engine=options.engine,
            now=now,
        )
    return None
