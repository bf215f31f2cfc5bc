"""How many tokens a task's texts take at most: those that its evaluation reads and generates. Pure arithmetic."""

from contract.task_spec import TaskSpec


def text_tokens(spec: TaskSpec, rows: int, tokens_per_row: float) -> float:
    """Of the base, of every job at its end and, where a text metric ranks jobs there, at the end of its warmup, and at the
    milestones of the jobs that may pass the cut. rows: to generate texts for; tokens_per_row: their mean length, prompt and
    answer."""
    asked = spec.evaluation
    if asked is None:
        return 0.0
    jobs = spec.search_space.size
    passing = jobs if spec.early_exit.policy == "asha" else spec.early_exit.survivors(jobs)[1]  # asha keeps who comes early
    evaluations = 1 + jobs * (1 if spec.cut_metric is None else 2) + passing * len(asked.milestones)
    return evaluations * min(rows, asked.max_prompts) * (tokens_per_row + asked.max_new_tokens)
