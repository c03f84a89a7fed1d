"""JAX: global arrays over a sharding, from the rows that each process owns."""
