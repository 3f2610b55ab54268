"""A picker under a million exchanges, well-behaved and broken off: what is lost, what fails, what its memory does."""
