"""A kubelet that runs pods as local processes, and serves the Services and names of its cluster.

Kubernetes without containers, for tests and for trying things out on one machine: `poolpilot_lab.control_plane` makes
the control plane, this package the node. Each pod has a network namespace of its own, each container its own mounts.
Linux only; it needs the rights of root, which a user namespace gives to everyone (`poolpilot_lab.kubelet.host`). Not
built: exec, attach and port-forward, host networks, sidecars, limits of CPU and memory, and users: every container runs
as the user that the kubelet runs as.
"""
