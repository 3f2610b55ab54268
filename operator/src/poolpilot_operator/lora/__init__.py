"""LoRA adapters on the endpoints of pools: where each goes, and the engines' own API to bring it there."""
