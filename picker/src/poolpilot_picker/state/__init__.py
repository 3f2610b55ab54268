"""What we know, as arrays: endpoints, ledger of what we placed, telemetry, prefix index, adapter residency. Pure."""
