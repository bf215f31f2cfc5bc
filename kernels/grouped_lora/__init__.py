"""Grouped LoRA: many adapters of any rank on one frozen linear map, over one flat token axis.

Enters: tensors and spans of tokens. Leaves: products and their gradients. It must not know jobs, files or models: it needs
torch, and Triton on a GPU."""

from grouped_lora.adapter_spans import Group, Part, Span
from grouped_lora.products.autograd_linear import Adapters, grouped_linear

__all__ = ["Adapters", "Group", "Part", "Span", "grouped_linear"]
