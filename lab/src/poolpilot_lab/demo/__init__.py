"""`poolpilot demo`: the same clients, engines and Envoy three times, balanced by Envoy twice and by the picker once."""
