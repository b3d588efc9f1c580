"""What a delivery costs, beside the least that the same HTTP library and the same TLS can do. See README.md."""
