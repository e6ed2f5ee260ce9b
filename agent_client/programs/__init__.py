"""Engine programs that come with the agent. Each is a process of its own; the agent imports none of them."""
