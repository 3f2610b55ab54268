"""What can go wrong between us and an API server."""

from __future__ import annotations


class KubeError(Exception):
    """The base; its text says what was asked and what came of it."""


class AccessError(KubeError):
    """There are no usable credentials; nothing was asked."""


class UnreachableError(KubeError):
    """No answer, or one that broke off."""


class RefusedError(KubeError):
    """The server answered with a status that is not 2xx, or with an error in the middle of a watch."""

    def __init__(self, what: str, status: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{what}: {status}: {message}")
        self.status = status
        self.retry_after_s = retry_after_s
        """The server's own wish, seconds."""

    @property
    def expired(self) -> bool:
        """The resourceVersion cannot be resumed: it is compacted (410), or from the future of a restored etcd (504)."""
        return self.status == 410 or (self.status == 504 and "resource version" in str(self).lower())
