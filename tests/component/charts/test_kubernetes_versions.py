"""Every object of every variant, by the schemas of the oldest and newest Kubernetes versions and one between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chart_variants import VARIANTS

if TYPE_CHECKING:
    from helm import Helm

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="schemas: pip install kubernetes-validate")

OWN_API = (
    "poolpilot.dev/",
    "gateway.envoyproxy.io/",
    "networking.istio.io/",
    "monitoring.coreos.com/",
    "apiextensions.k8s.io/",
)
"""Groups without schemas there; definitions refer to themselves, and an API server has looked at them."""


@pytest.mark.parametrize("version", ["1.31", "1.34", "1.37"])
@pytest.mark.parametrize(("chart", "variant"), VARIANTS, ids=["-".join(one) for one in VARIANTS])
def test_objects_are_as_the_version_has_them(helm: Helm, chart: str, variant: str, version: str) -> None:
    """Strictly: a field that came later is found."""
    for manifest in helm.rendered(chart, VARIANTS[chart, variant]):
        if not manifest["apiVersion"].startswith(OWN_API):
            kubernetes_validate.validate(manifest, version, strict=True)


def test_a_field_that_a_version_does_not_have_is_found(helm: Helm) -> None:
    [deployment] = [one for one in helm.rendered("poolpilot") if one["kind"] == "Deployment"]
    deployment["spec"]["template"]["spec"]["surprise"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="surprise"):
        kubernetes_validate.validate(deployment, "1.31", strict=True)
