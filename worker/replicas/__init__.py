"""The copies of the base on this executor's devices and what they compute: loading, profiling, packed steps, validation, DPO.

Enters: jobs' batches. Leaves: losses and updated rows. It must not stop jobs early or talk to the service."""
