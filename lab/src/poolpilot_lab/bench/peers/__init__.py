"""`poolpilot bench routing --peers`: real routers, each end to end over the same stand-in engines and arrivals."""
