"""What clients want: seeded texts, arrivals and multi-turn sessions. Knows no engine, policy, clock or network."""
