"""The processes of an executor's devices beyond the first: started, given calls, served.

Enters: calls of a replica's interface, host copies in shared memory. Leaves: their results. It must not decide anything: rank
0, the executor's own process, has the loop, the policies, the lease and the reporter."""
