"""The node's daemon: it registers the node, keeps the heartbeat, fetches the desired state, starts and stops executors.

Enters: the desired state over HTTP. Leaves: processes, heartbeats and losses. It must not import torch or know training."""
