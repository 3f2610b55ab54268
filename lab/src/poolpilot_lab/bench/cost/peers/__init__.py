"""Go's endpoint pickers as peers of the cost bench: each is ready when it picks all of the endpoints it was given."""

from poolpilot_lab.bench.cost.peers.epp import PeerPicker
from poolpilot_lab.bench.cost.peers.gie import gie_epp
from poolpilot_lab.bench.cost.peers.llm_d import llm_d_epp
from poolpilot_lab.gotools import NotAvailable

__all__ = ["NotAvailable", "PeerPicker", "gie_epp", "llm_d_epp"]
