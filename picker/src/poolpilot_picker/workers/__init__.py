"""Several picker processes on one machine that look like one: started, watched, and shown as a whole. Off the request's
way: each worker serves its own port, and the data plane spreads the streams."""
