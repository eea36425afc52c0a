"""Case -> standalone script that only needs torch."""
