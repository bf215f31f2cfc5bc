"""The API's calls, one function a route, as steps that either client carries out.

Enters: arguments. Leaves: requests, and typed values of their answers. It must not do any I/O but on local files."""
