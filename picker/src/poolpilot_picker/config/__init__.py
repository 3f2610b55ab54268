"""EndpointPickerConfig: its schema and its strict loading."""
