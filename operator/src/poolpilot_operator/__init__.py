"""The control plane: reconciles InferencePool objects and runs pickers for them."""
