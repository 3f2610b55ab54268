"""Read-only views for people and probes, over HTTP: metrics, health, readiness, decisions. Never on the data port."""
