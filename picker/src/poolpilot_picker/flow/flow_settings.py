"""What flow control is told, read off a configuration (`config_use`) or made by a simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from poolpilot_picker.config.flow_plugins import CeilingParameters, StaticLimitParameters
from poolpilot_picker.flow.admission import Admitter
from poolpilot_picker.flow.queue import QueueSettings
from poolpilot_picker.flow.retries import RetrySettings
from poolpilot_picker.flow.room import RoomSettings
from poolpilot_picker.flow.tenants import TenantLimits


class FlowSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of one pool. The defaults hold back what no endpoint can start soon, and are fair to tenants."""

    queue: QueueSettings = QueueSettings()
    room: RoomSettings = RoomSettings()
    retries: RetrySettings = RetrySettings()
    default_tenant: TenantLimits = TenantLimits()
    tenants: Mapping[str, TenantLimits] = {}
    detector: Callable[[Any, float], float] | None = None
    """(pool, now) → saturation; None: how full the endpoints are, which late binding bounds anyway."""
    ceiling: CeilingParameters = StaticLimitParameters()
    admitters: tuple[Admitter, ...] = ()
    drop_sheddable: bool = False
    """Requests of negative priority never wait: a saturated pool sheds them at once."""
    gateway_ms: float = 600_000.0
    """The longest that the data plane waits for an answer: Envoy's `max_message_timeout`."""
