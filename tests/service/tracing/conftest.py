"""The fleet's fixtures, for the tests of this folder."""

from tests.service.fleet.fixtures import dependencies, new_node, nothing_left, plan, rested

__all__ = ["dependencies", "new_node", "nothing_left", "plan", "rested"]
