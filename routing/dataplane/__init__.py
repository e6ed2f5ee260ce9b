"""The hot path: HTTP/1.1 in and out on raw asyncio protocols. No Django here."""
