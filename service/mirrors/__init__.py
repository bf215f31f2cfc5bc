"""Mirrors: the curves of tasks, kept up to date on tracking servers of tenants, MLflow's and Weights & Biases'.

Enters: loss points that a job's last checkpoint covers, jobs' ends. Leaves: runs, hyperparameters and metrics over the server's
API, through the SSRF guard. It must not know reports and placements, and never delays or fails a task: it reads what is
stored."""
