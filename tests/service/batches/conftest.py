"""The fleet's fixtures, for batches that are planned and run."""

from tests.service.fleet.fixtures import dependencies, new_node, nothing_left, plan

__all__ = ["dependencies", "new_node", "nothing_left", "plan"]
