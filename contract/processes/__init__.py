"""How Motet's own processes start: their entry points, the arithmetic that they set before torch is imported, and where a stack
on one machine leaves what its clients need.

Enters: a program's name, an environment. Leaves: its function, the environment changed, a folder. It must not know any program.
"""
