"""Numbers of bytes in words. Pure."""


def gigabytes(size: int) -> str:
    """`2.5 GB`, or below one `12.0 MB`: powers of ten, as disks and networks are sold."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def gibibytes(size: float) -> str:
    """`4.52 GiB`: a GPU's memory, and what is to fit there."""
    return f"{size / 2**30:.2f} GiB"
