"""The gateway tests' world: the listeners of the shared Envoy, and what one test does with them."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from gateway_client import JSON, Headers, Http1, Response, http2
from gateway_envoy import (
    Gateway,
    Message,
    Variant,
    before_picker,
    behind_picker,
    ext_proc_of,
    forbid_path,
    header_to_metadata,
    local_rate_limit,
    route_of,
    set_metadata,
)
from gateway_picker import LocalPicker, pick
from poolpilot_lab.processes import free_ports
from poolpilot_picker.envoy.settings import (
    BodyMode,
    EnvoySettings,
    FailureMode,
    HostPort,
    PodProtocol,
    PoolCluster,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from gateway_pods import Hit, Pods

SMALL_LIMIT = 65_536


@dataclass
class Site:
    """Everything that runs for one transport."""

    folder: Path
    transport: str
    main: LocalPicker
    second: LocalPicker
    """Sits behind `main` in the variant `two-pickers`, and serves the gRPC pool."""
    gateway: Gateway


def variants(folder: Path, main: int, second: int, pods: Sequence[str]) -> list[Variant]:
    """All listeners of the shared Envoy."""

    def settings(**more: Any) -> EnvoySettings:
        fields: dict[str, Any] = {
            "pickers": (HostPort("127.0.0.1", main),),
            "eds_directory": str(folder / "main"),
            "fail": FailureMode.CLOSE,
            "picker_health_s": 0,  # its loop is ours, and may be busy
            **more,
        }
        return EnvoySettings(**fields)

    def original_dst(**more: Any) -> EnvoySettings:
        return EnvoySettings(
            pickers=(HostPort("127.0.0.1", main),),
            picker_health_s=0,
            cluster=PoolCluster.ORIGINAL_DST,
            retries=1,
            **more,
        )

    def grpc_pool(mode: BodyMode) -> EnvoySettings:
        return settings(
            pickers=(HostPort("127.0.0.1", second),),
            picker_cluster="second",
            eds_directory=str(folder / "second"),
            body_mode=mode,
            pod_protocol=PodProtocol.HTTP2,
        )

    subset = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset")
    modes = {"partial": BodyMode.BUFFERED_PARTIAL, "buffered": BodyMode.BUFFERED, "duplex": BodyMode.FULL_DUPLEX}
    return [
        *(Variant(name, settings(body_mode=mode)) for name, mode in modes.items()),
        *(Variant(f"{name}-original-dst", original_dst(body_mode=mode)) for name, mode in modes.items()),
        *(Variant(f"{name}-grpc", grpc_pool(mode)) for name, mode in modes.items()),
        Variant("partial-small", settings(max_body_bytes=SMALL_LIMIT)),
        Variant("buffered-small", settings(body_mode=BodyMode.BUFFERED, max_body_bytes=SMALL_LIMIT)),
        Variant("open", settings(fail=FailureMode.OPEN)),
        Variant("impatient", settings(route_timeout_s=1.5)),
        Variant("redirecting", settings(), follow_redirects),
        Variant("mirroring", settings(), mirror),
        Variant("per-try", settings(), per_try_timeout),
        Variant("hedging", settings(), hedge),
        *(Variant(f"{name}-connect", settings(body_mode=mode), allow_connect) for name, mode in modes.items()),
        Variant("limited-behind", settings(), behind_picker(local_rate_limit(), forbid_path("/forbidden"))),
        Variant("limited-before", settings(), before_picker(local_rate_limit(), forbid_path("/forbidden"))),
        Variant("routes", settings(), more_routes),
        Variant("no-upgrades", settings(), lambda manager: manager.pop("upgrade_configs")),
        Variant("subset-string", settings(), before_picker(header_to_metadata("x-subset", *subset))),
        Variant("subset-list", settings(), before_picker(subset_list(pods[1:3]))),
        Variant("two-pickers", settings(), lambda manager: second_picker(manager, second)),
        Variant("no-attributes", settings(), without_attributes),
    ]


def follow_redirects(manager: Message) -> None:
    """Envoy follows a pod's 302 by itself."""
    route_of(manager)["route"]["internal_redirect_policy"] = {
        "max_internal_redirects": 1,
        "redirect_response_codes": [302],
    }


