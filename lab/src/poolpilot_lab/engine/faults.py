"""Injected faults: what `--fault` and `POST /fault` understand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

GRAMMAR = (
    "slow=FACTOR, error-rate=SHARE[:STATUS], fail-fast[=STATUS], hang, metrics-hang, restart=SECONDS (at run time only)"
)


class FaultError(ValueError):
    """A fault that cannot be read; the message names it and what is allowed. Exit code 2, or HTTP 400."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults in force."""

    slow: float = 1.0
    """multiplies every step"""
    error_rate: float = 0.0
    """share of inference requests that are answered with `error_status` at once"""
    error_status: int = 500
    hang: bool = False
    """the engine stops stepping: requests are accepted and never answered, running streams stall"""
    metrics_hang: bool = False
    """the metrics page is never answered"""
    restart_s: float | None = None
    """drop every connection now, come back cold after so many seconds; not kept"""

    def specs(self) -> list[str]:
        """The faults in force, in the form in which they are given."""
        specs = []
        if self.slow != 1.0:
            specs.append(f"slow={self.slow:g}")
        if self.error_rate:
            specs.append(f"error-rate={self.error_rate:g}:{self.error_status}")
        if self.hang:
            specs.append("hang")
        if self.metrics_hang:
            specs.append("metrics-hang")
        return specs


def parse_faults(specs: Iterable[str]) -> Faults:
    """Reads a list of faults; raises FaultError for one that is unknown or out of range."""
    faults = Faults()
    for spec in specs:
        name, separator, value = spec.partition("=")
        match name:
            case "slow":
                factor = _number(spec, value)
                if factor <= 0:
                    raise FaultError(f"fault {spec!r}: the factor must be greater than 0")
                faults = replace(faults, slow=factor)
            case "error-rate":
                share, colon, status = value.partition(":")
                rate = _number(spec, share)
                if not 0 <= rate <= 1:
                    raise FaultError(f"fault {spec!r}: the share must be between 0 and 1")
                faults = replace(faults, error_rate=rate, error_status=_status(spec, status) if colon else 500)
            case "fail-fast":
                faults = replace(faults, error_rate=1.0, error_status=_status(spec, value) if separator else 500)
            case "hang" if not separator:
                faults = replace(faults, hang=True)
            case "metrics-hang" if not separator:
                faults = replace(faults, metrics_hang=True)
            case "restart":
                seconds = _number(spec, value)
                if seconds < 0:
                    raise FaultError(f"fault {spec!r}: the seconds must not be negative")
                faults = replace(faults, restart_s=seconds)
            case _:
                raise FaultError(f"fault {spec!r} is unknown; allowed: {GRAMMAR}")
    return faults


def _number(spec: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise FaultError(f"fault {spec!r}: {text!r} is not a number; allowed: {GRAMMAR}") from None


def _status(spec: str, text: str) -> int:
    if not text.isdigit() or not 400 <= int(text) <= 599:
        raise FaultError(f"fault {spec!r}: the status {text!r} must be between 400 and 599")
    return int(text)
