"""Tools of the tests and of the documents."""
