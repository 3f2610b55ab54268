// The stand-in servers and the load generator of `poolpilot bench cost`; the standard library only.
module poolpilot.dev/lab/bench/cost/tools

go 1.22
