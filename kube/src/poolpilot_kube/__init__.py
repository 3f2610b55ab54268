"""What picker and operator both need of Kubernetes: object models, watches, names of labels and annotations."""
