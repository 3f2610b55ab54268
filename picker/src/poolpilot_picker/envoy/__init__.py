"""The Envoy in front of the picker: its configuration and the endpoint file it watches. Off the request's way."""
