"""What exchanges and engines teach: speed residuals, output lengths, bytes per token. Pure."""
