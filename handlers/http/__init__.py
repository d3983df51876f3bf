"""HTTP: the contract's document as an ASGI application, with its errors, streams, keys and pages."""
