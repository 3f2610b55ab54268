"""The process around the operator, by kopf: signals, credentials of its own client, an orderly end.

kopf watches nothing here: its watches miss deletions and end the process at errors that happen in life
(docs/adr/0008-the-operators-shell.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

import kopf

from poolpilot_kube.names import OUR_GROUP
from poolpilot_operator.admin import admin

if TYPE_CHECKING:
    from poolpilot_operator.app import Operator

log: Final = logging.getLogger(__name__)

_EXIT_S: Final = 25.0
"""Shorter than the 30 seconds that a pod has to end."""


async def serve(operator: Operator, host: str | None, port: int) -> int:
    """Runs until a signal: 0. Returns 1 where the operator fails."""
    async with admin(operator, host, port) as bound:
        log.info("started", extra={"admin_port": bound, "namespaces": operator.options.watched or "all"})
        # Before kopf, which at its end cancels every task that began after it.
        running, ending = asyncio.create_task(operator.run()), asyncio.Event()
        told = asyncio.create_task(ending.wait())
        shell = asyncio.create_task(_shell(operator, ending))
        try:
            await asyncio.wait({running, shell, told}, return_when=asyncio.FIRST_COMPLETED)
            failed = running.done()
            if failed:
                log.error("the operator failed", exc_info=running.exception())
            elif shell.done() and shell.exception() is not None:
                failed = True
                log.error("the shell failed", exc_info=shell.exception())
            return 1 if failed else 0
        finally:
            for task in (running, told) if ending.is_set() else (running, told, shell):
                task.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EXIT_S):
                    await asyncio.gather(shell, running, told, return_exceptions=True)


async def _shell(operator: Operator, ending: asyncio.Event) -> None:
    # It asks the API server once, and gives up if there is no answer: not before we have had one.
    await operator.synced.wait()
    registry = kopf.OperatorRegistry()
    kopf.on.startup(registry=registry)(_settings)
    kopf.on.login(registry=registry)(_login)

    # At a signal kopf gives all that began after it five seconds. Ours ends at once: the Lease is given back.
    async def cleanup(**_: Any) -> None:
        ending.set()

    kopf.on.cleanup(registry=registry)(cleanup)
    watched = operator.options.watched
    await kopf.operator(
        registry=registry,
        standalone=True,
        **({"namespaces": list(watched)} if watched else {"clusterwide": True}),
    )


def _settings(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.persistence.finalizer = f"{OUR_GROUP}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=OUR_GROUP, v1=False)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=OUR_GROUP)
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.networking.request_timeout = 30
    settings.process.ultimate_exiting_timeout = _EXIT_S


def _login(**found: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_service_account(**found) or kopf.login_with_kubeconfig(**found)
