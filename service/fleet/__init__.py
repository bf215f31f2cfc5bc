"""The GPU fleet: nodes and their leases, the allow-list of base models, and the reports of workers.

Enters: registrations, heartbeats and reports of nodes. Leaves: desired states and applied reports. It must not plan."""
