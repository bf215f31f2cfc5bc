"""Spec files as people write them: read, checked with every mistake's line, and their data files uploaded.

Enters: a YAML file. Leaves: a TaskSpec, or one readable error. It must not draw anything.
"""
