"""Files for other programs: what a service manager, a cluster or another engine reads."""
