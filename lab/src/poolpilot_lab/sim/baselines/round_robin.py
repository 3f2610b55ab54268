"""Round robin: a Kubernetes Service in the mean."""

from __future__ import annotations

from poolpilot_lab.sim.baselines.base import Baseline, llmd

BASELINE = Baseline(
    name="round-robin",
    source="kube-proxy (IPVS rr), Envoy ROUND_ROBIN",
    build=lambda _: llmd(("round-robin-picker", None, {})),
)
