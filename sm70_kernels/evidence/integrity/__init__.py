"""Whether recorded runs are intact, validated and current."""
