"""The reference's integration cases, played: pods of a case behind one exchange, messages of full duplex."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf import json_format
from prometheus_client import CollectorRegistry

from poolpilot_picker.config.load import load
from poolpilot_picker.extproc.codec import dispatch, encode
from poolpilot_picker.extproc.exchange import Exchange, ExchangeSettings
from poolpilot_picker.flow.pool import Pool, PoolSettings
from poolpilot_picker.instruments.metrics import PickerMetrics
from poolpilot_picker.requests import ModelTargets, PoolRules
from poolpilot_picker.routing.registry import build_profile, default_registry
from poolpilot_picker.state.endpoints import EndpointSpec
from poolpilot_picker.state.samples import EngineSample

DESTINATION = "x-gateway-destination-endpoint"


def profile(scorers: dict[str, int]) -> str:
    """An EndpointPickerConfig of these scorers and weights, as llm-d's users write it."""
    lines = ["apiVersion: inference.networking.x-k8s.io/v1alpha1", "kind: EndpointPickerConfig", "plugins:"]
    lines += [f"- type: {name}" for name in (*scorers, "max-score-picker")]
    lines += ["schedulingProfiles:", "- name: default", "  plugins:"]
    for name, weight in scorers.items():
        lines += [f"  - pluginRef: {name}", f"    weight: {weight}"]
    return "\n".join([*lines, "  - pluginRef: max-score-picker", ""])


def rules(setup: dict[str, Any]) -> PoolRules:
    """What the set-up's InferenceObjectives and InferenceModelRewrites say."""
    exact = {model: ModelTargets("rewrite", [(target, 1)]) for model, target in setup["rewrites"].items()}
    return PoolRules(priorities=setup["objectives"], exact=exact)


class Bench:
    """Pods of a case behind one exchange, spoken to in messages of full duplex."""

    def __init__(self, setup: dict[str, Any], case: dict[str, Any], scorers: dict[str, int]) -> None:
        self.metrics = PickerMetrics(CollectorRegistry())
        policy = build_profile(load(profile(scorers), default_registry()))
        self.pool = Pool(setup["pool"]["name"], policy, random.Random(1), PoolSettings(observe_share=1.0))
        pods = case.get("pods", [])
        self.pool.apply_endpoints(
            EndpointSpec(host=f"192.168.1.{pod['index'] + 1}", port=setup["pool"]["target_port"]) for pod in pods
        )
        for endpoint, pod in zip(self.pool.table.wanted(), pods, strict=True):
            sample = EngineSample(
                taken_ms=1.0,
                running=0.0,
                waiting=float(pod["waiting"]),
                kv_usage=float(pod["kv"]),
                active_adapters=tuple(pod.get("models", ())),
                # The recorded pods tell no adapter slots: there is never room.
                max_adapters=0,
            )
            self.pool.apply_sample(endpoint, sample, 1.0)
        settings = ExchangeSettings(rules=rules(setup))
        self._exchange = Exchange(self.pool, self.metrics, settings, clock=lambda: 0.0)
        self._metadata = {"envoy.lb.subset_hint": {f"{DESTINATION}-subset": case["subset"]}} if "subset" in case else {}

    def headers(self, kind: str, fields: dict[str, str]) -> list[ext_proc.ProcessingResponse]:
        """A message of headers."""
        message = self._message()
        part = getattr(message, kind)
        for key, value in fields.items():
            part.headers.headers.append(base_pb2.HeaderValue(key=key, raw_value=value.encode()))
        return self.send(message)

    def body(self, kind: str, chunks: list[bytes]) -> list[ext_proc.ProcessingResponse]:
        """Messages of a body, the last one with the end of the stream."""
        replies = []
        for index, chunk in enumerate(chunks):
            message = self._message()
            part = getattr(message, kind)
            part.body = chunk
            part.end_of_stream = index == len(chunks) - 1
            replies += self.send(message)
        return replies

    def close(self) -> None:
        """The stream ends."""
        self._exchange.closed(now=3.0)
        assert not self.pool.table.requests.any()

    def _message(self) -> ext_proc.ProcessingRequest:
        message = ext_proc.ProcessingRequest()
        json_format.ParseDict({"metadata_context": {"filter_metadata": self._metadata}}, message)
        return message

    def send(self, message: ext_proc.ProcessingRequest) -> list[ext_proc.ProcessingResponse]:
        return [encode(reply) for reply in dispatch(self._exchange, message, 2.0)]


def body_of(setup: dict[str, Any], request: dict[str, Any]) -> bytes:
    """The body that the vectors' template means."""
    if "raw_body" in request:
        return str(request["raw_body"]).encode()
    text = setup["body_template"].replace("<MODEL>", request["model"])
    return str(text.replace("<PROMPT>", request.get("prompt", "test"))).encode()


def cut(body: bytes, request: dict[str, Any]) -> list[bytes]:
    """The body in the chunks that a case asks for."""
    if "split_inside" not in request:
        return [body]
    place = body.index(request["split_inside"][0].removeprefix("...").encode())
    place += len(request["split_inside"][0].removeprefix("..."))
    return [body[:place], body[place:]]


def sent(bench: Bench, setup: dict[str, Any], case: dict[str, Any]) -> list[ext_proc.ProcessingResponse]:
    """Answers to the request of an HTTP case."""
    request = case["request"]
    fields = {":method": "POST", ":path": "/v1/completions", "content-type": "application/json"}
    fields |= setup["request_headers"]
    if "model" in request:
        fields["x-gateway-inference-objective"] = request["model"]
    if "target" in request:
        fields["x-gateway-model-name-rewrite"] = request["target"]
    assert bench.headers("request_headers", fields) == []
    return bench.body("request_body", cut(body_of(setup, request), request))


def is_picked(replies: list[ext_proc.ProcessingResponse], endpoint: str) -> list[ext_proc.ProcessingResponse]:
    """Checks the answer to the headers; returns those to the body."""
    head, *rest = replies
    assert head.WhichOneof("response") == "request_headers"
    mutation = head.request_headers.response.header_mutation
    fields = {one.header.key: one.header.raw_value.decode() for one in mutation.set_headers}
    assert fields[DESTINATION] == endpoint
    assert json_format.MessageToDict(head.dynamic_metadata) == {"envoy.lb": {DESTINATION: endpoint}}
    return rest


def is_refused(replies: list[ext_proc.ProcessingResponse], status: int, text: str) -> None:
    """Checks the one answer of a refusal."""
    [reply] = replies
    assert reply.immediate_response.status.code == status
    assert msgspec.json.decode(reply.immediate_response.body)["error"]["message"].startswith(text)


def passed(replies: list[ext_proc.ProcessingResponse], kind: str) -> bytes:
    """The body that goes on; its end is said once, by the last chunk."""
    chunks = [getattr(reply, kind).response.body_mutation.streamed_response for reply in replies]
    assert [chunk.end_of_stream for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    return b"".join(chunk.body for chunk in chunks)
