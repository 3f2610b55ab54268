"""`poolpilot doctor`: looks at a live cluster as pools, pickers and gateways need it, and says what to change.

Reads only. `reading` gathers what there is; every module `check_*` holds pure functions from that to findings.
"""
