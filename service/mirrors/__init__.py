"""Mirrors: the curves of tasks, kept up to date on MLflow tracking servers of tenants.

Enters: loss points that a job's last checkpoint covers, jobs' ends. Leaves: runs, params and metrics over MLflow's REST API,
through the SSRF guard. It must not know reports and placements, and never delays or fails a task: it reads what is stored."""
