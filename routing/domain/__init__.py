"""The router's decisions as pure functions: what a request asks, which endpoint gets it, what a stream said."""
