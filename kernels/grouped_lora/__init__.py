"""Grouped LoRA: many adapters of any rank on one frozen linear map, over one flat token axis. Needs torch alone."""

from grouped_lora.linear import Adapters, grouped_linear
from grouped_lora.span import Group, Part, Span

__all__ = ["Adapters", "Group", "Part", "Span", "grouped_linear"]
