"""The fleet's fixtures, for the tests of this folder."""

from tests.service.fleet.fixtures import new_node, nothing_left, parts, plan, rested
from tests.service.fleet.placed_task import jobs, placement, task_of

__all__ = ["jobs", "new_node", "nothing_left", "parts", "placement", "plan", "rested", "task_of"]
