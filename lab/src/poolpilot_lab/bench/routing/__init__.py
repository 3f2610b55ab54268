"""`poolpilot bench routing`: poolpilot against published policies, references and limits, in the simulator."""
