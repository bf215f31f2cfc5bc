"""Node autoscaling: how many GPUs the queue asks for beyond what is free, and which nodes are idle, told to a webhook.

Enters: queued tasks, nodes and what they hold, as stored. Leaves: one state, read by admins and posted signed whenever it has
changed. Starts and stops no machine; must not know any cloud."""
