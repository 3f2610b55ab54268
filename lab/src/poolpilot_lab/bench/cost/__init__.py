"""`poolpilot bench cost`: what a picker costs, ours and Go's in the same run, behind a real Envoy."""

import os

# Read when the gRPC library is loaded: its threads would otherwise remark on every program that is started.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
