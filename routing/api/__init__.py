"""The REST API of the router's own rows: keys, and which endpoints are left out."""
