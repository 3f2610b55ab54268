"""`python -m poolpilot_picker`, the same as `poolpilot-picker`."""

from poolpilot_picker.main import console

console()
