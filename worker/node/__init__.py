"""The node's daemon: registers the node, runs the heartbeat, fetches the desired state, starts and stops executors.

Enters: the desired state over HTTP. Leaves: processes, heartbeats and losses. It must not import torch or know training."""
