from poolpilot_lab.sim.telemetry import Scrapes as Scrapes
