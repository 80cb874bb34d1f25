"""From a repository of a model hub to a bundle on disk."""
