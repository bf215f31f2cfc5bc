"""The fused path on a GPU: a micro-batch's uploads, fused layers over grouped_lora's kernels, captured graphs, side streams.

Enters: the same flat batch as `plain/`. Leaves: the same losses and gradients. It must not know jobs or schedules."""
