"""Handles of metrics and logs that every room may use. No HTTP here."""
