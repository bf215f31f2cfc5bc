"""The frozen base sharded over ranks: each rank's part of its linear maps, gathered layer by layer as passes need them.

Enters: a base's weights as they are read. Leaves: the same weights as views of gather buffers. It must not know adapters, jobs
or how many devices a base needs."""