def mirror(manager: Message) -> None:
    """Every request is also sent to the pool of the variant `open`, whose answer nobody reads."""
    route_of(manager)["route"]["request_mirror_policies"] = [{"cluster": "open"}]


def per_try_timeout(manager: Message) -> None:
    """A try may take 0.25 s and is not repeated."""
    route_of(manager)["route"]["retry_policy"] = {"retry_on": "connect-failure", "per_try_timeout": "0.25s"}


def hedge(manager: Message) -> None:
    """A try that takes longer than 0.25 s gets company; the first answer wins."""
    route_of(manager)["route"]["retry_policy"].update(per_try_timeout="0.25s")
    route_of(manager)["route"]["hedge_policy"] = {"hedge_on_per_try_timeout": True}


def allow_connect(manager: Message) -> None:
    """CONNECT requests go to the pods as they are."""
    manager["upgrade_configs"].append({"upgrade_type": "CONNECT"})
    route = route_of(manager)
    route["match"] = {"connect_matcher": {}}
    route["route"]["upgrade_configs"] = [{"upgrade_type": "CONNECT"}]


def more_routes(manager: Message) -> None:
    """Routes that never reach a pod."""
    routes = manager["route_config"]["virtual_hosts"][0]["routes"]
    direct = {"match": {"prefix": "/direct"}, "direct_response": {"status": 418, "body": {"inline_string": "no pod"}}}
    moved = {"match": {"prefix": "/moved"}, "redirect": {"path_redirect": "/elsewhere"}}
    routes[0]["match"] = {"prefix": "/v1"}
    routes[0:0] = [direct, moved]


def subset_list(addresses: Sequence[str]) -> Message:
    """A fixed list as subset hint."""
    hint = {"x-gateway-destination-endpoint-subset": list(addresses)}
    return set_metadata("envoy.lb.subset_hint", hint)


def second_picker(manager: Message, port: int) -> None:
    """Another external processor behind the first, asking another picker."""
    first = ext_proc_of(manager)
    again = json.loads(json.dumps(first))
    again["name"] = "envoy.filters.http.ext_proc.second"
    again["typed_config"]["grpc_service"]["envoy_grpc"]["cluster_name"] = "second"
    at = manager["http_filters"].index(first) + 1
    manager["http_filters"].insert(at, again)


def without_attributes(manager: Message) -> None:
    """A gateway that does not ask for attributes."""
    for name in ("request_attributes", "response_attributes"):
        ext_proc_of(manager)["typed_config"].pop(name)


@dataclass
class Done:
    """One exchange as seen from all sides."""

    tid: str
    response: Response
    hits: list[Hit]
    """What reached the pods, in order."""
    messages: list[list[str]]
    """What reached the main picker: a list of messages for each stream."""


