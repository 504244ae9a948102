"""A run's values: JavaScript expressions over them, and fields computed from them."""
