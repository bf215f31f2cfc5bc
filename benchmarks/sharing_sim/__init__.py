"""Sharing executors, replayed on real traces: ours against exclusive placement, mLoRA, tLoRA and PLoRA.

Traces enter; rows, figures and a plot leave. Knows no service and no worker but the planner's pure core.
"""
