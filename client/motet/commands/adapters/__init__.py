"""Commands about adapters: those that were trained or uploaded, asked, merged into their bases, pushed to the hub.

Enters: arguments of the command line. Leaves: calls of the client, and what is shown of their answers. It must not know
HTTP."""
