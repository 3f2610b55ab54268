"""Values that the charts are tested with: by chart and name."""

from __future__ import annotations

from typing import Any, Final

VARIANTS: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("poolpilot", "default"): {},
    ("poolpilot", "namespaced"): {"scope": "namespace", "watchNamespaces": ["team-a", "team-b"]},
    ("poolpilot", "available"): {
        "replicas": 3,
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"kubernetes.io/arch": "arm64"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "podLabels": {"team": "inference"},
        "podAnnotations": {"example.com/a": "b"},
        "commonLabels": {"owner": "platform"},
        "extraArgs": ["--picker-listen=any"],
        "fullnameOverride": "pp",
    },
    ("poolpilot", "bare"): {
        "leaderElection": False,
        "upstreamCRDs": "never",
        "serviceAccount": {"create": False, "name": "given"},
        "rbac": {"create": False},
        "picker": {"create": False},
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "cleanup": {"enabled": False},
        "test": {"enabled": False},
        "image": {"digest": "sha256:" + "a" * 64, "pullPolicy": "Always"},
        "pickerImage": {"repository": "registry.example.com/picker", "tag": "v9"},
        "imagePullSecrets": [{"name": "pull"}],
    },
    ("poolpilot", "monitored"): {
        "prometheusUrl": "http://prometheus.monitoring:9090",
        "serviceMonitor": {"enabled": True, "interval": "10s", "labels": {"release": "prometheus"}},
        "networkPolicy": {
            "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
        },
        "logLevel": "debug",
    },
    ("poolpilot", "picker"): {
        "picker": {
            "name": "fast",
            "spec": {
                "config": {"policy": "round-robin"},
                "autoscaling": {"minReplicas": 2, "maxReplicas": 6},
                "tls": {"mode": "Secret", "secretRef": {"name": "picker-tls"}},
                "resources": {"requests": {"cpu": "2", "memory": "1Gi"}},
            },
        }
    },
    ("poolpilot", "envoy-gateway"): {
        "picker": {"spec": {"tls": {"mode": "Disabled"}}},
        "gateways": {
            "envoyGateway": [
                {"namespace": "serving", "httpRoute": "llm", "gateway": "gw", "pickerService": "llama-picker"},
                {
                    "namespace": "serving",
                    "httpRoute": "other",
                    "gateway": "gw",
                    "pickerService": "other-picker",
                    "pickerPort": 9003,
                    "failOpen": True,
                    "messageTimeout": "60s",
                    "client": False,
                    "patches": True,
                    "listener": "https",
                    "rule": 1,
                },
            ]
        },
    },
    ("poolpilot", "istio"): {
        "gateways": {
            "istio": [
                {"namespace": "serving", "pickerService": "llama-picker"},
                {
                    "namespace": "serving",
                    "pickerService": "other-picker",
                    "tls": False,
                    "filter": {
                        "gateway": "gw",
                        "gatewayNamespace": "edge",
                        "route": "serving.other.0",
                        "failOpen": True,
                    },
                },
            ]
        }
    },
    ("poolpilot", "aggregated"): {"rbac": {"aggregate": True}, "picker": {"create": False}, "test": {"enabled": False}},
    ("poolpilot-crds", "default"): {},
    ("poolpilot-standalone", "selector"): {"selector": {"app": "vllm", "tier": "gpu"}, "targetPorts": [8000, 8001]},
    ("poolpilot-standalone", "endpoints"): {
        "endpoints": [
            {"address": "10.0.0.1", "port": 8000, "name": "a", "labels": {"gpu": "h100"}},
            {"address": "fd00::1", "port": 8000, "engine": "sglang"},
        ],
        "config": "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n",
        "engineToken": {"secretName": "engine", "key": "password"},
        "picker": {"workers": 2},
        "envoy": {"accessLog": True, "bodyMode": "buffered", "podProtocol": "downstream", "retries": 0},
        "replicas": 2,
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "imagePullSecrets": [{"name": "pull"}],
    },
    ("poolpilot-standalone", "original-dst"): {
        "selector": {"app": "vllm"},
        "policy": "least-request",
        "envoy": {"cluster": "original-dst", "maxBodyBytes": 1048576, "image": {"digest": "sha256:" + "b" * 64}},
        "service": {"type": "LoadBalancer", "port": 8080, "annotations": {"example.com/a": "b"}},
        "drainSeconds": 0,
        "serviceAccount": {"create": False, "name": "given"},
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "nodeSelector": {"a": "b"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "podLabels": {"a": "b"},
        "podAnnotations": {"a": "b"},
        "commonLabels": {"owner": "platform"},
    },
    ("poolpilot-standalone", "open"): {
        "selector": {"app": "vllm"},
        "envoy": {"fail": "open", "bodyMode": "full-duplex"},
    },
}
