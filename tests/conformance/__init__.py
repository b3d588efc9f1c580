"""What every authority store must do, written once against the ports; each store's test file runs it."""
