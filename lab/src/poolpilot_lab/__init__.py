"""The lab: engine simulator, demo and routing benchmark. It runs the picker's own decision code."""
