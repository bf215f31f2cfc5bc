"""Adapters and merged models, pushed to a repository of the hub with the tenant's own token, in the background.

Enters: requests; files in storage. Leaves: commits on the hub, and rows that say how far each push is. It must not know
tensors, tasks, nor how the hub is called."""
