"""`python -m poolpilot_lab.kubelet`: a node of a local control plane, inside a network namespace made for it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import math
import signal
import ssl
import sys
from pathlib import Path
from urllib.parse import urlsplit

from poolpilot_kube.access import access
from poolpilot_kube.api import KubeApi
from poolpilot_kube.errors import AccessError
from poolpilot_lab.control_plane.api import Api
from poolpilot_lab.kubelet import network
from poolpilot_lab.kubelet.container import Pace
from poolpilot_lab.kubelet.images import ImageError, load_images
from poolpilot_lab.kubelet.kubelet import Kubelet, Store
from poolpilot_lab.kubelet.node import ALLOCATABLE
from poolpilot_lab.kubelet.pod import Node


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser(
        prog="python -m poolpilot_lab.kubelet",
        description="A Kubernetes node that runs pods as local processes.",
    )
    made.add_argument("--kubeconfig", type=Path, required=True, help="of a user who may do what a node does")
    made.add_argument("--folder", type=Path, required=True, help="volumes, roots and logs of pods")
    made.add_argument("--images", type=Path, required=True, help="JSON file: image to local command")
    made.add_argument("--tls-cert", type=Path, required=True, help="certificate chain for kubectl logs")
    made.add_argument("--tls-key", type=Path, required=True, help="its private key")
    made.add_argument("--node-name", default="node-1", help="default: node-1")
    made.add_argument("--version-of-node", default="v1.37.2", help="what the node says of itself (default: v1.37.2)")
    made.add_argument(
        "--most-probe-period",
        type=float,
        default=math.inf,
        metavar="S",
        help="probe at least so often",
    )
    made.add_argument(
        "--software", type=Path, action="append", default=[], help="a folder that no volume may hide; repeatable"
    )
    return made


async def run(args: argparse.Namespace) -> None:
    """Until SIGTERM or SIGINT."""
    granted = access(args.kubeconfig)
    if granted.tls is None:
        raise AccessError(f"{args.kubeconfig}: the API server must speak TLS")
    images = load_images(args.images)
    server = urlsplit(granted.server)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(args.tls_cert, args.tls_key)

    def node(store: Store) -> Node:
        return Node(
            name=args.node_name,
            host=network.NODE,
            api_server=(str(server.hostname), server.port or 443),
            folder=args.folder.resolve(),
            images=images,
            sources=store,
            pace=Pace(most_period_s=args.most_probe_period),
            allocatable=ALLOCATABLE,
            software=tuple(args.software),
        )

    async with KubeApi(granted, user_agent="kubelet") as kube, Api(granted.server, granted.tls) as api:
        running = asyncio.create_task(Kubelet(kube, api, node, args.version_of_node).run(context, _ready))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await running


def _ready() -> None:
    print("ready", flush=True)


def main() -> None:
    """Exit codes: 0 stopped by a signal, 1 could not start."""
    args = parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        asyncio.run(run(args))
    except (AccessError, ImageError, OSError) as error:
        sys.exit(f"kubelet: {error}")


if __name__ == "__main__":
    main()
