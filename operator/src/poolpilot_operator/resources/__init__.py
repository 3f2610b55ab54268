"""The objects that the operator makes, as pure functions of what is wanted."""
