"""What a container is told of itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_pods import PLACE, Sources, pod
from poolpilot_lab.kubelet.environment import (
    MissingError,
    environment,
    expanded,
    field_value,
    port_number,
    quantity,
    resource_value,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$(A)", "1"),
        ("--x=$(A),$(B_C)", "--x=1,two"),
        ("$(NONE)", "$(NONE)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $( A)", "$A ${A} $( A)"),
        ("$", "$"),
    ],
)
def test_references_are_replaced(text: str, value: str) -> None:
    assert expanded(text, {"A": "1", "B_C": "two"}) == value


@given(st.text(alphabet="$()AB "))
def test_what_holds_no_known_name_only_loses_escapes(text: str) -> None:
    assert expanded(text, {}) == text.replace("$$", "$") or "$(" in text


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "a"),
        ("metadata.labels['app']", "x"),
        ("metadata.annotations['k/1']", "v"),
        ("metadata.labels['none']", ""),
        ("metadata.labels", 'app="x"\nb="say \\"hi\\""\n'),
        ("status.podIP", "10.244.1.7"),
        ("status.hostIP", "10.244.0.1"),
        ("spec.nodeName", "node-1"),
        ("spec.serviceAccountName", "default"),
    ],
)
def test_fields_of_the_downward_api(path: str, value: str) -> None:
    assert field_value(pod(), path, PLACE) == value


def test_a_field_that_does_not_exist_is_named() -> None:
    with pytest.raises(MissingError, match=r"spec\.colour"):
        field_value(pod(), "spec.colour", PLACE)


@pytest.mark.parametrize(
    ("text", "amount"), [("500m", 0.5), ("1.5Gi", 1.5 * 2**30), ("1e3", 1e3), ("2k", 2e3), ("7", 7.0), (3, 3.0)]
)
def test_amounts(text: str | float, amount: float) -> None:
    assert quantity(text) == pytest.approx(amount)


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ({"resource": "limits.cpu"}, "2"),
        ({"resource": "limits.cpu", "divisor": "1m"}, "1500"),
        ({"resource": "requests.cpu", "divisor": "1m"}, "250"),
        ({"resource": "limits.memory", "divisor": "1Mi"}, "1024"),
        ({"resource": "requests.memory", "divisor": "1Mi"}, "0"),
    ],
)
def test_resources_are_whole_and_rounded_up(reference: dict[str, str], value: str) -> None:
    container = {"resources": {"limits": {"cpu": "1500m"}, "requests": {"cpu": "250m"}}}
    assert resource_value(container, reference, {"memory": "1Gi"}) == value


def variables(*env: dict[str, Any], **more: Any) -> dict[str, str]:
    sources = Sources()
    sources.config_maps["map"] = {"colour": "red"}
    sources.secrets["secret"] = {"word": b"hush"}
    return environment(pod(), {"name": "c", "env": list(env), **more}, sources, PLACE, {"BASE": "b"})


def test_variables_come_from_everywhere_and_build_on_each_other() -> None:
    got = variables(
        {"name": "ONE", "value": "$(BASE)$(LATER)"},
        {"name": "LATER", "value": "$(ONE)!"},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "MAP", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "colour"}}},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "word"}}},
        {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "none", "key": "word", "optional": True}}},
        {"name": "NO_KEY", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "none", "optional": True}}},
        envFrom=[{"prefix": "P_", "secretRef": {"name": "secret"}}, {"configMapRef": {"name": "x", "optional": True}}],
    )
    assert got == {
        "BASE": "b",
        "P_word": "hush",
        "ONE": "b$(LATER)",
        "LATER": "b$(LATER)!",
        "IP": "10.244.1.7",
        "MAP": "red",
        "SECRET": "hush",
    }


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({"configMapKeyRef": {"name": "none", "key": "k"}}, "ConfigMap serving/none is not there"),
        ({"secretKeyRef": {"name": "secret", "key": "k"}}, "Secret serving/secret has no key 'k'"),
        ({"fileKeyRef": {}}, "fileKeyRef"),
    ],
)
def test_what_is_missing_is_named(source: dict[str, Any], reason: str) -> None:
    with pytest.raises(MissingError, match=reason):
        variables({"name": "X", "valueFrom": source})


def test_ports_by_number_and_name() -> None:
    container = {"name": "c", "ports": [{"name": "http", "containerPort": 8000}]}
    assert [port_number(container, one) for one in (1, "http", "9")] == [1, 8000, 9]
    with pytest.raises(MissingError, match="no port named 'grpc'"):
        port_number(container, "grpc")
