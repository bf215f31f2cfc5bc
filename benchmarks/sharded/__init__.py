"""Adapters over a base that no single device holds: Motet's adapter parallelism beside FSDP2 and tensor parallelism.

A shape and batch sizes enter; rows and figures leave. The ranks are processes of their own; no service and no executor runs.
"""
