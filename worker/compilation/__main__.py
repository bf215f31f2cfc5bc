"""`python -m worker.compilation`: compiles the kernels that a command on standard input names, and exits."""

from contract.processes import entry_point

if __name__ == "__main__":
    entry_point.load("worker.compilation.compile_main:main")()
