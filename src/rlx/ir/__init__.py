"""The intermediate representation: dtypes, dims, types, expressions, graphs, ops, their verifier and their text."""