class Lane:
    """What one test does with the site: sends requests, then proves that nothing of them is left.

    `learned` and `failing` say what the pickers may have learned at the end; nothing, unless a test says so.
    """

    def __init__(self, site: Site, pods: Pods) -> None:
        self.site = site
        self.pods = pods
        self.picker = site.main
        self.learned: dict[str, int] = {}
        self.failing: set[str] = set()
        self._numbers = count(1)

    def port(self, variant: str) -> int:
        """Where a variant listens."""
        return self.site.gateway.ports[variant]

    def headers(self, *, to: Sequence[str] = (), script: str = "", **more: str) -> tuple[str, Headers]:
        """(tid, headers): `to` steers the picker to addresses, `script` the pods."""
        tid = f"t{next(self._numbers)}"
        steering = pick(*to) if to else {}
        scripted = {"x-pod": script} if script else {}
        return tid, {"x-tid": tid, **steering, **scripted, **more}

    async def request(
        self,
        variant: str,
        body: bytes | Iterable[bytes] | None = b"",
        *,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        to: Sequence[str] = (),
        script: str = "",
        headers: Headers | None = None,
        protocol: str = "http1",
    ) -> Done:
        """One whole exchange; returns when no stream is open at the picker."""
        done = await self.request_without_waiting(
            variant, body, method=method, path=path, to=to, script=script, headers=headers, protocol=protocol
        )
        await self.picker.until_idle()
        return done

    async def request_without_waiting(
        self,
        variant: str,
        body: bytes | Iterable[bytes] | None = b"",
        *,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        to: Sequence[str] = (),
        script: str = "",
        headers: Headers | None = None,
        protocol: str = "http1",
    ) -> Done:
        """One whole exchange; its stream at the picker may still be about to end."""
        tid, sent = self.headers(to=to, script=script, **(headers or {}))
        if protocol == "http2":
            assert isinstance(body, bytes)
            response = await http2(self.port(variant), path, headers=sent, body=body)
        else:
            async with await Http1.connect(self.port(variant)) as connection:
                response = await connection.request(method, path, headers=sent, body=body)
        return Done(tid, response, self.pods.hits(tid), self.picker.messages(tid))

    async def open(
        self,
        variant: str,
        body: bytes = b"",
        *,
        path: str = "/v1/chat/completions",
        to: Sequence[str] = (),
        script: str = "",
        promised: int | None = None,
    ) -> tuple[str, Http1]:
        """Begins an exchange and leaves its end to the test; `promised`: the content-length, if not the body's."""
        tid, sent = self.headers(to=to, script=script)
        connection = await Http1.connect(self.port(variant))
        length = len(body) if promised is None else promised
        connection.send_head("POST", path, {**JSON, **sent, "content-length": str(length)})
        connection.writer.write(body)
        return tid, connection

    def dead_addresses(self, number: int) -> list[str]:
        """Loopback addresses nobody listens on."""
        return [f"127.0.0.1:{port}" for port in free_ports(number)]

    def attempts(self) -> list[int]:
        """How often the router tried, for each exchange of the main picker."""
        return [exchange.attempts for exchange in self.picker.exchanges]

    async def renew(
        self, addresses: Sequence[str], *, observe: bool = False, in_eds: Sequence[str] | None = None
    ) -> None:
        """A new pool of these endpoints at the main picker, known to Envoy too."""
        if self.picker.renew(addresses, observe=observe, in_eds=in_eds):
            await self.envoy_knows(addresses if in_eds is None else in_eds)

    async def envoy_knows(self, addresses: Sequence[str]) -> None:
        """Waits until Envoy has read the observed picker's endpoint file, in every cluster that uses it."""
        deadline = time.monotonic() + 10
        clusters = self.site.gateway.users_of(self.picker.eds.path)
        while True:
            hosts = await self.site.gateway.hosts()
            if all(hosts[cluster] == set(addresses) for cluster in clusters):
                return
            assert time.monotonic() < deadline, f"Envoy still knows {hosts}"
            await asyncio.sleep(0.005)

    async def finish(self) -> None:
        """The proof: no stream, no booking, nothing learned or held against a pod but what the test expects."""
        for picker in (self.site.main, self.site.second):
            await picker.settled()
        learned, failing = self.picker.learned(), self.picker.failing()
        assert learned == self.learned, f"learned {learned} instead of {self.learned}"
        assert failing == self.failing, f"held against {failing} instead of {self.failing}"


def chat(size: int = 0, *, model_last: bool = False, stream: bool = False) -> bytes:
    """A chat completion request of about `size` bytes (at least what the fields need)."""
    fields: dict[str, Any] = {"stream": stream, "messages": [{"role": "user", "content": "PROMPT"}]}
    fields = {**fields, "model": "m"} if model_last else {"model": "m", **fields}
    text = json.dumps(fields)
    filler = ("word " * (size // 5 + 1))[: max(0, size - len(text) + 6)]
    return text.replace("PROMPT", filler).encode()
