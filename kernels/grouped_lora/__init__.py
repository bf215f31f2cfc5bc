"""Grouped LoRA: many adapters of any rank on one frozen linear map, over one flat token axis. Needs torch alone."""

from grouped_lora.adapter_spans import Group, Part, Span
from grouped_lora.products.autograd_linear import Adapters, grouped_linear

__all__ = ["Adapters", "Group", "Part", "Span", "grouped_linear"]
