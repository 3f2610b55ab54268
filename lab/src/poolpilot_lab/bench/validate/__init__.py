"""`poolpilot bench validate`: the engine model's time per output token against measured rows."""
