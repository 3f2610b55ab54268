"""The slow path: what a Prometheus remembers of engines, turned into advice. Without one everything else works."""
