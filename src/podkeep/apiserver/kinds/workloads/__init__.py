"""What makes pods: replica sets, deployments, stateful and daemon sets, jobs, and budgets of their disruption."""
