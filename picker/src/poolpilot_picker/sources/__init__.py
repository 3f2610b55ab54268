"""What arrives by itself, asynchronously: discovery and engine telemetry. Feeds the state; knows no policy."""
