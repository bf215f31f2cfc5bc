"""The fleet's fixtures, for batches that are planned and run."""

from tests.service.fleet.fixtures import new_node, nothing_left, parts, plan

__all__ = ["new_node", "nothing_left", "parts", "plan"]
