"""The commands of `motet`, one module a noun: arguments in, calls of `motet.api`, results handed to `motet.display`.

Enters: the words of a command line. Leaves: an exit code. It must not speak HTTP itself.
"""
