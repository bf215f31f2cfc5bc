"""How generated texts are scored against references. Pure: values in, values out.

Enters: a metric of a task's evaluation, a text, a reference. Leaves: a score from 0 to 1. It must not know models or jobs."""
