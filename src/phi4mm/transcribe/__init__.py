"""Speech of any length to timed text: pauses, pieces, guards, seams and subtitle formats."""
