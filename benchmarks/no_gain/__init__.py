"""Programs on which changes that people try first bring nothing: ``bottleneck verify --no-gain`` tries them."""
