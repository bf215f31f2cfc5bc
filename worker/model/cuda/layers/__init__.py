"""The decoder's layers on a GPU, forward and backward written by hand: attention, the part behind it that treats each token by
itself, and the residual stream between them; base products, and adapters' products on streams beside them.

Enters: hidden states of a flat batch on the device and its work table. Leaves: the same after each layer, and the adapters'
gradients. It must not know labels, losses, or captured graphs."""
