"""Several replicas of the server behind one address, on one machine or many, which Ray Serve places."""
