"""The fleet's fixtures, for jobs that are to be trained."""

from tests.service.fleet.fixtures import dependencies, new_node, nothing_left, plan

__all__ = ["dependencies", "new_node", "nothing_left", "plan"]
