"""The fleet's fixtures, for jobs that are to be trained."""

from tests.service.fleet.fixtures import new_node, nothing_left, parts, plan

__all__ = ["new_node", "nothing_left", "parts", "plan"]
