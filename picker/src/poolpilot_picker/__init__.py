"""The data plane: an Envoy ext_proc endpoint picker that sends each LLM request where it finishes first."""
