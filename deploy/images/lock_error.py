"""Why a lock cannot be written, in a sentence that ends with the way out."""


class LockError(Exception):
    pass
