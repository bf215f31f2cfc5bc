"""An HTTP server whose clients may be killed while they are connected."""

import sys
from http.server import ThreadingHTTPServer
from typing import Any


class HangUpServer(ThreadingHTTPServer):
    """Prints no traceback where a client hangs up."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
