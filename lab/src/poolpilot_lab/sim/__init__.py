"""A fleet in simulated time: step-level engines, late telemetry, and the picker's own code or a baseline routing."""
