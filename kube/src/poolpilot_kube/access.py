"""Where the API server is and who asks: a pod's ServiceAccount, or a kubeconfig."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_kube.errors import AccessError

if TYPE_CHECKING:
    from collections.abc import Mapping

MOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet puts a pod's token, its CA and its namespace."""


class Access(msgspec.Struct, frozen=True):
    """How requests reach an API server."""

    server: str
    """https://HOST:PORT, without a slash at the end."""
    tls: ssl.SSLContext | None
    """None where the server speaks plain HTTP."""
    token: Callable[[], str | None]
    """The header `authorization` of the next request: tokens are short-lived. May read a file or run a program."""
    namespace: str = "default"
    """Where the credentials are at home."""


def access(kubeconfig: Path | None = None, environ: Mapping[str, str] = os.environ) -> Access:
    """The given kubeconfig, else the pod's ServiceAccount, else $KUBECONFIG or ~/.kube/config. Raises AccessError."""
    if kubeconfig is not None:
        return from_kubeconfig(kubeconfig)
    if "KUBERNETES_SERVICE_HOST" in environ:
        return in_cluster(environ)
    given = environ.get("KUBECONFIG", "")
    path = Path(given) if given else Path.home() / ".kube/config"
    if not given and not path.exists():
        raise AccessError(
            "not in a pod of a cluster, and there is no kubeconfig: neither $KUBECONFIG nor ~/.kube/config"
        )
    return from_kubeconfig(path)


def in_cluster(environ: Mapping[str, str] = os.environ, mount: Path = MOUNT) -> Access:
    """The ServiceAccount of the pod that this runs in. Raises AccessError.

    Not by the package kubernetes: importing it costs every picker process tens of megabytes, for three files.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise AccessError("not in a pod of a cluster: KUBERNETES_SERVICE_HOST is not set")
    tokens, authority = mount / "token", mount / "ca.crt"
    try:
        tls = ssl.create_default_context(cafile=str(authority))
        namespace = (mount / "namespace").read_text().strip()
        tokens.read_text()
    except OSError as error:
        raise AccessError(
            f"the pod has no ServiceAccount token (automountServiceAccountToken?): {error.filename or mount}: {error}"
        ) from None

    def token() -> str:
        # The kubelet writes a new one before the old one ends.
        return f"Bearer {tokens.read_text().strip()}"

    return Access(f"https://{f'[{host}]' if ':' in host else host}:{port}", tls, token, namespace)


def from_kubeconfig(path: Path, context: str | None = None) -> Access:
    """The current or the named context of a kubeconfig, by the official client's loader. Raises AccessError."""
    try:
        from kubernetes import client, config
    except ImportError:
        raise AccessError(
            "a kubeconfig needs the package kubernetes, which a picker in a pod does not: pip install kubernetes"
        ) from None
    loaded = client.Configuration()
    try:
        config.load_kube_config(  # type: ignore[no-untyped-call]
            str(path), context=context, client_configuration=loaded
        )
        _, active = config.list_kube_config_contexts(str(path))  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise AccessError(f"{path}: {error}") from None
    tls = None
    if loaded.host.startswith("https:"):
        try:
            tls = ssl.create_default_context(cafile=loaded.ssl_ca_cert)
            if not loaded.verify_ssl:
                tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
            if loaded.cert_file:
                tls.load_cert_chain(loaded.cert_file, loaded.key_file)
        except (OSError, ssl.SSLError) as error:
            raise AccessError(f"{path}: certificates: {error}") from None

    def token() -> str | None:
        # Runs the refresh of exec plugins and token files, and whatever they raise.
        try:
            value = loaded.get_api_key_with_prefix("BearerToken", alias="authorization")
        except Exception as error:
            raise AccessError(f"{path}: no token: {error}") from error
        return str(value) if value else None

    namespace = active["context"].get("namespace", "default") if active else "default"
    return Access(loaded.host.rstrip("/"), tls, token, namespace)
