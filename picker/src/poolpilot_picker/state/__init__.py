"""What we know, as arrays: endpoints, the ledger of what we placed, telemetry, prefix index, adapter residency. Pure."""
