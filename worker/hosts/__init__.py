"""The hosts of a node: what devices each has, and the agent of a further host, which starts processes for the first.

Enters: requests over TCP, under a shared secret. Leaves: processes whose messages go over the same connection. It must not know
what they say."""
