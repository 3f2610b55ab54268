"""What the workers of one picker tell each other on one machine. Beside the request's way, read by every decision."""
