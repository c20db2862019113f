"""Which binaries ran: what the build recorded, what they embed and what the process mapped."""
