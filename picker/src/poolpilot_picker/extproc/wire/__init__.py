"""The lean transport: HTTP/2 and gRPC for this one service, bytes in and bytes out, beside the reference transport."""
