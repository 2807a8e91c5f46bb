"""Training methods: one file each, and the contract they share."""
