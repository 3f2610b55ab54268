"""The outcome of routing: where, in which order, and why. Handed to the booking and to the receipt."""

from __future__ import annotations

import msgspec

from poolpilot_picker.routing.view import DecisionView
from poolpilot_picker.state.endpoints import Endpoint


class Forecast(msgspec.Struct, frozen=True, gc=False):
    """What is predicted for a request on one endpoint, in ms."""

    wait_ms: float = 0.0
    """Until its prefill starts."""
    prefill_ms: float = 0.0
    adapter_ms: float = 0.0
    step_ms: float = 0.0
    """Time per output token at the batch it would join."""
    output_tokens: float = 0.0
    """Expected, per sequence."""
    uncached_tokens: float = 0.0
    slot_ms: float = 0.0
    """Until one of the engine's GPU slots is free for its adapter."""

    @property
    def ttft_ms(self) -> float:
        """Until the first token."""
        return self.wait_ms + self.slot_ms + self.adapter_ms + self.prefill_ms

    @property
    def finish_ms(self) -> float:
        """Until the last token."""
        return self.ttft_ms + self.output_tokens * self.step_ms


class Decision(msgspec.Struct):
    """Endpoints in order of preference (the first is booked), the forecast for the first, and the view for receipts."""

    endpoints: list[Endpoint]
    forecast: Forecast
    view: DecisionView
    """Holds live arrays: valid until the next event. A receipt copies what it keeps."""

    @property
    def destination(self) -> str:
        """Value of the destination header: `ip:port,ip:port,…`."""
        if len(self.endpoints) == 1:
            return self.endpoints[0].address
        return ",".join(endpoint.address for endpoint in self.endpoints)
