"""Limits of tenants: tokens per window, sequences at once, a share of the queue, a ceiling on `max_tokens`.

Each tenant has an account of its own: what one does never counts against another.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_picker.errors import BadRequest, TooManyRequests

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolpilot_picker.requests.request import InferenceRequest

ACCOUNTS: Final = 10_000
"""Accounts kept; of those that are at rest, the longest at rest go first."""
DEFAULT_TENANT: Final = "default-flow"
"""Of requests that name none, as llm-d has it."""
TENANT_LIMIT: Final = "rejected-tenant-limit"
"""The dropped reason of a limit of the tenant's own; llm-d has no such limits, and no word for them."""


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one tenant. None: no limit."""

    tokens: float | None = None
    """Prompt and output tokens per `window_ms`; may be overdrawn by one request."""
    window_ms: float = 60_000.0
    active_sequences: int | None = None
    """Sequences (prompts × n) in flight at once; further requests wait."""
    queue_share: float = 1.0
    """Of the queue's requests."""
    max_tokens: int | None = None
    """The most that `max_tokens` of a request may be."""
    weight: float = 1.0
    """Share beside other tenants."""

    def divided(self, by: int) -> TenantLimits:
        """For one of so many pickers that do not share their accounts."""
        return msgspec.structs.replace(
            self,
            tokens=None if self.tokens is None else self.tokens / by,
            active_sequences=None if self.active_sequences is None else math.ceil(self.active_sequences / by),
        )


class TenantAccount:
    """What one tenant has in flight, and what is left of its budget."""

    __slots__ = ("at_ms", "left", "limits", "sequences", "tenant")

    def __init__(self, tenant: str, limits: TenantLimits, now: float) -> None:
        self.tenant = tenant
        self.limits = limits
        self.sequences = 0
        self.left = math.inf if limits.tokens is None else limits.tokens
        self.at_ms = now

    def refill(self, now: float) -> None:
        """Time gives tokens back, up to a window's."""
        tokens = self.limits.tokens
        if tokens is not None and now > self.at_ms:
            self.left = min(tokens, self.left + tokens * (now - self.at_ms) / self.limits.window_ms)
        self.at_ms = now

    def has_room(self, sequences: int) -> bool:
        """So many sequences more may be in flight. Who has none in flight may always begin."""
        most = self.limits.active_sequences
        return most is None or not self.sequences or self.sequences + sequences <= most

    def begin(self, sequences: int, tokens: float) -> None:
        """A request is dispatched."""
        self.sequences += sequences
        self.left -= tokens

    def end(self, sequences: int, difference: float) -> None:
        """It ended, and took `difference` more tokens than was thought."""
        self.sequences -= sequences
        self.left -= difference
        if self.limits.tokens is not None:
            self.left = min(self.left, self.limits.tokens)

    @property
    def at_rest(self) -> bool:
        """Nothing would be lost with it."""
        return not self.sequences and (self.limits.tokens is None or self.left >= self.limits.tokens)


class Tenants:
    """The accounts of one pool."""

    def __init__(self, default: TenantLimits | None = None, named: Mapping[str, TenantLimits] | None = None) -> None:
        self._default = default or TenantLimits()
        self._named = dict(named or {})
        self._accounts: OrderedDict[str, TenantAccount] = OrderedDict()

    def account(self, tenant: str, now: float) -> TenantAccount:
        """The tenant's; made where there is none."""
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = TenantAccount(tenant, self._named.get(tenant, self._default), now)
            if len(self._accounts) > ACCOUNTS:
                self._forget_one(now)
        return account

    def _forget_one(self, now: float) -> None:
        """The first at rest of a few; else the oldest: a client that invents tenants must not take all memory."""
        for tenant, account in list(islice(self._accounts.items(), 8)):
            account.refill(now)
            if account.at_rest:
                del self._accounts[tenant]
                return
            self._accounts.move_to_end(tenant)
        self._accounts.popitem(last=False)

    def replace(self, default: TenantLimits, named: Mapping[str, TenantLimits]) -> None:
        """Other limits, from now on; what is in flight stays counted."""
        self._default, self._named = default, dict(named)
        for tenant, account in self._accounts.items():
            account.limits = self._named.get(tenant, default)
            account.left = min(account.left, math.inf if account.limits.tokens is None else account.limits.tokens)
            if account.limits.tokens is None:
                account.left = math.inf

    def check(self, account: TenantAccount, request: InferenceRequest, now: float) -> None:
        """Raises BadRequest or TooManyRequests where a limit forbids the request."""
        limits = account.limits
        if limits.max_tokens is not None and request.max_tokens is not None and request.max_tokens > limits.max_tokens:
            raise BadRequest(
                f"max_tokens is {request.max_tokens}; this tenant may ask for at most {limits.max_tokens}",
                param="max_tokens",
            )
        account.refill(now)
        if account.left <= 0.0 and limits.tokens is not None:
            wait_ms = (1.0 - account.left) * limits.window_ms / limits.tokens
            raise TooManyRequests(
                f"the tenant has used its {limits.tokens:g} tokens per {limits.window_ms / 1000.0:g} s",
                dropped_reason=TENANT_LIMIT,
                retry_after_s=wait_ms / 1000.0,
            )
