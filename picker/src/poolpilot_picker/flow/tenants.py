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
from poolpilot_picker.requests.request import RequestKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolpilot_picker.requests.request import InferenceRequest

ACCOUNTS: Final = 10_000
"""Accounts kept; of those that are at rest, the longest at rest go first."""
DEFAULT_TENANT: Final = "default-flow"
"""Of requests that name none, as llm-d has it."""
TENANT_LIMIT: Final = "rejected-tenant-limit"
"""The dropped reason of a limit of the tenant's own; llm-d has no such limits, and no word for them."""
UNBOUNDED: Final = (RequestKind.CHAT, RequestKind.RESPONSES)
"""Without a limit of their own these run until the model ends, or its context does; others have a small default."""


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
    clamp: bool = False
    """What is above `max_tokens` is lowered to it, and chats without a limit get it, instead of being refused."""
    weight: float = 1.0
    """Share beside other tenants."""

    @property
    def bound(self) -> bool:
        """Whether a request of the tenant may be refused, changed or held for one of these."""
        return not (self.tokens is None and self.active_sequences is None and self.max_tokens is None)

    def divided(self, by: int) -> TenantLimits:
        """For one of so many pickers that do not share their accounts."""
        return msgspec.structs.replace(
            self,
            tokens=None if self.tokens is None else self.tokens / by,
            active_sequences=None if self.active_sequences is None else math.ceil(self.active_sequences / by),
        )


class TenantAccount:
    """What one tenant has in flight, and what is left of its budget."""

    __slots__ = ("at_ms", "bounded", "left", "limits", "sequences", "tenant")

    def __init__(self, tenant: str, limits: TenantLimits, now: float) -> None:
        self.tenant = tenant
        self.limits = limits
        self.bounded = limits.bound
        """There is something to look at."""
        self.sequences = 0
        self.left = math.inf if limits.tokens is None else limits.tokens
        self.at_ms = now

    def refill(self, now: float) -> None:
        """Time gives tokens back, up to a window's."""
        tokens = self.limits.tokens
        if tokens is not None and now > self.at_ms:
            self.left = min(tokens, self.left + tokens * (now - self.at_ms) / self.limits.window_ms)
        self.at_ms = now

    def lacks(self, sequences: int) -> str:
        """What a request of so many sequences must wait for, in words; empty where it may go. Who has none in flight
        may always begin as to sequences. The tokens are those of the last `refill`."""
        limits = self.limits
        most = limits.active_sequences
        if most is not None and self.sequences and self.sequences + sequences > most:
            return "a limit of its tenant: active sequences"
        return "a limit of its tenant: tokens" if self.refilled_in_ms else ""

    @property
    def refilled_in_ms(self) -> float:
        """How long after the last `refill` there will be tokens again; 0 where there are some."""
        tokens = self.limits.tokens
        if tokens is None or self.left > 0.0:
            return 0.0
        return (1.0 - self.left) * self.limits.window_ms / tokens

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
        """The tenant's, as it is now; made where there is none."""
        account = self._accounts.get(tenant)
        if account is not None:
            if account.bounded:
                account.refill(now)
            return account
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
            account.bounded = account.limits.bound
            account.left = min(account.left, math.inf if account.limits.tokens is None else account.limits.tokens)
            if account.limits.tokens is None:
                account.left = math.inf

    @staticmethod
    def check(account: TenantAccount, request: InferenceRequest) -> None:
        """Raises BadRequest or TooManyRequests where a limit forbids the request; lowers its `max_tokens` where that
        is what the limit does. The tokens are those of the last `refill`."""
        limits = account.limits
        if limits.max_tokens is not None:
            _limit(request, limits.max_tokens, clamp=limits.clamp)
        if wait_ms := account.refilled_in_ms:
            raise TooManyRequests(
                f"the tenant has used its {limits.tokens:g} tokens per {limits.window_ms / 1000.0:g} s",
                dropped_reason=TENANT_LIMIT,
                retry_after_s=wait_ms / 1000.0,
            )


def _limit(request: InferenceRequest, most: int, *, clamp: bool) -> None:
    """Raises BadRequest; or sets `request.ceiling`, for the body to be rewritten."""
    asked = request.max_tokens
    # A body of which only the beginning was seen cannot be rewritten.
    clamp = clamp and request.complete
    more = request.unlimited or (asked is not None and asked > most)
    if more and not clamp:
        raise BadRequest(
            f"max_tokens is {'unlimited' if asked is None else asked}; this tenant may ask for at most {most}",
            param="max_tokens",
        )
    if clamp and (more or (asked is None and request.kind in UNBOUNDED)):
        request.max_tokens = request.ceiling = most
