"""A crowd before a real Envoy: requests that wait in the picker's queue, and streams that stay open, by thousands."""
