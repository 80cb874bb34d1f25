"""The server on many machines: Ray Serve runs replicas of it, Ray Data runs batches."""
