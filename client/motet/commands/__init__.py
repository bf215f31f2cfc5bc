"""What the `motet` command line reads and draws: spec files, tables, live views, character plots.

Enters: values of `motet.api`. Leaves: text on a terminal. It must not speak HTTP itself.
"""
