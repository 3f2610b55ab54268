"""What the picture is drawn from: how each endpoint stood, sampled over a run. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class EndpointSeries:
    """Samples of one endpoint, equally long lists: seconds since the start, requests, requests, share of the blocks."""

    name: str
    at_s: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    queued: list[float] = field(default_factory=list)
    kv: list[float] = field(default_factory=list)

    def add(self, at_s: float, running: float, queued: float, kv: float) -> None:
        """One more sample."""
        self.at_s.append(at_s)
        self.running.append(running)
        self.queued.append(queued)
        self.kv.append(kv)
