"""Envoy's side: the exchange (a sans-I/O state machine per stream) and the transports that carry its bytes."""
