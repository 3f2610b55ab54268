"""A fact of docs/adr/0008-the-operators-shell.md: the official leader election before an API server that hangs.

By hand, two minutes: `PYTHONPATH=tests/support .venv/bin/python tests/support/election_faults.py`.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import threading
import time
from pathlib import Path

import kubernetes
from kubernetes.leaderelection import leaderelection
from kubernetes.leaderelection.electionconfig import Config
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

from api_faults import fault_proxy, plain_kubeconfig
from poolpilot_lab.control_plane.cluster import control_plane

LONGEST_S = 60.0


async def main() -> None:
    logging.disable(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="election-faults-"))
    began, stopped = threading.Event(), threading.Event()
    async with control_plane(folder) as plane, fault_proxy(plane.kubeconfig) as proxy:
        kubernetes.config.load_kube_config(str(plain_kubeconfig(proxy, folder / "proxy.kubeconfig")))

        def leads() -> None:
            began.set()
            stopped.wait()

        config = Config(
            LeaseLock("lease", "default", "one"),
            lease_duration=15,
            renew_deadline=10,
            retry_period=2,
            onstarted_leading=leads,
            onstopped_leading=stopped.set,
        )
        threading.Thread(target=leaderelection.LeaderElection(config).run, daemon=True).start()
        await asyncio.to_thread(began.wait, 30.0)
        await asyncio.sleep(5.0)
        proxy.held = asyncio.Event()
        held = time.monotonic()
        if await asyncio.to_thread(stopped.wait, LONGEST_S):
            print(f"stopped to lead {time.monotonic() - held:.1f} s after answers ceased")
        else:
            print(f"still leads {LONGEST_S:.0f} s after answers ceased; its Lease is free after 15 s")
        proxy.held.set()


if __name__ == "__main__":
    asyncio.run(main())
