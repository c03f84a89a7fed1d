"""A web server for tests."""

from http.server import ThreadingHTTPServer


class WebServer(ThreadingHTTPServer):
    request_queue_size = 64  # a build asks for many files at once; a connection that finds no room waits a second
