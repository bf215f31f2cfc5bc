"""Motet on Kubernetes: a Helm chart, and the same objects as plain YAML for those without Helm.

Enters: the chart and a file of values. Leaves: the objects as YAML. Must not know: the service's code; a test compares the
chart's variables, ports and commands with it.
"""
