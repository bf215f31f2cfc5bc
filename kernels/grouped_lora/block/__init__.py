"""The kernels of a decoder block, fused with the adapters' products: attention, norm, rotary, SwiGLU, cross entropy.

Enters: activations of the flat token axis. Leaves: activations and their gradients. It must not know jobs or files.
"""
