"""A real Kubernetes control plane on loopback without containers: for the operator's tests and for peers that need it.

Off a request's way: no poolpilot program imports it.
"""
