"""The deciding half: who may have which secrets now, and the material itself. It could run with no network."""
