"""How Motet's own processes start: their entry points, and the arithmetic that they set before torch is imported.

Enters: a program's name, an environment. Leaves: its function, the environment changed. It must not know any program.
"""
