"""The planner on real arrivals: windows of traces at chosen loads, every policy on each, with and without fair share.

Traces enter; rows, figures and plots leave. Knows no planner internals and no fleet but the simulated one.
"""
