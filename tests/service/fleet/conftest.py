"""The fleet's fixtures, for the tests of this folder."""

from tests.service.fleet.fixtures import dependencies, new_node, nothing_left, plan, rested
from tests.service.fleet.placed_task import jobs, placement, task_of

__all__ = ["dependencies", "jobs", "new_node", "nothing_left", "placement", "plan", "rested", "task_of"]
