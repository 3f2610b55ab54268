"""The ready-made configurations, which the operator hands out too."""

from __future__ import annotations

from poolpilot_kube.policies import DEFAULT_POLICY as DEFAULT_POLICY
from poolpilot_kube.policies import POLICIES as POLICIES
from poolpilot_kube.policies import policy_config as policy_config
