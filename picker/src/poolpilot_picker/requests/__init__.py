"""Headers and bodies → InferenceRequest; names of headers."""
