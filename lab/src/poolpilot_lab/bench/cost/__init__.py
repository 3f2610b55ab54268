"""`poolpilot bench cost`: what a picker costs, ours and Go's in the same run, behind a real Envoy."""
