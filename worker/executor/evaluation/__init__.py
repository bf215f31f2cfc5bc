"""What an executor evaluates between steps: the base when a task begins, jobs as they train and end, the texts they generate.

Enters: placement runs, job runs and the replicas. Leaves: results on those runs, reported events, counted cost. It must not end
a job, nor know the training loop."""
