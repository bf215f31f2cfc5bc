"""A GPU node: the daemon (`node/`) and its executors (`executor/`), which train many adapters on one frozen base.

Enters: placements over HTTP. Leaves: reports, checkpoints, adapters. It must not import the service or know a database."""
