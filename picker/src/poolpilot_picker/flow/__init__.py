"""Places requests: choose and book in one synchronous step; follows them to their end. Time is an argument.

`Pool` is what the rooms above use: `Pool.place(request, now) -> Placement`, then `Pool.served`, `Pool.first_token`
and, exactly once, `Pool.finish`. Sources feed it through `Pool.apply_endpoints`, `apply_sample`,
`apply_served_models` and `restarted`.
"""
