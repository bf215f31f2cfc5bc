"""Tasks that share an executor: how they slow each other down, and which waiting tasks join which running ones.

Enters: a problem and its plan. Leaves: the plan with its joins. It must not know rows, nor how speeds are measured."""
