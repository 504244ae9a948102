"""What sidecar costs, as ratios to a baseline measured in the same run: machines are noisy, ratios travel."""
