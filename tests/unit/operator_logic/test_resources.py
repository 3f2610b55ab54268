"""Objects that the operator makes, where what is in them depends on a Picker or on the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from poolpilot_kube.objects import ObjectMeta
from poolpilot_operator.models import AutoscalingSpec, IssuerRef, Owned, OwnedMeta, Picker, PickerSpec, TlsSpec
from poolpilot_operator.resources.deployment import USER, Installation, deployment
from poolpilot_operator.resources.naming import made_for
from poolpilot_operator.resources.picker import certificate

SCALED = AutoscalingSpec(max_replicas=3)


def pod_of(spec: PickerSpec, **more: Any) -> dict[str, Any]:
    picker = Picker(ObjectMeta(name="default", namespace="home"), spec)
    found: dict[str, Any] = deployment(picker, Installation("home", "picker", (), **more))["spec"]["template"]["spec"]
    return found


def test_a_pod_names_no_user_where_the_cluster_gives_it_one() -> None:
    """OpenShift's restricted-v2 refuses every number that is not of the namespace's range."""
    named = pod_of(PickerSpec())["securityContext"]
    assert (named["runAsUser"], named["runAsGroup"], named["fsGroup"]) == (USER, USER, USER)
    assigned = pod_of(PickerSpec(), assigned_users=True)["securityContext"]
    assert assigned == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize(
    ("given", "requests"),
    [
        ({}, {"cpu": "500m", "memory": "512Mi"}),
        ({"limits": {"memory": "2Gi"}}, {"cpu": "500m"}),
        ({"requests": {"memory": "1Gi"}}, {"memory": "1Gi", "cpu": "500m"}),
        ({"requests": {"cpu": "2"}}, {"cpu": "2"}),
        # The API server requests what is the limit.
        ({"limits": {"cpu": "4"}}, None),
    ],
)
def test_where_the_cpu_scales_some_is_requested(given: dict[str, Any], requests: dict[str, str] | None) -> None:
    """An HPA says `missing request for cpu` otherwise, and never scales."""
    [container] = pod_of(PickerSpec(resources=given, autoscaling=SCALED))["containers"]
    assert container["resources"].get("requests") == requests
    assert container["resources"].get("limits") == given.get("limits")


def test_what_is_given_is_all_there_is_where_nothing_scales() -> None:
    [container] = pod_of(PickerSpec(resources={"limits": {"memory": "2Gi"}}))["containers"]
    assert container["resources"] == {"limits": {"memory": "2Gi"}}


def test_the_secret_of_a_certificate_is_known_as_the_pickers() -> None:
    """cert-manager leaves it when the Certificate goes; by its labels it is removed with the Picker."""
    tls = TlsSpec(mode="CertManager", issuer_ref=IssuerRef(name="ca"))
    picker = Picker(ObjectMeta(name="default", namespace="home"), PickerSpec(tls=tls))
    labels = certificate(picker, "home", "poolpilot-default-tls", ["a"], "ops")["spec"]["secretTemplate"]["labels"]
    assert made_for(Owned(OwnedMeta(name="poolpilot-default-tls", labels=labels))) == ("home", "default")
    assert (labels["app.kubernetes.io/managed-by"], labels["poolpilot.dev/operator"]) == ("poolpilot", "ops")
