"""The messages between the service's fleet API and the worker daemons, each a pydantic model.

Enters: what one side knows. Leaves: JSON that a peer of the neighbouring protocol can read (`contract/compatibility/`). It must
not know how a message is sent, stored or acted upon."""
