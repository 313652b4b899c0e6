"""The outside, pretended: virtual time, the benchmark's world, and the real rooms in it."""
