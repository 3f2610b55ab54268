"""Where should it go: (request, state, now) → Decision, with every term of every candidate. Pure."""
