"""Programs with a planted fault each: what the first screen says of them, beside the truth and the measured remedy."""
