"""The fleet's fixtures, for the tests of this folder."""

from tests.service.fleet.fixtures import new_node, nothing_left, parts, plan, rested

__all__ = ["new_node", "nothing_left", "parts", "plan", "rested"]
