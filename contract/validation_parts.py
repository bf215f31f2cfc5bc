"""How large the nested parts of a task's validation rows are: from its spec and its numbers of rows. Knows no data."""

from contract.evaluation_plan import EvaluationPlan, plan_evaluations
from contract.job_schedule import JobSchedule
from contract.task_spec import TaskSpec


def held_out_rows(rows: int, fraction: float, at_most: int) -> int:
    """How many of a training file's rows are held out for validation: `fraction` of them (a half is rounded up), at least
    one."""
    return min(at_most, max(1, int(rows * fraction + 0.5)))


def validation_parts(spec: TaskSpec, train_rows: int, validation_rows: int, row_cost: float = 1.0) -> EvaluationPlan:
    """The rows of a full evaluation and of the trend, within early_exit.max_evaluation_share. row_cost: tokens of a validation
    row over those of a training row."""
    jobs = spec.search_space.size
    schedules = {
        config.batch_size: JobSchedule.of(spec, config, train_rows)
        for config in {config.batch_size: config for config in spec.jobs()}.values()
    }
    courses = [schedule.course(jobs, min(size, train_rows)) for size, schedule in schedules.items()]
    passing = spec.early_exit.survivors(jobs)[1] / jobs
    return plan_evaluations(spec.early_exit.max_evaluation_share, passing, courses, validation_rows, row_cost)
