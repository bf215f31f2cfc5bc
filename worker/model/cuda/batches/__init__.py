"""A flat batch on the device: what forward and backward read as one upload, its labels as another.

Enters: a flat batch on the host and its work table. Leaves: tensors and work tables on the device. It must not know weights."""
