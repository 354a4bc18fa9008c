"""What a program is: dtypes, dims, types, expressions, graphs, ops, their verifier and their text."""
