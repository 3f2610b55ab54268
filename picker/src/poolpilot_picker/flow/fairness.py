"""Who is next among the tenants of one priority: fairness policies, by the names of configurations.

A policy gives each waiting tenant a rank; the smallest is next. Ranks change only when a tenant is served or its head
changes, so a heap holds them; least-attained service, whose ranks change with time, is read out by sorting.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from poolpilot_picker.config.flow_plugins import Fairness, ProgramAwareParameters
    from poolpilot_picker.flow.bands import TenantFlow


class FairnessPolicy(Protocol):
    """Ranks tenants."""

    sorted: bool
    """Ranks change by themselves: they are computed when asked for."""

    def rank(self, flow: TenantFlow, now: float) -> float:
        """Smallest first; equal ranks go by arrival of the head."""
        ...

    def joined(self, flow: TenantFlow, lowest: float, now: float) -> None:
        """The tenant waits again, after it did not; `lowest` counter of those that wait already."""
        ...

    def served(self, flow: TenantFlow, cost: float, now: float) -> None:
        """A request of the tenant was dispatched."""
        ...


class VirtualTokenCounter:
    """Least charged so far (VTC, OSDI '24): weights divide the charge. Who comes back starts no lower than the lowest
    of those that wait, so that nobody saves up while away."""

    sorted = False

    def rank(self, flow: TenantFlow, now: float) -> float:
        """The counter."""
        return flow.counter

    def joined(self, flow: TenantFlow, lowest: float, now: float) -> None:
        """Lifts the counter."""
        flow.counter = max(flow.counter, lowest)

    def served(self, flow: TenantFlow, cost: float, now: float) -> None:
        """The counter is moved by the charge itself."""


class GlobalStrict:
    """No isolation: the head that the ordering policy puts first."""

    sorted = False

    def rank(self, flow: TenantFlow, now: float) -> float:
        """The head's place in the order."""
        return flow.head_key()

    def joined(self, flow: TenantFlow, lowest: float, now: float) -> None:
        """Nothing."""

    def served(self, flow: TenantFlow, cost: float, now: float) -> None:
        """Nothing."""


class RoundRobin:
    """One request each."""

    sorted = False

    def __init__(self) -> None:
        self._turn = 0.0

    def rank(self, flow: TenantFlow, now: float) -> float:
        """When it was served last."""
        return flow.turn

    def joined(self, flow: TenantFlow, lowest: float, now: float) -> None:
        """Behind those that were waiting when it came."""
        self._turn += 1.0
        flow.turn = self._turn

    def served(self, flow: TenantFlow, cost: float, now: float) -> None:
        """To the end of the line."""
        self._turn += 1.0
        flow.turn = self._turn


class LeastAttained:
    """Least service attained lately, less for a head that waits long; both as shares of the largest among all.

    llm-d names the weights and the half-life, not the scale: shares are ours.
    """

    sorted = True

    def __init__(self, parameters: ProgramAwareParameters) -> None:
        self._parameters = parameters

    def rank(self, flow: TenantFlow, now: float) -> float:
        """Weighted share of service minus weighted share of waiting."""
        most_service, most_wait = flow.band.extremes(now, self.attained)
        service = self.attained(flow, now) / most_service if most_service else 0.0
        wait = flow.head_wait(now) / most_wait if most_wait else 0.0
        return self._parameters.las_weight_service * service - self._parameters.las_weight_head_wait * wait

    def attained(self, flow: TenantFlow, now: float) -> float:
        """Service with the half-life."""
        halves = (now - flow.attained_ms) / (1000.0 * self._parameters.las_half_life_seconds)
        return flow.attained * math.exp2(-max(0.0, halves))

    def joined(self, flow: TenantFlow, lowest: float, now: float) -> None:
        """Nothing: service is remembered."""

    def served(self, flow: TenantFlow, cost: float, now: float) -> None:
        """Adds to the service."""
        flow.attained = self.attained(flow, now) + cost
        flow.attained_ms = now


def fairness(name: Fairness, program_aware: ProgramAwareParameters) -> FairnessPolicy:
    """The policy of a band."""
    match name:
        case "virtual-token-counter":
            return VirtualTokenCounter()
        case "global-strict":
            return GlobalStrict()
        case "round-robin":
            return RoundRobin()
        case "program-aware":
            return LeastAttained(program_aware)


FAR: Final = 1e15
"""ms: behind every deadline, and still before nothing."""
